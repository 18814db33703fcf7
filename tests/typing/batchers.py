"""Types of `Batcher` and its faces; checked by mypy and pyright, never run."""

from collections.abc import AsyncIterator
from typing import assert_type

import anyio

import shoal
from shoal import Batcher, ResultStream, StreamCall, UnaryCall
from shoal.statistics import ClosingCounts


async def coroutine(items: list[int]) -> list[str]:
    return [str(item) for item in items]


def plain(items: list[int]) -> list[str]:
    return [str(item) for item in items]


async def generator(items: list[int]) -> AsyncIterator[list[str]]:
    yield [str(item) for item in items]


async def two(left: list[int], right: list[str]) -> list[bytes]:
    return [b"" for _ in left]


class Callable:
    async def __call__(self, items: list[int]) -> list[str]:
        return [str(item) for item in items]


async def faces() -> None:
    assert_type(Batcher(coroutine), Batcher[UnaryCall[[int], str]])
    assert_type(Batcher(plain, max_batch_size=3), Batcher[UnaryCall[[int], str]])
    assert_type(Batcher(generator, name="tokens"), Batcher[StreamCall[[int], str]])
    assert_type(Batcher(Callable()), Batcher[UnaryCall[[int], str]])
    async with shoal.Batcher(coroutine) as call:
        assert_type(call, UnaryCall[[int], str])
        assert_type(await call(1), str)
        assert_type(await call.map([1]), list[str])
    async with shoal.Batcher(generator) as stream_call:
        assert_type(stream_call(1), ResultStream[str])
    async with shoal.Batcher(two) as call_two:
        assert_type(await call_two(1, "2"), bytes)


async def in_a_nursery() -> None:
    batcher = Batcher(coroutine)
    async with anyio.create_task_group() as tasks:
        await tasks.start(batcher.run)
        assert_type(await batcher.call(1), str)
        assert_type(await batcher.aclose(), ClosingCounts)


def root(x: float, digits: int = 3) -> float: ...  # type: ignore[empty-body]


async def roots(x: list[float], digits: list[int]) -> list[float | ValueError]: ...  # type: ignore[empty-body]


async def roots_in_steps(
    x: list[float], digits: list[int]
) -> AsyncIterator[list[float | ValueError]]:
    yield list(x)


async def signatures_give_the_type_of_results_of_which_some_are_errors() -> None:
    async with shoal.Batcher(roots, signature=root) as call:
        assert_type(await call(4.0), float)
        assert_type(await call(x=4.0, digits=2), float)
    async with shoal.Batcher(roots_in_steps, signature=root, max_batch_size=4) as steps:
        assert_type(steps(4.0), ResultStream[float])
    decorated = shoal.batch(signature=root)(roots)
    assert_type(await decorated(4.0), float)
    assert_type(shoal.batch(signature=root)(roots_in_steps)(4.0), ResultStream[float])
