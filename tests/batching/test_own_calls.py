"""A handler that calls its own batcher is refused where it would wait for ever, and only there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

import shoal
from batching.scenes import outcome, settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

REFUSED = pytest.raises(RuntimeError, match="max_concurrent_batches=2")


def is_refusal(error: BaseException) -> bool:
    """Says whether a group of errors, of any depth, is of refused calls alone."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_refusal(part) for part in error.exceptions)
    return "max_concurrent_batches=2" in str(error)


@pytest.mark.parametrize("way", ["call", "map", "options"])
async def test_a_handler_of_the_only_slot_is_refused_at_once(way: str) -> None:
    async def handler(items: list[int]) -> list[int]:
        if items[0] > 0:
            smaller = items[0] - 1
            if way == "map":
                await batcher.call.map([smaller])
            elif way == "options":
                await batcher.call.options(priority=1)(smaller)
            else:
                await batcher.call(smaller)
        return items

    batcher = shoal.Batcher(handler)
    with anyio.fail_after(5):
        async with batcher as call:
            with REFUSED:
                await call(1)
            assert await call(0) == 0


@pytest.mark.parametrize("depth", [1, 2])
async def test_so_is_a_task_that_the_handler_waits_for(depth: int) -> None:
    async def ask(levels: int) -> None:
        if levels == 0:
            await batcher.call(0)
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, levels - 1)

    async def handler(items: list[int]) -> list[int]:
        if items[0] > 0:
            with pytest.raises(ExceptionGroup) as caught:
                await ask(items[0])
            assert is_refusal(caught.value)
        return items

    batcher = shoal.Batcher(handler)
    with anyio.fail_after(5):
        async with batcher as call:
            assert await call(depth) == depth


async def test_so_is_a_generator_handler() -> None:
    async def handler(items: list[int]) -> AsyncIterator[list[int]]:
        if items[0] > 0:
            async with batcher.call(items[0] - 1) as stream:
                await anext(stream)
        yield items

    batcher = shoal.Batcher(handler)
    with anyio.fail_after(5):
        async with batcher as call:
            with REFUSED:
                async with call(1) as stream:
                    await anext(stream)


@pytest.mark.real_time
async def test_so_is_a_handler_in_a_thread() -> None:
    def handler(items: list[int]) -> list[int]:
        return [batcher.call.from_thread(item - 1) if item > 0 else item for item in items]

    batcher = shoal.Batcher(handler)
    with anyio.fail_after(5):
        async with batcher as call:
            with REFUSED:
                await call(1)


@pytest.mark.parametrize("slots", [2, None])
async def test_with_another_slot_it_is_answered(slots: int | None) -> None:
    async def handler(items: list[int]) -> list[int]:
        return [await batcher.call(item - 1) if item > 0 else 7 for item in items]

    batcher = shoal.Batcher(handler, max_concurrent_batches=slots)
    async with batcher as call:
        assert await call(1) == 7


async def test_a_task_that_outlives_the_handler_may_call() -> None:
    got: list[Any] = []

    async def later() -> None:
        got.append(await outcome(batcher.call(1)))

    async def handler(items: list[int]) -> list[int]:
        if items[0] == 0:
            tasks.start_soon(later)
            await settle()
        return items

    batcher = shoal.Batcher(handler)
    async with batcher as call, anyio.create_task_group() as tasks:
        assert await call(0) == 0
    assert got == [1]


async def test_another_batcher_may_be_called() -> None:
    async def inner(items: list[int]) -> list[int]:
        return [-item for item in items]

    async def outer(items: list[int]) -> list[int]:
        return await batcher.call.map(items)

    batcher = shoal.Batcher(inner)
    async with batcher, shoal.Batcher(outer) as call:
        assert await call(1) == -1
