"""Batching with anyio on asyncio, for a handler without a decorator."""

import anyio

import shoal


async def double(numbers: list[float]) -> list[float]:
    await anyio.sleep(0.01)
    print(f"one call for {len(numbers)} numbers")
    return [number * 2 for number in numbers]


async def main() -> None:
    batcher = shoal.Batcher(double, max_batch_size=64, batch_wait_timeout_s=0.005)
    async with batcher as call:
        # map() makes many concurrent calls, which are batched with those of other callers.
        print(await call.map(range(5)))

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(call, number)
        print(batcher.statistics().batches)


if __name__ == "__main__":
    anyio.run(main, backend="asyncio")
