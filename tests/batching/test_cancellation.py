"""Callers that leave: before, while, and in the tick in which they are batched and answered."""

import threading
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import LEFT, PENDING, Held, Recorder, launch, line_up, settle, using
from time_limits import HANG_S


async def test_a_caller_that_leaves_the_queue_is_never_seen_by_the_handler(recorder):
    batcher = shoal.Batcher(recorder, batch_wait_timeout_s=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await line_up(tasks, *map(call, range(4)))
        callers[0].leave()
        await callers[2].gone()
        assert batcher.statistics().queued == 2
    assert recorder.batches == [[1, 3]]
    assert [caller.outcome for caller in callers] == [LEFT, 1, LEFT, 3]
    assert batcher.statistics().cancelled == 2


async def test_when_all_in_the_queue_leave_no_batch_is_made(recorder: Recorder) -> None:
    batcher = shoal.Batcher(recorder, batch_wait_timeout_s=1)
    async with batcher as call:
        async with anyio.create_task_group() as tasks:
            for caller in await line_up(tasks, *map(call, range(4))):
                caller.leave()
        await anyio.sleep(10)
        assert recorder.batches == []
        assert await call(5) == 5
    assert batcher.statistics().batch_size.total == 1


async def test_a_caller_that_leaves_frees_its_place(held: Held) -> None:
    async with using(shoal.Batcher(held, max_batch_size=1, max_queued_requests=1)) as (call, tasks):
        callers = await launch(tasks, call(0))
        callers += await line_up(tasks, call(1))
        with pytest.raises(shoal.errors.Overloaded):
            await call(2)
        await callers[1].gone()
        callers += await line_up(tasks, call(3))
        held.gate.set()
    assert [caller.outcome for caller in callers] == [0, LEFT, 3]


async def test_a_caller_that_leaves_a_running_batch_does_not_touch_its_mates(held: Held) -> None:
    requests: list[Any] = []

    async def handler(items: list[int]) -> list[int]:
        requests.extend(shoal.current_batch().requests)
        return await held(items)

    batcher = shoal.Batcher(handler, batch_wait_timeout_s=1, max_batch_size=3)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await launch(tasks, *map(call, range(3)))
        await callers[1].gone()
        assert [caller.outcome for caller in callers] == [PENDING, LEFT, PENDING]
        assert [request.cancelled for request in requests] == [False, True, False]
        assert batcher.statistics().running == 2
        held.gate.set()
    assert [caller.outcome for caller in callers] == [0, LEFT, 2]
    assert held.passed == [[0, 1, 2]]
    statistics = batcher.statistics()
    assert (statistics.finished, statistics.cancelled) == (2, 1)


async def test_ru13_when_all_callers_have_left_the_handler_is_cancelled_and_its_slot_free(held):
    batcher = shoal.Batcher(held, batch_wait_timeout_s=1, max_batch_size=2)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await launch(tasks, *map(call, range(2)))
        await callers[0].gone()
        assert held.cancelled == []
        await callers[1].gone()
        assert held.cancelled == [[0, 1]]
        assert batcher.statistics().batches_running == 0
        held.gate.set()
        assert await call(5) == 5


async def test_without_cancel_abandoned_the_handler_finishes_for_nobody(caplog, held):
    async with using(shoal.Batcher(held, cancel_abandoned=False)) as (call, tasks):
        (caller,) = await launch(tasks, call(0))
        await caller.gone()
        assert held.cancelled == []
        await held.release()
        assert held.passed == [[0]]
    assert caplog.messages == []


@pytest.mark.parametrize("leave_first", [True, False])
@pytest.mark.parametrize("leavers", [1, 2])
async def test_callers_may_leave_in_the_tick_in_which_their_results_are_ready(leave_first, leavers):
    held = Held()
    batcher = shoal.Batcher(held, batch_wait_timeout_s=1, max_batch_size=2)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await launch(tasks, *map(call, range(2)))
        if not leave_first:
            held.gate.set()
        for caller in callers[:leavers]:
            caller.leave()
        await held.release()
        assert [caller.outcome for caller in callers[leavers:]] == [1] * (2 - leavers)
        assert await call(9) == 9
    statistics = batcher.statistics()
    assert statistics.finished + statistics.cancelled == 3
    assert (statistics.running, statistics.batches_running) == (0, 0)


async def test_a_caller_may_leave_in_the_tick_in_which_its_batch_is_formed() -> None:
    """Whoever is first, it is not both left and run, and the others are answered."""
    for leave_first in (True, False):
        held = Held()
        batcher = shoal.Batcher(held, max_batch_size=1)
        async with batcher as call, anyio.create_task_group() as tasks:
            callers = await launch(tasks, call(0))
            callers += await line_up(tasks, call(1), call(2))
            if leave_first:
                callers[1].leave()
            held.gate.set()
            if not leave_first:
                callers[1].leave()
            await settle()
            assert callers[0].outcome == 0
            assert callers[2].outcome == 2
        statistics = batcher.statistics()
        assert statistics.finished + statistics.cancelled == 3
        assert ([1] in held.passed) == (callers[1].outcome == 1)


async def test_who_leaves_in_the_tick_in_which_the_batch_fills_is_not_counted_in(recorder):
    """`batch_wait_timeout_s=None` waits until the batch is full, and one of them is not coming."""
    async with (
        shoal.Batcher(recorder, max_batch_size=3, batch_wait_timeout_s=None) as call,
        anyio.create_task_group() as tasks,
    ):
        callers = await launch(tasks, call(0), call(1))

        async def arrive() -> None:
            assert await call(2) == 2

        async def leave() -> None:
            callers[0].leave()

        tasks.start_soon(arrive)
        tasks.start_soon(leave)
        await settle()
        assert recorder.batches == []
        assert await call(3) == 3
    assert [sorted(batch) for batch in recorder.batches] == [[1, 2, 3]]


@pytest.mark.real_time
async def test_a_slot_is_given_back_only_when_its_thread_has_ended() -> None:
    started, gate = threading.Event(), threading.Event()
    seen: list[list[int]] = []

    def handler(items: list[int]) -> list[int]:
        seen.append(items)
        started.set()
        assert gate.wait(HANG_S)
        return items

    batcher = shoal.Batcher(handler)
    async with batcher as call, anyio.create_task_group() as tasks:
        (first,) = await line_up(tasks, call(0))
        assert await anyio.to_thread.run_sync(started.wait, 10)
        await first.gone()
        assert first.outcome == LEFT
        (second,) = await launch(tasks, call(1))
        statistics = batcher.statistics()
        assert (statistics.batches_running, statistics.queued) == (1, 1)
        assert seen == [[0]]
        gate.set()
    assert second.outcome == 1
    assert seen == [[0], [1]]
