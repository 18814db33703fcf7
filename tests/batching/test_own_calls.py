"""A handler that calls its own batcher is refused where it would wait for ever, and only there."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import outcome, settle

REFUSED = pytest.raises(shoal.errors.WouldDeadlock, match="max_concurrent_batches=2")


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


async def by_gather(call: Any) -> None:
    await asyncio.gather(call(0), call(0))


async def by_gather_of_gathers(call: Any) -> None:
    await asyncio.gather(asyncio.sleep(0), asyncio.gather(by_gather(call), asyncio.sleep(0)))


async def by_a_task_group(call: Any) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(call(0))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def by_a_task(call: Any) -> None:
    await asyncio.create_task(call(0))


async def by_a_shielded_task(call: Any) -> None:
    await asyncio.shield(call(0))


@pytest.mark.parametrize(
    "ask", [by_gather, by_gather_of_gathers, by_a_task_group, by_a_task, by_a_shielded_task]
)
def test_so_is_what_a_handler_of_asyncio_gathers(ask: Any) -> None:
    async def handler(items: list[int]) -> list[int]:
        if items[0] > 0:
            await ask(batcher.call)
        return items

    async def main() -> None:
        async with batcher as call:
            with REFUSED:
                await asyncio.wait_for(call(1), 5)
            assert await call(0) == 0

    batcher = shoal.Batcher(handler)
    asyncio.run(main())


def test_a_task_that_nobody_waits_for_may_call() -> None:
    tasks: list[asyncio.Task[int]] = []

    async def handler(items: list[int]) -> list[int]:
        if items[0] > 0:
            tasks.append(asyncio.create_task(batcher.call(0)))
            tasks.append(asyncio.ensure_future(gathered()))
            await asyncio.sleep(0.01)
        return items

    async def gathered() -> int:
        return sum(await asyncio.gather(batcher.call(0), batcher.call(0)))

    async def main() -> None:
        async with batcher as call:
            assert await call(1) == 1
            assert await asyncio.gather(*tasks) == [0, 0]

    batcher = shoal.Batcher(handler)
    asyncio.run(main())


async def test_so_is_a_task_of_a_handler_that_runs_again_for_a_part_of_its_batch() -> None:
    async def handler(items: list[int]) -> list[int]:
        if len(items) > 1:
            raise ValueError
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(batcher.call, 0)
        return items

    batcher = shoal.Batcher(handler, max_batch_size=2, isolate_errors=True)
    with anyio.fail_after(5):
        async with batcher as call:
            assert all(map(is_refusal, await call.map([1, 2], return_exceptions=True)))


@pytest.mark.real_time
async def test_so_is_a_thread_that_runs_again_for_a_part_of_its_batch() -> None:
    def handler(items: list[int]) -> list[int]:
        if len(items) > 1:
            raise ValueError
        return [batcher.call.from_thread(0)]

    batcher = shoal.Batcher(handler, max_batch_size=2, isolate_errors=True)
    with anyio.fail_after(5):
        async with batcher as call:
            results = await call.map([1, 2], return_exceptions=True)
    assert [type(result) for result in results] == [shoal.errors.WouldDeadlock] * 2
