"""Exceptions in a list of results are no part of what a call gives; checked, never run."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal, TypeVar, assert_type

import shoal
from shoal import BatchedFunction, Batcher, ResultStream
from shoal.batching.calls.stream import Mark

T = TypeVar("T")


class Thing: ...


class Refused(Exception): ...


@shoal.batch
async def one_class(items: list[str]) -> list[float | ValueError]:
    return [float(item) for item in items]


@shoal.batch(max_batch_size=4)
def own_classes(items: list[str]) -> list[Thing | ValueError | KeyError | Refused]:
    return [Refused() for _ in items]


@shoal.batch
async def any_exception(items: list[str]) -> list[dict[str, int] | Exception]:
    return [{item: 1} for item in items]


@shoal.batch
async def optional(items: list[str]) -> list[float | Refused | None]:
    return [None for _ in items]


@shoal.batch
async def two(left: list[str], right: list[int]) -> list[bytes | Refused | KeyError]:
    return [b"" for _ in left]


@shoal.batch(max_batch_size=3)
def without_parameters() -> list[bytes | Refused]:
    return [b""]


@shoal.batch
async def union(items: list[str]) -> list[int | str]:
    return [*items]


@shoal.batch
async def anything(items: list[str]) -> list[Any]:
    return items


@shoal.batch
async def counted(items: list[T]) -> list[int | Refused]:
    return [1 for _ in items]


async def functions() -> None:
    assert_type(one_class, BatchedFunction[[str], float])
    assert_type(await one_class(""), float)
    assert_type(await one_class.options(timeout_s=1)(""), float)
    assert_type(await one_class.map([""]), list[float])
    assert_type(await one_class.map([""], return_exceptions=True), list[float | Exception])
    assert_type(await own_classes(""), Thing)
    assert_type(await any_exception(""), dict[str, int])
    assert_type(await optional(""), float | None)
    assert_type(await two("", 1), bytes)
    assert_type(await without_parameters(), bytes)
    assert_type(await union(""), int | str)
    assert_type(await anything(""), Any)
    assert_type(await counted(""), int)


@shoal.batch
async def streamed(items: list[str]) -> AsyncIterator[list[str | ValueError]]:
    yield [*items]


@shoal.batch(stream_buffer=4)
def with_marks(
    items: list[str],
) -> Iterator[list[str | Refused | Literal[Mark.END, Mark.SKIP]]]:
    yield [*items]


@shoal.batch
def with_classes(items: list[str]) -> Iterator[list[str | Exception | Mark | type[StopIteration]]]:
    yield [*items]


@shoal.batch
async def two_streamed(left: list[str], right: list[int]) -> AsyncIterator[list[str | Refused]]:
    yield [*left]


def streams() -> None:
    assert_type(streamed(""), ResultStream[str])
    assert_type(with_marks(""), ResultStream[str])
    assert_type(with_classes(""), ResultStream[str])
    assert_type(two_streamed("", 1), ResultStream[str])


class Model:
    @shoal.batch
    async def unary(self, items: list[str]) -> list[float | KeyError | Refused]:
        return [float(item) for item in items]

    @shoal.batch
    async def streamed(self, items: list[str]) -> AsyncIterator[list[str | Refused]]:
        yield [*items]

    @shoal.batch
    @classmethod
    async def of_class(cls, items: list[str]) -> list[float | Refused]:
        return [float(item) for item in items]

    @shoal.batch(max_batch_size=4)
    @classmethod
    async def streamed_of_class(cls, items: list[str]) -> AsyncIterator[list[str | Refused]]:
        yield [*items]


async def methods(model: Model) -> None:
    assert_type(await model.unary(""), float)
    assert_type(model.streamed(""), ResultStream[str])
    assert_type(await model.of_class(""), float)
    assert_type(Model.streamed_of_class(""), ResultStream[str])


async def raw(items: list[str]) -> list[float | Refused | KeyError]:
    return [float(item) for item in items]


async def raw_streamed(left: list[str], right: list[int]) -> AsyncIterator[list[str | Refused]]:
    yield [*left]


async def batchers() -> None:
    async with Batcher(raw) as call, Batcher(raw_streamed) as call_streamed:
        assert_type(await call(""), float)
        assert_type(call_streamed("", 1), ResultStream[str])


def threads() -> None:
    assert_type(one_class.from_thread(""), float)
    with shoal.blocking(one_class) as call, shoal.blocking(Batcher(raw)) as call_raw:
        assert_type(call(""), float)
        assert_type(call_raw(""), float)
    with shoal.blocking(streamed) as call_streamed, call_streamed("") as stream:
        assert_type(next(stream), str)
