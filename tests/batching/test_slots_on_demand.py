"""Slots are made when batches need them, so any number costs nothing, and so does no bound."""

from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import Held, Recorder, launch, line_up, outcomes, settle, using
from shoal.batching.running.slots import IDLE_SLOTS_KEPT

MANY = 10_000


@pytest.mark.parametrize("bound", [1, MANY, None])
async def test_opening_makes_one_slot_whatever_the_bound(bound: int | None) -> None:
    batcher = shoal.Batcher(Recorder(), max_concurrent_batches=bound)
    async with batcher:
        await settle()
        assert len(batcher.stacks()) == 1


@pytest.mark.parametrize("bound", [MANY, None])
@pytest.mark.parametrize("wait_s", [0, None])
async def test_as_many_batches_run_at_once_as_there_are(bound, wait_s):
    held = Held()
    batcher = shoal.Batcher(
        held, max_batch_size=1, max_concurrent_batches=bound, batch_wait_timeout_s=wait_s
    )
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await launch(tasks, *map(call, range(100)))
        assert batcher.statistics().batches_running == 100
        assert len(batcher.stacks()) == 101
        held.gate.set()
        await settle()
        assert [caller.outcome for caller in callers] == list(range(100))
        assert len(batcher.stacks()) <= IDLE_SLOTS_KEPT + 1
        await call(1)


async def test_a_batch_without_a_bound_on_their_number_still_waits_to_fill() -> None:
    handler = Recorder()
    batcher = shoal.Batcher(
        handler, max_batch_size=2, max_concurrent_batches=None, batch_wait_timeout_s=3
    )
    async with batcher as call:
        began = anyio.current_time()
        await outcomes(*map(call, range(3)))
        assert anyio.current_time() == began + 3
    assert sorted(map(len, handler.batches)) == [1, 2]


async def test_without_a_bound_a_queue_of_no_length_admits_all() -> None:
    held = Held()
    async with using(
        shoal.Batcher(held, max_batch_size=1, max_concurrent_batches=None, max_queued_requests=0)
    ) as (call, tasks):
        callers = await line_up(tasks, *map(call, range(50)))
        held.gate.set()
        await settle()
        assert [caller.outcome for caller in callers] == list(range(50))


async def test_the_bound_on_batches_can_be_lifted_and_set_again_while_they_run() -> None:
    held = Held()
    batcher = shoal.Batcher(held, max_batch_size=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        await launch(tasks, *map(call, range(20)))
        assert batcher.statistics().batches_running == 1
        batcher.configure(max_concurrent_batches=None)
        await settle()
        assert batcher.statistics().batches_running == 20
        batcher.configure(max_concurrent_batches=2)
        await launch(tasks, *map(call, range(3)))
        assert batcher.statistics().batches_running == 20
        held.gate.set()
        await settle()
        held.gate = anyio.Event()
        await launch(tasks, *map(call, range(5)))
        assert batcher.statistics().batches_running == 2
        held.gate.set()


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_batches_that_take_requests_while_they_run_need_no_bound_either(fill: Any) -> None:
    gate = anyio.Event()

    async def handler(batch: shoal.OpenBatch[int, int]) -> None:
        joined = await batch.join()
        await gate.wait()
        for request in joined:
            request.finish(request.item)
        batch.leave()

    batcher: Any = shoal.Batcher(handler, fill=fill, max_batch_size=1, max_concurrent_batches=None)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await launch(tasks, *map(call, range(20)))
        assert batcher.statistics().batches_running == 20
        gate.set()
        await settle()
        assert [caller.outcome for caller in callers] == list(range(20))


async def test_late_calls_are_refused_by_the_run_time_alone_where_there_is_no_bound() -> None:
    async def handler(items: list[int]) -> list[int]:
        await anyio.sleep(2)
        return items

    async with using(
        shoal.Batcher(handler, max_batch_size=1, max_concurrent_batches=None, refuse_late=True)
    ) as (call, tasks):
        for _ in range(5):
            await call(0)
        busy = await line_up(tasks, *map(call, range(10)))
        with pytest.raises(shoal.errors.Overloaded):
            await call.options(timeout_s=1)(0)
        assert await call.options(timeout_s=3)(7) == 7
        await settle()
        assert [caller.outcome for caller in busy] == list(range(10))


async def test_adaptive_batches_need_no_bound_on_their_number() -> None:
    async def handler(items: list[int]) -> list[int]:
        await anyio.sleep(0.01)
        return items

    target = shoal.LatencyTarget(p99_s=0.1)
    batcher = shoal.Batcher(handler, max_batch_size=8, max_concurrent_batches=None, adaptive=target)
    async with batcher as call:
        for _ in range(20):
            assert await call.map(range(30)) == list(range(30))
        assert 1 <= batcher.statistics().batch_size_limit <= 8  # and so it is a number
