"""Model objects, batchers for threads, and calls that try again."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, assert_type

import shoal
from shoal import Batcher, StreamCall, ThreadStream, UnaryCall


class Plain:
    def run(self, text: str, top_k: int = 1) -> float:
        return top_k / len(text)

    def run_batch(self, text: list[str], top_k: list[int]) -> list[float]:
        return [self.run(*pair) for pair in zip(text, top_k, strict=True)]


class Async:
    async def run(self, *, text: str) -> float:
        return len(text)

    async def run_batch(self, **lists: list[Any]) -> list[float]:
        return [len(text) for text in lists["text"]]


class NoRunBatch:
    def run(self, text: str) -> float:
        return len(text)


async def over_models() -> None:
    async with Batcher.over(Plain(), max_batch_size=4, name="plain") as call:
        assert_type(await call("text"), float)
        assert_type(await call(text="text", top_k=3), float)
        await call(top_k=3)  # type: ignore[call-arg]
        await call("text", top_k="3")  # type: ignore[arg-type]
    async with Batcher.over(Async()) as async_call:
        assert_type(await async_call(text="text"), float)
        await async_call("text")  # type: ignore[call-arg]
    Batcher.over(NoRunBatch())  # type: ignore[arg-type]
    Batcher.over(Plain(), batch_size=4)  # type: ignore[call-arg]


async def lengths(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


async def letters(texts: list[str]) -> AsyncIterator[list[str]]:
    yield texts


@shoal.batch
async def decorated(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


def in_threads() -> None:
    with shoal.blocking(Batcher.over(Plain())) as run:
        assert_type(run(text="text", top_k=3), float)
        assert_type(run.options(priority=1)(text="text"), float)
        run(top_k=3)  # type: ignore[call-arg]
    with shoal.blocking(Batcher(lengths), backend="asyncio") as call:
        assert_type(call("text"), int)
        assert_type(call.map(["text"]), list[int])
    with shoal.blocking(Batcher(letters)) as stream_call, stream_call("text") as stream:
        assert_type(stream, ThreadStream[str])
        assert_type(list(stream), list[str])


def any_batcher(
    unary: Batcher[UnaryCall[[str], int]], streams: Batcher[StreamCall[[str], int]]
) -> None:
    assert_type(shoal.blocking(unary), AbstractContextManager[shoal.BlockingCall[[str], int]])
    assert_type(
        shoal.blocking(streams), AbstractContextManager[shoal.BlockingStreamCall[[str], int]]
    )


async def tries_again(unary: UnaryCall[[str], int], streams: StreamCall[[str], int]) -> None:
    call = shoal.retrying(decorated, max_time_s=0.1, delay_s=0.01)
    assert_type(call, Callable[[str], Coroutine[Any, Any, int]])
    assert_type(await call("text"), int)
    assert_type(await shoal.retrying(unary.options(timeout_s=1))("text"), int)
    await call(1)  # type: ignore[arg-type]
    shoal.retrying(streams)  # type: ignore[arg-type]


def tokens(texts: list[str]) -> int:
    return sum(map(len, texts))


def cost() -> None:
    assert_type(shoal.of_list(tokens), Callable[[Any], float])
