"""Knowing: what a handler can ask about its batch, and what an owner can ask about a batcher."""

import dataclasses
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import Held, Recorder, launch, line_up, outcomes, plugged, settle


async def about(items: list[Any]) -> list[Any]:
    batch = shoal.current_batch()
    return [(batch.id, batch.size, batch.reason, r.item, r.metadata) for r in batch.requests]


async def test_the_handler_knows_its_batch_and_its_requests_in_order() -> None:
    async with (
        shoal.Batcher(about, max_batch_size=2, batch_wait_timeout_s=1) as call,
        anyio.create_task_group() as tasks,
    ):
        callers = await line_up(
            tasks, call("a"), call.options(metadata={"user": 1})("b"), call("c")
        )
    assert [caller.outcome for caller in callers] == [
        (1, 2, "full", "a", {}),
        (1, 2, "full", "b", {"user": 1}),
        (2, 1, "timer", "c", {}),
    ]


async def test_the_reason_says_why_the_batch_was_dispatched() -> None:
    batcher = shoal.Batcher(about, max_batch_size=2, batch_wait_timeout_s=1)
    async with anyio.create_task_group() as tasks:
        call = await tasks.start(batcher.run)
        (timer,) = await line_up(tasks, call("timer"))
        await anyio.sleep(2)
        (flush,) = await line_up(tasks, call("flush"))
        batcher.flush()
        await settle()
        full = await outcomes(call("full"), call("full"))
        (drain,) = await line_up(tasks, call("drain"))
        await batcher.aclose()
    for got in (timer.outcome, flush.outcome, *full, drain.outcome):
        assert got[2] == got[3]
        assert isinstance(got[2], shoal.DispatchReason)
    counts = batcher.statistics().batches
    assert {reason: count for reason, count in counts.items() if count} == {
        "timer": 1,
        "flush": 1,
        "full": 1,
        "drain": 1,
    }


@pytest.mark.real_time
async def test_every_kind_of_handler_knows_its_batch() -> None:
    def plain(items: list[int]) -> list[int]:
        return [shoal.current_batch().size] * len(items)

    async def steps(items: list[int]) -> AsyncIterator[list[int]]:
        yield [shoal.current_batch().size] * len(items)
        await anyio.lowlevel.checkpoint()
        yield [shoal.current_batch().size] * len(items)

    def plain_steps(items: list[int]) -> Iterator[list[int]]:
        yield [shoal.current_batch().size] * len(items)
        yield [shoal.current_batch().size] * len(items)

    async def in_a_task(items: list[int]) -> list[int]:
        sizes: list[int] = []

        async def note() -> None:
            sizes.append(shoal.current_batch().size)

        async with anyio.create_task_group() as tasks:
            for _ in items:
                tasks.start_soon(note)
        return sizes

    async with shoal.Batcher(plain) as call:
        assert await call(1) == 1
    async with shoal.Batcher(in_a_task) as call_in_a_task:
        assert await call_in_a_task(1) == 1
    for handler in (steps, plain_steps):
        batcher: Any = shoal.Batcher(handler)
        async with batcher as stream:
            assert [size async for size in stream(1)] == [1, 1]


async def test_two_batches_at_once_know_each_their_own() -> None:
    gate = anyio.Event()

    async def handler(items: list[str]) -> list[Any]:
        await gate.wait()
        return [request.item for request in shoal.current_batch().requests]

    batcher = shoal.Batcher(handler, max_batch_size=1, max_concurrent_batches=2)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await launch(tasks, call("a"), call("b"))
        gate.set()
    assert [caller.outcome for caller in callers] == ["a", "b"]


async def test_outside_a_handler_there_is_no_batch() -> None:
    with pytest.raises(RuntimeError, match="no batch is running here"):
        shoal.current_batch()
    async with shoal.Batcher(Recorder()) as call:
        await call(1)
        with pytest.raises(RuntimeError):
            shoal.current_batch()


async def test_a_part_of_an_isolated_batch_knows_the_requests_it_was_given() -> None:
    async def handler(items: list[int]) -> list[Any]:
        assert [request.item for request in shoal.current_batch().requests] == items
        if 0 in items:
            raise ValueError
        return items

    async with shoal.Batcher(handler, isolate_errors=True) as call:
        got = await call.map(range(4), return_exceptions=True)
    assert [type(one) for one in got] == [ValueError, int, int, int]


async def test_statistics_are_a_frozen_snapshot() -> None:
    batcher = shoal.Batcher(Recorder(), name="of cats")
    before = batcher.statistics()
    async with batcher as call:
        await call(1)
        during = batcher.statistics()
        assert batcher.is_alive
    assert not batcher.is_alive
    assert batcher.failure is None
    assert (before.name, before.state, before.finished) == ("of cats", "new", 0)
    assert (during.state, during.finished) == ("open", 1)
    assert batcher.statistics().state == "closed"
    with pytest.raises(dataclasses.FrozenInstanceError):
        during.finished = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        during.batches[shoal.DispatchReason.FULL] = 3  # type: ignore[index]


async def test_statistics_say_where_every_request_is() -> None:
    held = Held(lambda item: ValueError() if item == 1 else item)
    batcher = shoal.Batcher(held, max_batch_size=3, max_queued_requests=1, overload="wait")
    async with batcher as call, anyio.create_task_group() as tasks:
        batcher.configure(batch_wait_timeout_s=100)
        callers = await launch(tasks, *map(call, range(5)))
        now = batcher.statistics()
        assert (now.running, now.batches_running, now.queued, now.parked) == (3, 1, 1, 1)
        callers[0].leave()
        await settle()
        assert batcher.statistics().running == 2
        held.gate.set()
    then = batcher.statistics()
    assert (then.running, then.batches_running, then.queued, then.parked) == (0, 0, 0, 0)
    assert (then.finished, then.failed, then.cancelled) == (3, 1, 1)
    assert then.batch_size.total == 2
    assert then.batch_size.sum == 5


async def test_the_scheduling_capacity_is_what_would_start_at_once() -> None:
    held = Held()
    batcher = shoal.Batcher(
        held, max_batch_size=4, max_concurrent_batches=2, batch_wait_timeout_s=None
    )
    async with batcher as call, anyio.create_task_group() as tasks:
        assert batcher.scheduling_capacity() == 8
        await line_up(tasks, *map(call, range(3)))
        assert batcher.scheduling_capacity() == 5
        await launch(tasks, call(3))
        assert batcher.scheduling_capacity() == 4
        await launch(tasks, *map(call, range(6)))
        assert batcher.scheduling_capacity() == batcher.statistics().scheduling_capacity == 0
        held.gate.set()
        batcher.flush()
    assert batcher.scheduling_capacity() == 0
    unbounded = shoal.Batcher(held, max_concurrent_batches=None)
    async with unbounded:
        assert unbounded.scheduling_capacity() == math.inf


async def test_wait_and_run_times_are_measured_in_seconds() -> None:
    async def handler(items: list[int]) -> list[int]:
        await anyio.sleep(3)
        return items

    batcher = shoal.Batcher(handler, batch_wait_timeout_s=2)
    async with batcher as call:
        await outcomes(call(1), call(2))
        await call(3)
    statistics = batcher.statistics()
    # Each request's wait, and each batch's run.
    assert statistics.wait_s.sum == pytest.approx(6)
    assert statistics.run_s.sum == pytest.approx(6)
    assert (statistics.wait_s.total, statistics.run_s.total) == (3, 2)
    assert sum(statistics.run_s.counts) == 2
    assert len(statistics.run_s.counts) == len(statistics.run_s.bounds) + 1


async def test_a_batcher_says_where_its_batches_are() -> None:
    held = Held()
    batcher = shoal.Batcher(held)
    assert batcher.stacks() == []
    async with plugged(held, batcher, 1):
        (stack,) = batcher.stacks()
        assert "await self.gate.wait()" in stack
