"""Handlers that block: a call of their own batcher that would wait for ever is refused.

One that holds up the event loop is named in the log.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import outcome, read_all
from batching.scenes import opening, settle
from conformance.replica_scenes import served
from shoal.batching.handlers import handler

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

    async with opening(handler) as (batcher, call, tasks):
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


class Clock(threading.local):
    """The clock by which holds are measured; only code that blocks a thread moves it there."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def block(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(handler, "perf_counter", clock)
    return clock


def held(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "held the event loop" in line]


@pytest.mark.parametrize("form", ["unary", "steps", "open", "error"])
async def test_a_handler_that_blocks_is_named_with_its_time(form, clock, caplog):
    async def unary(items: list[int]) -> list[int]:
        await anyio.sleep(60)
        clock.block(2.3)
        return items

    async def steps(items: list[int]) -> AsyncIterator[list[int]]:
        yield items
        clock.block(2.3)
        yield items

    async def by_request(batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            clock.block(2.3)
            request.finish(request.item)

    async def fails(items: list[int]) -> list[int]:
        clock.block(2.3)
        raise ValueError

    handler: Any = {"unary": unary, "steps": steps, "open": by_request, "error": fails}[form]
    fill: Any = "open" if form == "open" else "closed"
    async with opening(handler, name="embed", fill=fill) as (_, call, tasks):
        if form == "steps":
            await read_all(tasks, call(1))
        else:
            await outcome(call(1))
    (line,) = held(caplog)
    assert line == (
        "the handler embed held the event loop for 2.3 s; declare it with def, or await the slow "
        "part: await anyio.to_thread.run_sync(function)"
    )


async def test_it_is_named_at_most_once_a_minute(clock, caplog):
    async def blocks(items: list[float]) -> list[float]:
        clock.block(sum(items))
        return items

    async with shoal.Batcher(blocks) as call, shoal.Batcher(blocks, name="other") as call_other:
        for seconds in (2, 3, 4, 0.5):
            await call(seconds)
        assert len(held(caplog)) == 1
        await call_other(5)
        assert len(held(caplog)) == 2
        clock.block(60)
        await call(1.5)
    assert ["2.0 s" in held(caplog)[0], "1.5 s" in held(caplog)[2]] == [True, True]


async def test_a_handler_that_waits_or_takes_little_is_not_named(clock, caplog):
    async def waits(items: list[int]) -> list[int]:
        for _ in range(9):
            clock.block(0.9)
            await anyio.sleep(100)
        return items

    async with shoal.Batcher(waits) as call:
        await call(1)
    assert held(caplog) == []


@pytest.mark.real_time
async def test_a_plain_handler_holds_up_nothing(clock, caplog):
    def blocks(items: list[int]) -> list[int]:
        clock.block(3)
        return items

    async with shoal.Batcher(blocks) as call:
        await call(1)
    assert held(caplog) == []


@pytest.mark.real_time
async def test_served_code_and_its_hooks_are_named(clock, caplog):
    class Model:
        async def warm_up(self) -> None:
            clock.block(20)

        async def __call__(self, item: int) -> int:
            clock.block(2)
            return item

    async with served(Model) as handle:
        assert await handle.call(1) == 1
    warm_up, call = held(caplog)
    assert warm_up.startswith("warm_up() of only#0 held the event loop for 20.0 s")
    assert call.startswith("the handler only held the event loop for 2.0 s")
