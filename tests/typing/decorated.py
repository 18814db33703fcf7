"""Types of decorated functions and methods, and calls that type checkers must refuse.

They are checked by mypy and pyright, never run. An error that is missing fails as an unused ignore.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

import shoal
from shoal import BatchedFunction, BatchedGenerator, ResultStream


@shoal.batch
def plain(items: list[int]) -> list[str]:
    return [str(item) for item in items]


@shoal.batch
async def coroutine(items: list[int]) -> list[str]:
    return [str(item) for item in items]


@shoal.batch(max_batch_size=4, batch_wait_timeout_s=None, overload="wait")
def plain_with_options(items: list[int]) -> list[str]:
    return [str(item) for item in items]


@shoal.batch()
async def of_tuples(items: list[bytes]) -> tuple[float, ...]:
    return tuple(float(item) for item in items)


@shoal.batch
def generator(items: list[int]) -> Iterator[list[str]]:
    yield [str(item) for item in items]


@shoal.batch
async def async_generator(items: list[int]) -> AsyncIterator[list[str]]:
    yield [str(item) for item in items]


@shoal.batch
async def two(left: list[int], right: list[str]) -> list[bytes]:
    return [b"" for _ in left]


@shoal.batch(max_batch_size=3)
async def three(left: list[int], middle: list[str], right: list[bytes]) -> list[float]:
    return [0.0 for _ in left]


def flag() -> bool:
    return True


async def calls() -> None:
    assert_type(plain, BatchedFunction[[int], str])
    assert_type(coroutine, BatchedFunction[[int], str])
    assert_type(await plain(1), str)
    assert_type(await coroutine(1), str)
    assert_type(await plain_with_options(1), str)
    assert_type(await of_tuples(b"1"), float)
    assert_type(await two(1, "2"), bytes)
    assert_type(await three(1, "2", b"3"), float)
    assert_type(await coroutine.options(timeout_s=1)(1), str)
    assert_type(await coroutine.map([1, 2]), list[str])
    assert_type(await coroutine.map(range(2), return_exceptions=False), list[str])
    assert_type(await coroutine.map([1], return_exceptions=True), list[str | Exception])
    assert_type(await coroutine.map([1], return_exceptions=flag()), list[str | Exception])
    assert_type(await two.map([1], ["2"]), list[bytes])
    assert_type(await two.map([1], ["2"], return_exceptions=True), list[bytes | Exception])
    assert_type(coroutine.from_thread(1), str)
    async with shoal.open_batchers(plain, coroutine, generator):
        assert_type(coroutine.batcher.options.max_batch_size, int)


async def streams() -> None:
    assert_type(generator, BatchedGenerator[[int], str])
    assert_type(async_generator, BatchedGenerator[[int], str])
    assert_type(generator(1), ResultStream[str])
    async with async_generator(1) as stream:
        assert_type(stream, ResultStream[str])
        async for item in stream:
            assert_type(item, str)
    with async_generator.from_thread(1) as thread_stream:
        for item in thread_stream:
            assert_type(item, str)


def threads() -> None:
    with shoal.blocking(coroutine) as call:
        assert_type(call(1), str)
    with shoal.blocking(async_generator) as call_stream, call_stream(1) as stream:
        assert_type(next(stream), str)


def one(left: int, right: str = "") -> bytes:
    raise NotImplementedError


def one_streamed(left: int, *, right: str = "") -> bytes:
    raise NotImplementedError


@shoal.batch(signature=one, max_batch_size=3)
async def named(left: list[Any], right: list[Any]) -> list[Any]:
    return left


@shoal.batch(signature=one_streamed)
async def named_streamed(left: list[Any], right: list[Any]) -> AsyncIterator[list[Any]]:
    yield left


async def with_signatures() -> None:
    assert_type(await named(1), bytes)
    assert_type(await named(right="2", left=1), bytes)
    assert_type(named_streamed(1, right="2"), ResultStream[bytes])


@shoal.batch
async def draw() -> list[float]:
    return [0.5] * shoal.current_batch().size


async def call_without_arguments() -> None:
    assert_type(await draw(), float)


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


async def method_calls(model: Model) -> None:
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


async def wrong(model: Model) -> None:
    await coroutine("1")  # type: ignore[arg-type]
    await coroutine([1])  # type: ignore[arg-type]
    await coroutine()  # type: ignore[call-arg]
    await coroutine(1, 2)  # type: ignore[call-arg]
    await two(1, 2)  # type: ignore[arg-type]
    await two(1)  # type: ignore[call-arg]
    await model.predict("1")  # type: ignore[arg-type]
    await model.predict(1, 2)  # type: ignore[call-arg]
    number: int = await coroutine(1)  # type: ignore[assignment]
    print(number)


@shoal.batch(max_batch_size="4")  # type: ignore[call-overload, untyped-decorator]
async def wrong_option_type(items: list[int]) -> list[str]:
    return [str(item) for item in items]


@shoal.batch(batch_size=4)  # type: ignore[call-overload, untyped-decorator]
async def unknown_option(items: list[int]) -> list[str]:
    return [str(item) for item in items]


async def configure_wrong(batcher: shoal.Batcher[object]) -> None:
    batcher.configure(max_batch_size="4")  # type: ignore[arg-type]
    batcher.configure(batch_size=4)  # type: ignore[call-arg]


@shoal.batch  # type: ignore[arg-type]
async def not_of_lists(item: int) -> str:
    return str(item)
