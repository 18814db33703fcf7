"""A batched function, and a class with batched methods of every kind."""

from collections.abc import AsyncIterator
from typing import Any

import shoal


@shoal.batch
async def increment(numbers: list[int]) -> list[int]:
    """Adds one."""
    return [number + 1 for number in numbers]


class Model:
    def __init__(self, name: str = "m") -> None:
        self.name = name

    @shoal.batch(max_batch_size=4)
    async def predict(self, xs: list[int], ys: list[int] = 1) -> list[Any]:  # type: ignore[assignment]
        """Predicts."""
        return [(self.name, x + y, len(xs)) for x, y in zip(xs, ys, strict=True)]

    @shoal.batch
    async def tokens(self, xs: list[int]) -> AsyncIterator[list[str]]:
        for step in range(2):
            yield [f"{self.name}{x}.{step}" for x in xs]

    @shoal.batch
    @classmethod
    async def of_class(cls, xs: list[int]) -> list[Any]:
        return [(cls.__name__, x) for x in xs]

    @classmethod
    @shoal.batch
    async def of_class_outside(cls, xs: list[int]) -> list[Any]:
        return [(cls.__name__, x) for x in xs]

    @shoal.batch
    @staticmethod
    async def static(xs: list[int]) -> list[int]:
        return [-x for x in xs]

    @staticmethod
    @shoal.batch
    async def static_outside(xs: list[int]) -> list[int]:
        return [-x for x in xs]
