"""Types of `Batcher` and its faces; checked by mypy and pyright, never run."""

from collections.abc import AsyncIterator
from typing import assert_type

import anyio

import shoal
from shoal import Batcher, ClosingCounts, ResultStream, StreamCall, UnaryCall


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
