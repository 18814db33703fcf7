"""Handlers that leave the block in which they run."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.from_thread
import pytest

import shoal
from batching.scenes import outcome, settle

FORMS = [
    *("coroutine", "steps", "open_batch", "nested", "nested_twice", "task", "isolated"),
    *(pytest.param(form, marks=pytest.mark.real_time) for form in ("plain", "plain_steps")),
]


class Leaving:
    """Handlers that leave the block ``self.block``."""

    block: Any

    async def leave(self) -> None:
        await self.block.__aexit__(None, None, None)

    async def coroutine(self, items: list[int]) -> list[int]:
        await self.leave()
        return items

    async def isolated(self, items: list[int]) -> list[int]:
        if len(items) > 1:
            raise ValueError
        return await self.coroutine(items)

    async def steps(self, items: list[int]) -> AsyncIterator[list[int]]:
        await self.leave()
        yield items

    async def open_batch(self, batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            await self.leave()
            await request.finish(1)

    async def task(self, items: list[int]) -> list[int]:
        errors: list[object] = []

        async def leave() -> None:
            errors.append(await outcome(self.leave()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave)
        (error,) = errors
        assert isinstance(error, Exception)
        raise error

    async def nested(self, items: list[int]) -> list[int]:
        async with shoal.Batcher(self.coroutine) as inner:
            return await inner.map(items)

    async def nested_twice(self, items: list[int]) -> list[int]:
        async with shoal.Batcher(self.nested, dedupe=True) as inner:
            return await inner.map(items)

    def plain(self, items: list[int]) -> list[int]:
        anyio.from_thread.run(self.leave)
        return items

    def plain_steps(self, items: list[int]) -> Iterator[list[int]]:
        anyio.from_thread.run(self.leave)
        yield items


@asynccontextmanager
async def opened(kind: str, form: str) -> AsyncGenerator[Any]:
    """Opens a handler that leaves the block, and yields its call."""
    leaving = Leaving()
    handler = getattr(leaving, form)
    options: Any = {"fill": "open"} if form == "open_batch" else {}
    options["isolate_errors"] = form == "isolated"
    if kind == "Batcher":
        leaving.block = shoal.Batcher(handler, **options)
        async with leaving.block as call:
            yield call
        return
    function = shoal.batch(**options)(handler)
    leaving.block = shoal.open_batchers(*([function] if kind == "named" else []))
    async with leaving.block:
        yield function


async def refused_at_once(call: Any, form: str) -> None:
    began_at = anyio.current_time()
    if form.endswith("steps"):
        async with call(1) as stream:
            error = await outcome(anext(stream))
    elif form == "isolated":
        error, _ = await call.map([1, 2], return_exceptions=True)
    else:
        error = await outcome(call(1))
    assert isinstance(error, shoal.errors.WouldDeadlock), error
    assert "a handler leaves the block of" in str(error)
    if not form.startswith("plain"):
        assert anyio.current_time() == began_at


@pytest.mark.parametrize("kind", ["Batcher", "named", "unnamed"])
@pytest.mark.parametrize("form", FORMS)
async def test_it_is_refused_at_once_and_the_block_stays_open(kind: str, form: str) -> None:
    async with opened(kind, form) as call:
        await refused_at_once(call, form)
        await refused_at_once(call, form)


async def test_a_handler_that_another_one_waits_for_does_not_wait_for_its_batcher_either() -> None:
    async def inner(items: list[int]) -> list[int]:
        await outer_batcher.aclose()
        return items

    async def outer(items: list[int]) -> list[int]:
        return await call_inner.map(items)

    outer_batcher = shoal.Batcher(outer)
    async with shoal.Batcher(inner) as call_inner, outer_batcher as call:
        began_at = anyio.current_time()
        assert await call(1) == 1
        assert anyio.current_time() == began_at
    assert outer_batcher.statistics().state == "closed"


async def test_a_handler_may_leave_the_block_of_another() -> None:
    async def same(items: list[int]) -> list[int]:
        return items

    other = shoal.Batcher(same)
    gate = anyio.Event()

    async def own_the_other() -> None:
        async with other:
            await gate.wait()

    async def handler(items: list[int]) -> list[int]:
        gate.set()
        await other.aclose()
        return items

    async with anyio.create_task_group() as tasks, shoal.Batcher(handler) as call:
        tasks.start_soon(own_the_other)
        await settle()
        assert await call(1) == 1
    assert other.statistics().state == "closed"
