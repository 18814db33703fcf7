"""Closing: intake stops, the queue is run at once, and every caller ends one way or the other."""

import logging
import threading
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, PENDING, Caller, launch, line_up, read_all
from batching.scenes import Held, Recorder, Steps, opening, running, settle
from time_limits import HANG_S


async def test_closing_runs_what_is_in_the_queue_without_waiting_out_the_window(recorder):
    batcher = shoal.Batcher(recorder, batch_wait_timeout_s=None, max_batch_size=2)
    async with running(batcher) as (_, call, tasks):
        callers = await launch(tasks, *map(call, range(3)))
        counts = await batcher.aclose()
        assert anyio.current_time() == 0
    assert [caller.outcome for caller in callers] == [0, 1, 2]
    assert recorder.batches == [[0, 1], [2]]
    assert counts == shoal.statistics.ClosingCounts(finished=1, failed=0, cancelled=0)


async def test_closing_runs_the_parked_as_well(held: Held) -> None:
    batcher = shoal.Batcher(held, max_batch_size=1, max_queued_requests=1, overload="wait")
    async with anyio.create_task_group() as tasks:
        call = await tasks.start(batcher.run)
        callers = await launch(tasks, *map(call, range(4)))
        tasks.start_soon(batcher.aclose)
        await settle()
        held.gate.set()
    assert [caller.outcome for caller in callers] == [0, 1, 2, 3]


async def test_closing_refuses_further_calls(held: Held) -> None:
    async with running(held) as (batcher, call, tasks):
        (caller,) = await launch(tasks, call(0))
        tasks.start_soon(batcher.aclose)
        await settle()
        assert batcher.statistics().state == "draining"
        with pytest.raises(shoal.errors.BatcherClosed):
            await call(1)
        with pytest.raises(shoal.errors.BatcherClosed):
            await call.map([1, 2])
        held.gate.set()
    assert caller.outcome == 0
    assert not batcher.is_alive
    with pytest.raises(shoal.errors.BatcherClosed, match="closed"):
        await call(1)


@pytest.mark.parametrize("grace_s", [0, 5])
async def test_after_the_grace_everybody_fails_and_the_handler_is_cancelled(grace_s, caplog, held):
    caplog.set_level(logging.INFO, logger="shoal")
    batcher = shoal.Batcher(held, max_batch_size=2, graceful_shutdown_timeout_s=grace_s)
    async with anyio.create_task_group() as tasks:
        call = await tasks.start(batcher.run)
        callers = await launch(tasks, *map(call, range(5)))
        counts = await batcher.aclose()
        assert anyio.current_time() == pytest.approx(grace_s)
    errors = [caller.outcome for caller in callers]
    assert [type(error) for error in errors] == [shoal.errors.BatcherClosed] * 5
    assert len(set(map(id, errors))) == 5
    assert len(held.cancelled) == 1
    assert counts == shoal.statistics.ClosingCounts(finished=0, failed=5, cancelled=0)
    assert ["closed; requests" in line for line in caplog.messages].count(True) == 1


async def test_the_counts_say_what_became_of_the_requests_since_closing_began(caplog, held):
    caplog.set_level(logging.INFO, logger="shoal")
    options: Any = {"max_concurrent_batches": 2, "graceful_shutdown_timeout_s": 5}
    async with running(held, max_batch_size=1, **options) as (batcher, call, tasks):
        held.gate.set()
        await call(0)
        held.gate = anyio.Event()
        callers = await launch(tasks, *map(call, range(1, 5)))

        async def one_leaves_and_one_is_answered() -> None:
            await anyio.sleep(1)
            await callers[0].gone()
            held.gate.set()

        tasks.start_soon(one_leaves_and_one_is_answered)
        counts = await batcher.aclose()
        assert await batcher.aclose() == counts
    assert counts == shoal.statistics.ClosingCounts(finished=3, failed=0, cancelled=1)
    said = "while closing: 3 finished, 0 failed, 1 cancelled"
    assert [said in record.getMessage() for record in caplog.records].count(True) == 1


async def test_cancelling_the_runner_fails_everybody_at_once(held: Held) -> None:
    batcher = shoal.Batcher(held, max_batch_size=1)
    async with anyio.create_task_group() as callers_tasks, anyio.create_task_group() as tasks:
        call = await tasks.start(batcher.run)
        callers = await launch(callers_tasks, *map(call, range(3)))
        tasks.cancel_scope.cancel()
    assert [type(caller.outcome) for caller in callers] == [shoal.errors.BatcherClosed] * 3
    assert held.cancelled == [[0]]
    assert batcher.statistics().state == "closed"


async def test_callers_that_clean_up_while_the_block_is_cancelled_still_get_answers() -> None:
    answers: list[int] = []
    with anyio.CancelScope() as scope:
        async with shoal.Batcher(Recorder()) as call:
            try:
                scope.cancel()
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    answers.append(await call(7))
    assert answers == [7]


async def test_an_error_in_the_block_comes_out_and_the_batcher_is_closed() -> None:
    batcher = shoal.Batcher(Recorder())
    with pytest.raises((LookupError, ExceptionGroup)) as caught:  # noqa: PT012
        async with batcher as call:
            await call(1)
            raise LookupError
    assert type(caught.value) is LookupError
    assert batcher.statistics().state == "closed"


async def test_closing_twice_is_closing_once_and_both_wait(held: Held) -> None:
    async with running(held) as (batcher, call, tasks):
        await launch(tasks, call(0))
        closers = await launch(tasks, batcher.aclose(), batcher.aclose())
        assert [closer.outcome for closer in closers] == [PENDING, PENDING]
        held.gate.set()
    assert closers[0].outcome == closers[1].outcome == shoal.statistics.ClosingCounts(1, 0, 0)


async def test_closing_goes_on_when_its_caller_is_cancelled(held: Held) -> None:
    async with running(held) as (batcher, call, tasks):
        (caller,) = await launch(tasks, call(0))
        (closer,) = await launch(tasks, batcher.aclose())
        await closer.gone()
        assert batcher.statistics().state == "draining"
        held.gate.set()
    assert closer.outcome == LEFT
    assert caller.outcome == 0
    assert batcher.statistics().state == "closed"


async def test_a_batcher_that_was_never_opened_can_be_closed() -> None:
    batcher = shoal.Batcher(Recorder())
    assert await batcher.aclose() == shoal.statistics.ClosingCounts(0, 0, 0)
    with pytest.raises(shoal.errors.BatcherClosed):
        await batcher.call(1)


async def test_streams_end_by_closing_as_well(steps: Steps) -> None:
    batcher = shoal.Batcher(steps.handler, max_batch_size=1, graceful_shutdown_timeout_s=5)
    async with anyio.create_task_group() as tasks:
        call = await tasks.start(batcher.run)
        readers = await read_all(tasks, call("running"), call("queued"))
        steps.step(1)
        await settle()
        await batcher.aclose()
    assert steps.closed
    assert [reader.items for reader in readers] == [[1], []]
    assert [type(reader.outcome) for reader in readers] == [shoal.errors.BatcherClosed] * 2


@pytest.mark.real_time
async def test_a_thread_can_not_be_cancelled_so_closing_waits_for_it(monkeypatch):
    monkeypatch.setattr("shoal.batching.session.LAST_ANSWERS_S", 0.0)
    gate, started = threading.Event(), threading.Event()
    ended: list[int] = []

    def handler(items: list[int]) -> list[int]:
        started.set()
        assert gate.wait(HANG_S)
        ended.append(1)
        return items

    async with running(handler, graceful_shutdown_timeout_s=0) as (batcher, call, tasks):
        (caller,) = await line_up(tasks, call(0))
        assert await anyio.to_thread.run_sync(started.wait, 10)
        (closer,) = await line_up(tasks, batcher.aclose())
        while caller.outcome is PENDING:
            await anyio.lowlevel.checkpoint()
        assert isinstance(caller.outcome, shoal.errors.BatcherClosed)
        assert closer.outcome == PENDING
        gate.set()
    assert ended == [1]
    assert isinstance(closer.outcome, shoal.statistics.ClosingCounts)


async def stubborn(items: list[Any]) -> list[Any]:
    with anyio.CancelScope(shield=True):
        await anyio.sleep(7)
    return items


async def test_what_runs_and_can_not_be_cancelled_is_answered_even_with_a_budget_of_0() -> None:
    batcher = shoal.Batcher(stubborn, max_batch_size=1, graceful_shutdown_timeout_s=0)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await launch(tasks, call(1), call(2))
        counts = await batcher.aclose()
        assert anyio.current_time() == pytest.approx(7)
    assert callers[0].outcome == 1
    assert isinstance(callers[1].outcome, shoal.errors.BatcherClosed)
    assert callers[1].ended_at == pytest.approx(0)
    assert counts == shoal.statistics.ClosingCounts(1, 1, 0)


async def test_callers_of_a_handler_that_never_ends_are_told_10_s_after_the_budget() -> None:
    async def never(items: list[Any]) -> list[Any]:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(1000)
        return items

    async with opening(never, graceful_shutdown_timeout_s=3) as (batcher, call, tasks):
        (caller,) = await launch(tasks, call(1))
        began = anyio.current_time()
        tasks.start_soon(batcher.aclose)
    assert isinstance(caller.outcome, shoal.errors.BatcherClosed)
    assert caller.ended_at == pytest.approx(began + 13)


async def test_what_was_served_in_a_batchers_life_is_logged_at_its_end(caplog):
    caplog.set_level(logging.INFO, "shoal")
    async with shoal.Batcher(Recorder(), name="embed") as call:
        await call.map(range(25))
    (line,) = [r.getMessage() for r in caplog.records if "closed" in r.getMessage()]
    assert line == (
        "embed: closed; requests in its life: 25 (0 failed, 0 cancelled or out of time, 0 declined)"
    )


# `drop_queued_on_shutdown`: what is queued fails as closing begins, what runs is answered


DROP: dict[str, Any] = {"drop_queued_on_shutdown": True}


async def slowly(items: list[Any]) -> list[Any]:
    await anyio.sleep(5)
    return items


def check(callers: list[Caller], began: float) -> None:
    """Checks that the first was answered, and that all others failed as closing began."""
    first, *others = callers
    assert first.outcome == 0
    assert first.ended_at == pytest.approx(5)
    for caller in others:
        assert type(caller.outcome) is shoal.errors.BatcherClosed
        assert caller.ended_at == pytest.approx(began)


async def test_who_closes_may_say_otherwise() -> None:
    batcher = shoal.Batcher(slowly, max_batch_size=1, **DROP)
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = await launch(tasks, *map(call, range(3)))
        batcher.configure(drop_queued_on_shutdown=False)
        await batcher.aclose()
    assert [caller.outcome for caller in callers] == [0, 1, 2]


async def test_it_may_be_set_while_the_batcher_is_open() -> None:
    batched = shoal.batch(max_batch_size=1)(slowly)
    async with anyio.create_task_group() as tasks, shoal.open_batchers(batched):
        callers = await line_up(tasks, *map(batched, range(3)))
        await anyio.sleep(1)
        batched.configure(**DROP)
    check(callers, 1)


async def test_who_gathers_waits_in_the_queue_and_is_dropped_too() -> None:
    batched = shoal.batch(batch_wait_timeout_s=None, **DROP)(slowly)
    async with anyio.create_task_group() as tasks, shoal.open_batchers(batched):
        callers = await launch(tasks, batched(1), batched(2))
    assert [type(caller.outcome) for caller in callers] == [shoal.errors.BatcherClosed] * 2
    assert [caller.ended_at for caller in callers] == [pytest.approx(0)] * 2


async def test_who_is_parked_is_dropped_and_takes_no_place_of_the_dropped() -> None:
    options: Any = {"max_batch_size": 1, "max_queued_requests": 1, "overload": "wait"}
    batcher = shoal.Batcher(slowly, **options, **DROP)
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = await line_up(tasks, *map(call, range(5)))
        await anyio.sleep(1)
        assert batcher.statistics().parked == 3
    check(callers, 1)
    assert await batcher.aclose() == shoal.statistics.ClosingCounts(1, 4, 0)


async def test_a_map_that_is_divided_fails_in_the_part_that_waits() -> None:
    batched = shoal.batch(max_batch_size=2, **DROP)(slowly)
    async with anyio.create_task_group() as tasks, shoal.open_batchers(batched):
        (caller,) = await launch(tasks, batched.map(range(5), return_exceptions=True))
    assert caller.outcome[:2] == [0, 1]
    assert [type(error) for error in caller.outcome[2:]] == [shoal.errors.BatcherClosed] * 3


async def test_streams_that_run_go_on_to_their_end(steps: Steps) -> None:
    batcher = shoal.Batcher(steps.handler, max_batch_size=1, **DROP)
    async with anyio.create_task_group() as tasks, batcher as call:
        readers = await read_all(tasks, call("running"), call("queued"))
        steps.step(1)
        await settle()
        tasks.start_soon(batcher.aclose)
        await settle()
        assert type(readers[1].outcome) is shoal.errors.BatcherClosed
        steps.step(2)
        steps.end()
    assert readers[0].items == [1, 2]
    assert readers[0].outcome == "end"


async def test_a_continuous_batch_answers_who_is_in_it() -> None:
    async def handler(batch: shoal.OpenBatch[int, int]) -> None:
        async for requests in batch.steps():
            await anyio.sleep(5)
            for request in requests:
                request.finish(request.item)

    batcher = shoal.Batcher(handler, fill="continuous", max_batch_size=1, **DROP)
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = await line_up(tasks, *map(call, range(3)))
        await anyio.sleep(1)
    check(callers, 1)


async def test_in_a_block_running_handlers_may_go_on_to_call_the_batcher() -> None:
    inner = shoal.batch(max_batch_size=1, **DROP)(slowly)

    @shoal.batch(max_batch_size=1)
    async def outer(items: list[int]) -> list[int]:
        await anyio.sleep(2)
        return await inner.map(items)

    async with anyio.create_task_group() as tasks, shoal.open_batchers():
        callers = await line_up(tasks, outer(7), inner(0), inner(1), inner(2))
        await anyio.sleep(1)
    assert callers[0].outcome == 7
    check(callers[1:], 1)


@pytest.mark.parametrize("open_again", [True, False])
async def test_a_drain_drops_what_is_in_the_queue_and_takes_calls(open_again: bool) -> None:
    batcher = shoal.Batcher(slowly, max_batch_size=1, drop_queued_on_shutdown=not open_again)
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = await line_up(tasks, *map(call, range(2)))
        await anyio.sleep(1)
        batcher.drain()
        late = await line_up(tasks, call(9))
        await anyio.sleep(14)
    if not open_again:
        check(callers, 1)
    assert late[0].outcome == 9


async def test_the_budget_still_bounds_what_runs(held: Held) -> None:
    batcher = shoal.Batcher(held, max_batch_size=1, graceful_shutdown_timeout_s=3, **DROP)
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = await launch(tasks, *map(call, range(2)))
    assert [type(caller.outcome) for caller in callers] == [shoal.errors.BatcherClosed] * 2
    assert [caller.ended_at for caller in callers] == [pytest.approx(3), pytest.approx(0)]
    assert held.cancelled == [[0]]
