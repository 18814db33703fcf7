"""A batched method: each instance has its own batches, because instances share no weights."""

import anyio

import shoal


class Scaler:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    @shoal.batch(max_batch_size=16)
    async def scale(self, values: list[float]) -> list[float]:
        print(f"x{self.factor:g}: one call for {values}")
        return [self.factor * value for value in values]


async def main() -> None:
    double, triple = Scaler(2), Scaler(3)
    async with (
        shoal.open_batchers(double.scale, triple.scale),
        anyio.create_task_group() as tasks,
    ):
        for value in range(4):
            tasks.start_soon(double.scale, value)
            tasks.start_soon(triple.scale, value)


if __name__ == "__main__":
    anyio.run(main, backend="trio")
