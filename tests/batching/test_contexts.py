"""Contexts: the handler runs in the batcher's, and each request keeps its caller's."""

from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import outcomes, settle

user: ContextVar[str] = ContextVar("user", default="nobody")


async def coroutine(items: list[Any]) -> list[Any]:
    return [(user.get(), r.context[user]) for r in shoal.current_batch().requests]


def plain(items: list[Any]) -> list[Any]:
    return [(user.get(), r.context[user]) for r in shoal.current_batch().requests]


@pytest.mark.real_time
@pytest.mark.parametrize("handler", [coroutine, plain])
async def test_each_request_keeps_its_callers_context(handler: Any) -> None:
    async def caller(name: str) -> Any:
        user.set(name)
        return await call(1)

    user.set("owner")
    async with shoal.Batcher(handler, max_batch_size=3, batch_wait_timeout_s=None) as call:
        user.set("main")
        got = await outcomes(*map(caller, "abc"))
        assert user.get() == "main"
    assert got == [("owner", "a"), ("owner", "b"), ("owner", "c")]


async def test_a_stream_and_a_map_keep_their_callers_context() -> None:
    async def steps(items: list[Any]) -> AsyncIterator[list[Any]]:
        yield await coroutine(items)

    user.set("owner")
    async with shoal.Batcher(steps) as stream, shoal.Batcher(coroutine) as call:
        user.set("caller")
        assert [item async for item in stream(1)] == [("owner", "caller")]
        assert await call.map([1, 2]) == [("owner", "caller")] * 2


async def test_what_a_caller_changes_after_the_call_does_not_show() -> None:
    contexts: list[Any] = []
    gate = anyio.Event()

    async def handler(items: list[int]) -> list[int]:
        await gate.wait()
        contexts.extend(request.context for request in shoal.current_batch().requests)
        return items

    async with shoal.Batcher(handler) as call:
        user.set("before")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, 1)
            await settle()
            user.set("after")
            gate.set()
    assert [context[user] for context in contexts] == ["before"]


async def set_in_steps(items: list[int]) -> AsyncIterator[list[Any]]:
    user.set("set in the first step")
    yield [user.get()] * len(items)
    yield [user.get()] * len(items)


def set_in_plain_steps(items: list[int]) -> Iterator[list[Any]]:
    user.set("set in the first step")
    yield [user.get()] * len(items)
    yield [user.get()] * len(items)


@pytest.mark.real_time
@pytest.mark.parametrize("handler", [set_in_steps, set_in_plain_steps])
async def test_the_steps_of_a_generator_share_one_context(handler: Any) -> None:
    async with shoal.Batcher(handler) as call:
        assert [item async for item in call(1)] == ["set in the first step"] * 2


def seen(item: str) -> str:
    before = user.get()
    user.set(item)
    return before


async def sets(items: list[str]) -> list[str]:
    return [seen(items[0])] * len(items)


async def sets_in_steps(items: list[str]) -> AsyncIterator[list[str]]:
    yield [seen(items[0])] * len(items)


async def sets_for_each(batch: shoal.OpenBatch[str, str]) -> None:
    before = seen("a batch")
    async for request in batch:
        request.finish(before)


@pytest.mark.parametrize(
    ("handler", "fill"), [(sets, "closed"), (sets_in_steps, "closed"), (sets_for_each, "open")]
)
async def test_what_a_handler_sets_ends_with_its_batch(handler: Any, fill: Any) -> None:
    async with shoal.Batcher(handler, fill=fill) as call:
        for name in "abc":
            made = call(name)
            got = [item async for item in made] if handler is sets_in_steps else [await made]
            assert got == ["nobody"]
    assert user.get() == "nobody"


async def test_what_a_handler_sets_ends_before_a_failed_batch_runs_again() -> None:
    async def handler(items: list[str]) -> list[str]:
        before = seen(",".join(items))
        if "bad" in items:
            raise ValueError(before)
        return [before] * len(items)

    async with shoal.Batcher(handler, max_batch_size=4, isolate_errors=True) as call:
        got = await call.map(["a", "b", "bad", "c"], return_exceptions=True)
    assert [str(each) for each in got] == ["nobody"] * 4
