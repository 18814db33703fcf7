"""Types of decorated methods; checked by mypy and pyright, never run."""

from collections.abc import AsyncIterator
from typing import assert_type

import shoal
from shoal import ResultStream


class Model:
    @shoal.batch
    async def predict(self, items: list[int]) -> list[str]:
        return [str(item) for item in items]

    @shoal.batch
    async def tokens(self, items: list[int]) -> AsyncIterator[list[str]]:
        yield [str(item) for item in items]

    @shoal.batch(max_batch_size=4)
    async def two(self, left: list[int], right: list[str]) -> list[bytes]:
        return [b"" for _ in left]

    @shoal.batch
    @classmethod
    async def of_class(cls, items: list[int]) -> list[str]:
        return [str(item) for item in items]

    @staticmethod
    @shoal.batch
    async def static(items: list[int]) -> list[str]:
        return [str(item) for item in items]

    @shoal.batch
    @staticmethod
    async def static_inside(items: list[int]) -> list[str]:
        return [str(item) for item in items]


async def calls(model: Model) -> None:
    assert_type(await model.predict(1), str)
    assert_type(await model.predict.options(timeout_s=1)(1), str)
    assert_type(await model.predict.map([1]), list[str])
    assert_type(model.tokens(1), ResultStream[str])
    assert_type(await model.two(1, "2"), bytes)
    assert_type(await Model.static(1), str)
    assert_type(await Model.static_inside(1), str)
    async with shoal.open_batchers(model.predict, model.tokens):
        model.predict.set_max_batch_size(3)


async def class_calls(model: Model) -> None:
    assert_type(await Model.of_class(1), str)
    assert_type(await model.of_class(1), str)
    assert_type(await Model.of_class.map([1]), list[str])
    assert_type(Model.tokens(model, 1), ResultStream[str])
    assert_type(await Model.predict(Model(), 1), str)
