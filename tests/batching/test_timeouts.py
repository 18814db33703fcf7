"""Callers that leave: before, while, and in the tick in which they are batched and answered.

Time: the caller's cancel scope, deadlines of a call, and the time that a handler may take.
"""

import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, PENDING, launch, line_up, outcome, read_all
from batching.scenes import Held, Recorder, Refusing, Steps, opening, settle
from time_limits import HANG_S


async def test_a_caller_that_leaves_the_queue_is_never_seen_by_the_handler(recorder):
    async with opening(recorder, batch_wait_timeout_s=1) as (batcher, call, tasks):
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
    async with opening(held, max_batch_size=1, max_queued_requests=1) as (_, call, tasks):
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

    async with opening(handler, batch_wait_timeout_s=1, max_batch_size=3) as (batcher, call, tasks):
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
    async with opening(held, batch_wait_timeout_s=1, max_batch_size=2) as (batcher, call, tasks):
        callers = await launch(tasks, *map(call, range(2)))
        await callers[0].gone()
        assert held.cancelled == []
        await callers[1].gone()
        assert held.cancelled == [[0, 1]]
        assert batcher.statistics().batches_running == 0
        held.gate.set()
        assert await call(5) == 5


async def test_without_cancel_abandoned_the_handler_finishes_for_nobody(caplog, held):
    async with opening(held, cancel_abandoned=False) as (_, call, tasks):
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
    async with opening(held, batch_wait_timeout_s=1, max_batch_size=2) as (batcher, call, tasks):
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
        async with opening(held, max_batch_size=1) as (batcher, call, tasks):
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
    async with opening(recorder, max_batch_size=3, batch_wait_timeout_s=None) as (_, call, tasks):
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

    async with opening(handler) as (batcher, call, tasks):
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


async def test_a_time_out_is_the_callers_cancel_scope(held: Held) -> None:
    async with shoal.Batcher(held) as call:
        with anyio.move_on_after(5) as scope:
            await call.options(timeout_s=9)(1)
        assert scope.cancelled_caught
        with pytest.raises(TimeoutError):
            with anyio.fail_after(5):
                await call(2)
    assert held.cancelled == [[1], [2]]


@pytest.mark.parametrize("way", ["request_timeout_s", "timeout_s"])
async def test_a_deadline_ends_a_call_in_a_handler(way: str, held: Held) -> None:
    options: Any = {"request_timeout_s": 5} if way == "request_timeout_s" else {}
    batcher = shoal.Batcher(held, **options)
    async with batcher as call:
        bound = call.options(timeout_s=5) if way == "timeout_s" else call
        with pytest.raises(shoal.errors.DeadlineExceeded):
            await bound(1)
        assert anyio.current_time() == pytest.approx(5)
        await settle()
        assert held.cancelled == [[1]]
    statistics = batcher.statistics()
    assert (statistics.expired, statistics.cancelled, statistics.failed) == (1, 0, 0)


async def test_a_deadline_ends_a_call_in_the_queue_and_the_handler_never_sees_it(held):
    async with shoal.Batcher(held, max_batch_size=1) as call, anyio.create_task_group() as tasks:
        (first,) = await launch(tasks, call(0))
        (second,) = await line_up(tasks, call.options(timeout_s=5)(1))
        await anyio.sleep(6)
        assert isinstance(second.outcome, shoal.errors.DeadlineExceeded)
        held.gate.set()
    assert first.outcome == 0
    assert held.batches == [[0]]


@pytest.mark.parametrize(("timeout_s", "ends"), [(3, 3), (9, 5)])
async def test_the_shorter_of_both_limits_wins(timeout_s: float, ends: float) -> None:
    async with shoal.Batcher(Held(), request_timeout_s=5) as call:
        with pytest.raises(shoal.errors.DeadlineExceeded):
            await call.options(timeout_s=timeout_s)(1)
        assert anyio.current_time() == pytest.approx(ends)


@pytest.mark.parametrize("options", [{}, {"bucket_by": lambda item: item}], ids=["alike", "keys"])
async def test_a_deadline_of_0_never_reaches_the_handler(options: Any, recorder: Recorder) -> None:
    async with shoal.Batcher(recorder, **options) as call:
        for late in (call.options(timeout_s=0)(1), call.options(timeout_s=0).map([1])):
            with pytest.raises(shoal.errors.DeadlineExceeded, match="was made after its deadline"):
                await late
        await settle()
    assert recorder.batches == []


async def test_an_answer_in_the_tick_of_the_deadline_is_counted_once() -> None:
    batcher = shoal.Batcher(Refusing(run_s=5))
    async with batcher as call:
        for _ in range(20):  # either may come first
            got = await outcome(call.options(timeout_s=5)(1))
            assert got == 1 or isinstance(got, shoal.errors.DeadlineExceeded)
        statistics = batcher.statistics()
    assert statistics.cancelled == 0
    assert statistics.finished + statistics.expired == 20


async def test_a_deadline_ends_a_stream_that_waits(steps: Steps) -> None:
    async with opening(steps.handler) as (batcher, call, tasks):
        (reader,) = await read_all(tasks, call.options(timeout_s=5)("a"))
        steps.step(1)
        await anyio.sleep(6)
        assert reader.items == [1]
        assert isinstance(reader.outcome, shoal.errors.DeadlineExceeded)
        assert steps.closed
    assert batcher.statistics().expired == 1


async def test_a_deadline_ends_a_stream_whose_items_keep_coming() -> None:
    async def handler(items: list[int]) -> AsyncIterator[list[int]]:
        for number in range(100):
            yield [number] * len(items)

    async with shoal.Batcher(handler) as call, call.options(timeout_s=5)("a") as stream:
        got = []
        with pytest.raises(shoal.errors.DeadlineExceeded):  # noqa: PT012
            while True:
                got.append(await anext(stream))
                await anyio.sleep(1)
        assert len(got) < 30


async def test_a_deadline_ends_a_stream_in_the_queue_that_nobody_reads(steps: Steps) -> None:
    batcher = shoal.Batcher(steps.handler, max_batch_size=1)
    async with batcher as call, call("a"):
        await settle()
        async with call.options(timeout_s=5)("b"):
            await anyio.sleep(6)
            assert batcher.statistics().queued == 0


@pytest.mark.parametrize("streams", [False, True])
async def test_a_handler_that_takes_too_long_is_cancelled_and_fails_its_batch(streams, held):
    async def generator(items: list[Any]) -> AsyncIterator[list[Any]]:
        yield [0] * len(items)
        await held(items)

    handler: Any = generator if streams else held
    options: Any = {"handler_timeout_s": 5, "max_batch_size": 2, "batch_wait_timeout_s": 1}
    batcher: Any = shoal.Batcher(handler, **options)
    async with batcher as call:
        async with anyio.create_task_group() as tasks:
            if streams:
                ended = await read_all(tasks, call(0), call(1))
            else:
                ended = await line_up(tasks, call(0), call(1))
        assert anyio.current_time() == pytest.approx(5)
        errors = [one.outcome for one in ended]
        assert [type(error) for error in errors] == [shoal.errors.HandlerTimeout] * 2
        assert errors[0] is not errors[1]
        assert "5" in str(errors[0])
        assert held.cancelled == [[0, 1]]
        assert batcher.statistics().batches_running == 0
        assert batcher.statistics().failed == 2
        held.gate.set()
        if not streams:  # the slot serves on
            assert await call(5) == 5


async def test_a_handler_that_ends_in_time_is_left_alone() -> None:
    async def handler(items: list[float]) -> list[float]:
        await anyio.sleep(items[0])
        return items

    async with shoal.Batcher(handler, handler_timeout_s=5) as call:
        for seconds in (4, 4, 4):
            assert await call(seconds) == seconds
        await anyio.sleep(10)
        assert await call(1) == 1


@pytest.mark.real_time
@pytest.mark.parametrize("isolate_errors", [False, True])
async def test_a_thread_that_takes_too_long_fails_its_callers_at_once_but_keeps_its_slot(
    isolate_errors: bool,
) -> None:
    started, gate = threading.Event(), threading.Event()

    def handler(items: list[int]) -> list[int]:
        started.set()
        assert gate.wait(HANG_S)
        return items

    batcher = shoal.Batcher(handler, handler_timeout_s=0.01, isolate_errors=isolate_errors)
    async with batcher as call, anyio.create_task_group() as tasks:
        got = await outcome(call(0))
        assert isinstance(got, shoal.errors.HandlerTimeout)
        (late,) = await launch(tasks, call(1))
        statistics = batcher.statistics()
        assert (statistics.batches_running, statistics.queued) == (1, 1)
        batcher.configure(handler_timeout_s=None)
        gate.set()
    assert late.outcome == 1
    assert (batcher.statistics().failed, batcher.statistics().finished) == (1, 1)


async def test_leaving_and_the_time_out_of_the_handler_may_come_in_one_tick(held: Held) -> None:
    batcher = shoal.Batcher(held, handler_timeout_s=5, max_batch_size=2, batch_wait_timeout_s=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await launch(tasks, call(0), call(1))
        await anyio.sleep(5)
        await callers[0].gone()
        assert callers[0].outcome == LEFT or isinstance(
            callers[0].outcome, shoal.errors.HandlerTimeout
        )
        assert isinstance(callers[1].outcome, shoal.errors.HandlerTimeout)
    statistics = batcher.statistics()
    assert statistics.failed + statistics.cancelled == 2


@pytest.mark.parametrize("fill", ["closed", "open"])
async def test_callers_are_told_in_time_though_clean_up_is_shielded(fill: Any) -> None:
    running = 0

    async def cleans_up() -> None:
        nonlocal running
        running += 1
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(7)
            running -= 1

    async def handler(items: list[Any]) -> list[Any]:
        if items[0] == "slow":
            await cleans_up()
        return items

    async def opened(batch: Any) -> None:
        async for request in batch:
            if request.item == "slow":
                await cleans_up()
            request.finish(request.item)

    options: Any = {"handler_timeout_s": 2, "max_batch_size": 1}
    batcher: Any = shoal.Batcher(opened if fill == "open" else handler, fill=fill, **options)
    async with batcher as call:
        started = anyio.current_time()
        assert isinstance(await outcome(call("slow")), shoal.errors.HandlerTimeout)
        assert anyio.current_time() - started == pytest.approx(2)
        assert (running, batcher.statistics().batches_running) == (1, 1)
        assert await call("next") == "next"  # as soon as the slot is free
        assert anyio.current_time() - started == pytest.approx(9)
        assert running == 0


@pytest.mark.real_time
async def test_a_call_that_expires_before_its_slot_has_run_never_reaches_the_handler() -> None:
    seen: list[int] = []

    async def handler(items: list[int]) -> list[int]:
        seen.extend(items)
        return items

    outcomes: list[int | None] = []
    held: list[int] = []

    async def makes_the_call(number: int) -> None:
        try:
            outcomes.append(await batcher.call.options(timeout_s=0.01)(number))
        except shoal.errors.DeadlineExceeded:
            outcomes.append(None)

    async def holds_the_loop(number: int) -> None:
        if batcher.statistics().queued:  # else it runs first: on trio the order is random
            held.append(number)
            time.sleep(0.05)  # noqa: ASYNC251 - the slot is to run late

    batcher = shoal.Batcher(handler)
    async with batcher:
        while not held:
            number = len(outcomes)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(makes_the_call, number)
                tasks.start_soon(holds_the_loop, number)
    assert outcomes == [*range(held[0]), None]
    assert seen == list(range(held[0]))


@pytest.mark.parametrize("fill", ["closed", "open", "continuous"])
async def test_a_call_that_is_late_when_it_is_made_fails_before_it_waits(fill: Any) -> None:
    seen: list[int] = []

    async def closed(items: list[int]) -> list[int]:
        seen.extend(items)
        return items

    async def opened(batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            seen.append(request.item)
            request.finish(request.item)

    async with shoal.Batcher(closed if fill == "closed" else opened, fill=fill) as call:
        assert await call(1) == 1
        with pytest.raises(shoal.errors.DeadlineExceeded):
            await call.options(timeout_s=0)(2)
        assert await call(3) == 3
    assert seen == [1, 3]
