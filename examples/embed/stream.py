"""Streams: a generator handler counts down for several callers at once, step by step."""

from collections.abc import AsyncIterator

import anyio

import shoal


@shoal.batch(max_batch_size=8)
async def countdown(starts: list[int]) -> AsyncIterator[list[int | shoal.Mark]]:
    for step in range(max(starts) + 1):
        await anyio.sleep(0.01)  # one step of a model for all callers
        # One entry per caller: an item, or END when its stream has ended.
        yield [start - step if start >= step else shoal.END for start in starts]


async def follow(start: int) -> None:
    async with countdown(start) as stream:
        print(start, "->", [number async for number in stream])


async def leave_early(start: int) -> None:
    async with countdown(start) as stream:
        print(start, "->", await anext(stream), "is enough; its place in the batch is free again")


async def main() -> None:
    async with shoal.open_batchers(countdown), anyio.create_task_group() as tasks:
        tasks.start_soon(follow, 3)
        tasks.start_soon(follow, 5)
        tasks.start_soon(leave_early, 1000)


if __name__ == "__main__":
    anyio.run(main, backend="trio")
