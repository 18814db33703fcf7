"""`RetryLater` raised by a handler: its batch goes back to the head of the queue, and all wait."""

import math
import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, PENDING, launch, outcome, outcomes, read
from batching.scenes import Recorder, Records, Refusing, opening
from shoal import RetryLater
from shoal.batching.running.requeueing import MOST_RETURNS
from shoal.core.request import DispatchReason
from shoal.failures.retry_after import LEAST_PAUSE_S

PAIRS: Any = {"max_batch_size": 2, "batch_wait_timeout_s": None}
ANY_NUMBER: Any = {"max_batch_size": 2, "max_concurrent_batches": None}


async def test_a_batch_runs_again_after_the_time_and_its_callers_do_not_notice() -> None:
    handler = Refusing([RetryLater(5), RetryLater(2)])
    batcher = shoal.Batcher(handler)
    async with batcher as call:
        assert await call.map(range(3)) == [0, 1, 2]
        statistics = batcher.statistics()
    assert handler.batches == [[0, 1, 2]] * 3
    assert handler.starts == [0, 5, 7]
    assert handler.reasons == ["timer", "limit", "limit"]
    assert (statistics.finished, statistics.failed, statistics.retried) == (3, 0, 6)
    assert statistics.batches[DispatchReason.LIMIT] == 2


async def test_no_other_batch_starts_in_that_time() -> None:
    handler = Refusing([None, RetryLater(5)], run_s=1)
    async with opening(handler, **ANY_NUMBER) as (_, call, tasks):
        await launch(tasks, call(0))
        await anyio.sleep(0.5)
        await launch(tasks, call(1))
        await anyio.sleep(1)
        await launch(tasks, call(2), call(3))
    assert handler.batches == [[0], [1], [1, 2], [3]]
    assert handler.starts == [0, 0.5, 6.5, 6.5]


async def test_the_longest_time_counts() -> None:
    handler = Refusing([RetryLater(9), RetryLater(1)], run_s=1)
    async with shoal.Batcher(handler, **ANY_NUMBER) as call:
        await call.map(range(4))
    assert handler.starts == [0, 0, 10, 10]


async def test_a_handler_with_a_nursery_may_raise_it_in_several_tasks() -> None:
    tries: list[float] = []

    async def refuse(after_s: float) -> None:
        raise RetryLater(after_s)

    async def handler(items: list[int]) -> list[int]:
        tries.append(anyio.current_time())
        if len(tries) == 1:
            async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
                for after_s in (2, 5, 3):
                    inner.start_soon(refuse, after_s)
                outer.start_soon(anyio.sleep, 1)
        return items

    async with shoal.Batcher(handler) as call:
        assert await call(1) == 1
    assert tries == [0, 5]


async def test_a_group_with_another_error_fails_its_callers() -> None:
    raised = ExceptionGroup("both", [RetryLater(5), ValueError("mine")])
    batcher = shoal.Batcher(Refusing([raised]))
    async with batcher as call:
        error = await outcome(call(1))
    assert isinstance(error, ExceptionGroup)
    assert batcher.statistics().retried == 0


async def test_a_limit_goes_on_after_the_pause() -> None:
    handler = Refusing([RetryLater(5)])
    limit = shoal.Limit(batches_per_s=0.5)
    async with shoal.Batcher(handler, **ANY_NUMBER, limit=limit) as call:
        await call.map(range(6))
    assert handler.starts == [0, 5, 7, 9]


# How it ends


async def test_a_handler_that_always_raises_pauses_and_comes_to_an_end() -> None:
    handler = Refusing(RetryLater(0) for _ in range(1000))
    batcher = shoal.Batcher(handler)
    async with batcher as call:
        first, second = await outcomes(call(0), call(1))
        statistics = batcher.statistics()
    assert [type(first), type(second)] == [RetryLater, RetryLater]
    assert first is not second
    assert len(handler.batches) == MOST_RETURNS + 1
    assert handler.starts[-1] == pytest.approx(MOST_RETURNS * LEAST_PAUSE_S)
    assert (statistics.failed, statistics.retried) == (2, 2 * MOST_RETURNS)


async def test_others_are_not_bound_by_its_number_of_tries() -> None:
    class Poisoned(Recorder):
        async def __call__(self, items: list[Any]) -> list[Any]:
            self.note(items)
            if "poison" in items:
                raise RetryLater(1)
            return items

    handler = Poisoned()
    async with shoal.Batcher(handler, max_batch_size=1) as call:
        poison, other = await outcomes(call("poison"), call("good"))
    assert isinstance(poison, RetryLater)
    assert other == "good"


@pytest.mark.parametrize("way", ["timeout_s", "queue_timeout_s"])
@pytest.mark.parametrize("run_s", [0, 3])
async def test_a_request_whose_time_ends_first_fails(way: str, run_s: float) -> None:
    handler = Refusing([RetryLater(10)], run_s)
    async with opening(handler, **PAIRS) as (batcher, call, tasks):
        late, other = await launch(tasks, call.options(**{way: 4})(0), call(1))
        await anyio.sleep(5)
        assert isinstance(late.outcome, shoal.errors.DeadlineExceeded)
        assert late.ended_at == pytest.approx(4)
        assert other.outcome is PENDING
        assert len(batcher._session._intake.former.overdue.timers) == 0
    assert handler.batches == [[0, 1], [1]]


async def test_a_queue_timeout_that_ended_in_the_handler_fails_a_request_that_comes_back() -> None:
    handler = Refusing([RetryLater(10)], run_s=3)
    policy = shoal.QueuePolicy(timeout_s=2)
    batcher = shoal.Batcher(handler, default_queue_policy=policy)
    async with batcher as call:
        assert isinstance(await outcome(call(0)), shoal.errors.DeadlineExceeded)
        assert anyio.current_time() == pytest.approx(3)
        statistics = batcher.statistics()
    assert (statistics.expired, statistics.queued) == (1, 0)


async def test_a_request_is_delayed_only_once() -> None:
    handler = Refusing([None, RetryLater(2)], run_s=1)
    policy = shoal.QueuePolicy(timeout_s=0.5, timeout_action="delay")
    async with opening(handler, max_batch_size=1, default_queue_policy=policy) as (_, call, tasks):
        await launch(tasks, call(0), call(1))
        await anyio.sleep(1.25)
        await launch(tasks, call(2))  # is delayed, and later than the one before
    assert handler.batches == [[0], [1], [1], [2]]
    assert handler.starts == [0, 1, 4, 5]


async def test_a_caller_may_leave_in_the_pause() -> None:
    handler = Refusing([RetryLater(10)])
    async with opening(handler, **PAIRS) as (batcher, call, tasks):
        first, second = await launch(tasks, call(0), call(1))
        await anyio.sleep(1)
        await first.gone()
        assert (first.outcome, second.outcome) == (LEFT, PENDING)
        assert batcher.statistics().cancelled == 1
    assert handler.batches == [[0, 1], [1]]


async def test_a_batch_without_callers_pauses_the_others() -> None:
    handler = Refusing([RetryLater(10)], run_s=1)
    async with opening(handler, cancel_abandoned=False) as (_, call, tasks):
        (caller,) = await launch(tasks, call(0))
        caller.leave()
        await launch(tasks, call(1))
    assert handler.starts == [0, 11]


# Streams


async def test_a_stream_without_an_item_starts_again() -> None:
    tries: list[list[int]] = []

    async def handler(items: list[int]) -> AsyncIterator[list[int]]:
        tries.append(list(items))
        if len(tries) < 3:
            raise RetryLater(5)
        yield items
        yield items

    async with shoal.Batcher(handler) as call:
        assert await outcomes(read(call(1)), read(call(2))) == [[1, 1], [2, 2]]
    assert [sorted(items) for items in tries] == [[1, 2]] * 3


async def test_a_stream_that_has_an_item_fails_and_the_others_start_again() -> None:
    tries: list[list[int]] = []

    async def handler(items: list[int]) -> AsyncIterator[list[Any]]:
        tries.append(list(items))
        yield [item if item == 1 or len(tries) > 1 else shoal.SKIP for item in items]
        if len(tries) == 1:
            raise RetryLater(5)

    batcher = shoal.Batcher(handler)
    async with batcher as call:
        first, second = await outcomes(read(call(1)), read(call(2)))
        statistics = batcher.statistics()
    assert first[0] == 1
    assert isinstance(first[1], RetryLater)
    assert second == [2]
    assert [sorted(items) for items in tries] == [[1, 2], [2]]
    assert (statistics.failed, statistics.finished, statistics.retried) == (1, 1, 1)


async def test_a_reader_may_leave_in_the_pause() -> None:
    tries: list[list[int]] = []

    async def handler(items: list[int]) -> AsyncIterator[list[int]]:
        tries.append(list(items))
        if len(tries) == 1:
            raise RetryLater(5)
        yield items

    async with shoal.Batcher(handler) as call:
        with anyio.move_on_after(1):
            await read(call(1))
        await read(call(2))
    assert tries == [[1], [2]]


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_the_callers_of_an_open_batch_get_it(fill: Any) -> None:
    seen: list[int] = []

    async def handler(batch: Any) -> None:
        async for request in batch:
            seen.append(request.item)
            raise RetryLater(5)

    async with shoal.Batcher(handler, fill=fill) as call:
        assert isinstance(await outcome(call(1)), RetryLater)
    assert seen == [1]


# The end of a batcher


@pytest.mark.parametrize("graceful_s", [3, 20])
async def test_closing_waits_for_the_pause_but_no_longer_than_it_may(graceful_s: float) -> None:
    handler = Refusing([RetryLater(10)])
    async with opening(handler, graceful_shutdown_timeout_s=graceful_s) as (batcher, call, tasks):
        (caller,) = await launch(tasks, call(0))
        await batcher.aclose()
    if graceful_s == 20:
        assert caller.outcome == 0
    else:
        assert isinstance(caller.outcome, shoal.errors.BatcherClosed)
    assert anyio.current_time() == pytest.approx(min(graceful_s, 10))


async def test_a_handler_that_always_raises_does_not_keep_a_batcher_from_closing() -> None:
    handler = Refusing(RetryLater(0.25) for _ in range(1000))
    async with opening(handler, graceful_shutdown_timeout_s=3) as (batcher, call, tasks):
        (caller,) = await launch(tasks, call(0))
        await batcher.aclose()
    assert isinstance(caller.outcome, shoal.errors.BatcherClosed)
    assert anyio.current_time() == pytest.approx(3)


@pytest.mark.parametrize("in_closing", [True, False])
async def test_a_batch_does_not_come_back_to_a_queue_that_was_dropped(in_closing: bool) -> None:
    handler = Refusing([RetryLater(1)], run_s=2)
    async with opening(handler, drop_queued_on_shutdown=True) as (batcher, call, tasks):
        (caller,) = await launch(tasks, call(0))
        if in_closing:
            await batcher.aclose()
        else:
            batcher.drain()
            await anyio.sleep(3)
    assert isinstance(caller.outcome, shoal.errors.BatcherClosed)
    assert handler.batches == [[0]]


async def test_a_shielded_handler_that_raises_it_after_the_end_fails_its_callers() -> None:
    async def handler(items: list[int]) -> list[int]:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(5)
        raise RetryLater(1)

    async with opening(handler, graceful_shutdown_timeout_s=1) as (batcher, call, tasks):
        callers = await launch(tasks, call(0), call(1))
        await batcher.aclose()
    assert all(isinstance(caller.outcome, shoal.errors.BatcherClosed) for caller in callers)


# With other options


async def test_an_isolated_half_runs_again_later_and_the_other_one_at_once() -> None:
    class Half(Recorder):
        async def __call__(self, items: list[Any]) -> list[Any]:
            self.note(items)
            if len(items) == 4:
                raise ValueError("one is bad")
            if 0 in items and len(self.batches) < 5:
                raise RetryLater(5)
            if 3 in items:
                raise ValueError("bad")
            return items

    half = Half()
    async with shoal.Batcher(half, isolate_errors=True) as call:
        got = await call.map(range(4), return_exceptions=True)
    assert got[:3] == [0, 1, 2]
    assert isinstance(got[3], ValueError)
    assert half.batches == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3], [0, 1]]


async def test_equal_calls_share_a_request_that_runs_again() -> None:
    handler = Refusing([RetryLater(5)])
    async with opening(handler, dedupe=True) as (_, call, tasks):
        callers = await launch(tasks, call("a"), call("a"))
        await anyio.sleep(1)
        callers += await launch(tasks, call("a"))
    assert [caller.outcome for caller in callers] == ["a"] * 3
    assert handler.batches == [["a"], ["a"]]


async def test_a_request_that_no_longer_fits_when_it_comes_back_fails() -> None:
    handler = Refusing([RetryLater(5)], run_s=1)
    options: Any = {"max_batch_size": 9, "batch_size_fn": float, "batch_wait_timeout_s": None}
    async with opening(handler, **options) as (batcher, call, tasks):
        large, small = await launch(tasks, call(6), call(3))
        batcher.configure(max_batch_size=5)
        await anyio.sleep(2)
        assert isinstance(large.outcome, shoal.errors.ItemTooLarge)
        assert small.outcome is PENDING
    assert small.outcome == 3
    assert handler.batches == [[6, 3], [3]]


@pytest.mark.parametrize(
    "changes",
    [
        {"priority_levels": 3},
        {"bucket_by": lambda item: item % 2},
        {"batch_size_fn": lambda item: 1},
    ],
)
async def test_options_may_change_while_a_batch_is_out(changes: Any) -> None:
    handler = Refusing([RetryLater(5)], run_s=1)
    async with opening(handler, **PAIRS) as (batcher, call, tasks):
        callers = await launch(tasks, *(call(n) for n in range(6)))
        batcher.configure(**changes, batch_wait_timeout_s=0)
    assert [caller.outcome for caller in callers] == [*range(6)]
    assert sorted(item for batch in handler.batches[1:] for item in batch) == [*range(6)]
    assert 0 in handler.batches[1]


async def test_a_full_queue_takes_a_batch_back() -> None:
    handler = Refusing([RetryLater(5)], run_s=1)
    async with opening(handler, **PAIRS, max_queued_requests=2) as (batcher, call, tasks):
        callers = await launch(tasks, *(call(n) for n in range(4)))
        await anyio.sleep(2)
        assert batcher.statistics().queued == 4
        assert isinstance(await outcome(call(9)), shoal.errors.Overloaded)
    assert [caller.outcome for caller in callers] == [*range(4)]


async def test_a_refused_run_teaches_nothing_about_run_times() -> None:
    handler = Refusing([None, *[RetryLater(1)] * 20], run_s=3)
    batcher = shoal.Batcher(handler)
    async with batcher as call:
        await call(0)
        handler.run_s = 0.001
        with anyio.move_on_after(15):
            await call(1)
        model = batcher.statistics().latency_model
    assert model is not None
    assert model.samples == 1


async def test_observers_learn_how_many_requests_went_back() -> None:
    handler = Refusing([RetryLater(5)], run_s=1)
    batcher = shoal.Batcher(handler, max_batch_size=3, batch_wait_timeout_s=None)
    records = Records()
    batcher.observers.add(records)
    async with opening(batcher) as (_, call, tasks):
        callers = await launch(tasks, *(call(n) for n in range(3)))
        callers[0].leave()
    first, second = records.records
    assert (first.size, first.retried, first.cancelled, first.failed) == (3, 2, 1, 0)
    assert isinstance(first.error, RetryLater)
    assert (second.size, second.retried, second.finished, second.error) == (2, 0, 2, None)


# Hostile subclasses


class Bare(RetryLater):
    def __init__(self) -> None:
        pass  # without a time


class Lying(RetryLater):
    after_s = property(lambda self: 1 / 0)  # type: ignore[assignment]

    def __init__(self) -> None:
        pass


def marred(after_s: Any) -> RetryLater:
    error = RetryLater(1)
    error.after_s = after_s
    return error


@pytest.mark.parametrize(
    "make", [Bare, Lying, *(lambda v=v: marred(v) for v in ("9", math.nan, math.inf, -5.0))]
)
async def test_an_error_without_a_valid_time_pauses_for_the_shortest_time(make: Any) -> None:
    handler = Refusing([make()])
    async with shoal.Batcher(handler) as call:
        assert await call(1) == 1
    assert handler.starts == [0, pytest.approx(LEAST_PAUSE_S)]


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("after_s", "error"),
    [
        *(("3", TypeError), (None, TypeError), (True, TypeError)),
        *((-1, ValueError), (math.inf, ValueError), (math.nan, ValueError)),
    ],
)
async def test_a_wrong_time_is_refused_where_the_error_is_made(after_s: Any, error: type) -> None:
    with pytest.raises(error, match="after_s must be"):
        RetryLater(after_s)


@pytest.mark.real_time
async def test_a_handler_in_a_thread_may_raise_it() -> None:
    threads: list[str] = []

    def handler(items: list[int]) -> list[int]:
        threads.append(threading.current_thread().name)
        if len(threads) == 1:
            raise RetryLater(0)
        return items

    async with shoal.Batcher(handler) as call:
        assert await call.map(range(3)) == [0, 1, 2]
    assert len(threads) == 2
