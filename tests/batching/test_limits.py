"""`limit`: how many batches start, and how much they may cost, over time."""

import math
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import PENDING, Caller, launch, outcomes
from batching.scenes import Held, Recorder, Refusing, opening, settle
from shoal import Limit
from shoal.core.forming.former import Former

CALLS = {"max_batch_size": 2, "max_concurrent_batches": None}
EVERY_SECOND = Limit(batches_per_s=1)


async def test_no_more_batches_start_than_the_limit_allows_however_many_slots_there_are() -> None:
    busy = Refusing(run_s=10)
    batcher = shoal.Batcher(busy, **CALLS, limit=Limit(batches_per_s=4))
    async with batcher as call:
        assert await call.map(range(10)) == [*range(10)]
        statistics = batcher.statistics()
    assert busy.starts == [0, 0.25, 0.5, 0.75, 1]
    assert busy.batches == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert anyio.current_time() == 11  # five ran at a time
    assert busy.reasons == ["full", "limit", "limit", "limit", "limit"]
    assert statistics.batches[shoal.DispatchReason.LIMIT] == 4


@pytest.mark.parametrize(
    ("limit", "most_cost", "items", "starts"),
    [
        # The first waits for nothing, however much it costs.
        ({"cost_per_min": 60}, 100, ["aaaaa", "bb", "c" * 90, "d", "e", "f"], [0, 7, 98]),
        ({"cost_per_min": 60}, None, range(5), [0, 2, 4]),
        ({"batches_per_s": 1, "cost_per_min": 60}, 9, ["", "", "aaa", "bbb", "c", "d"], [0, 1, 7]),
    ],
    ids=["costs", "a request costs 1", "both rates"],
)
async def test_a_batch_is_paid_for_before_the_next_one_starts(limit, most_cost, items, starts):
    busy = Recorder()
    costs = {} if most_cost is None else {"batch_size_fn": len, "max_batch_cost": most_cost}
    async with shoal.Batcher(busy, **CALLS, **costs, limit=Limit(**limit)) as call:
        await call.map(items)
    assert busy.starts == starts


async def test_requests_that_wait_for_the_limit_fill_the_batch(recorder: Recorder) -> None:
    async with opening(recorder, limit=EVERY_SECOND) as (_, call, tasks):
        await call(0)
        await launch(tasks, call(1))
        await anyio.sleep(0.5)
        await launch(tasks, *(call(n) for n in range(2, 6)))
    assert recorder.batches == [[0], [1, 2, 3, 4, 5]]
    assert recorder.starts == [0, 1]


async def test_time_without_calls_saves_nothing_up(recorder: Recorder) -> None:
    async with shoal.Batcher(recorder, **CALLS, limit=EVERY_SECOND) as call:
        await call(0)
        await anyio.sleep(100)
        await call.map(range(6))
    assert recorder.starts == [0, 100, 101, 102]


async def test_a_burst_spends_what_was_saved_up_for_as_long_as_it_says(recorder: Recorder) -> None:
    async with shoal.Batcher(recorder, **CALLS, limit=Limit(batches_per_s=1, burst_s=2)) as call:
        await call.map(range(8))  # it begins with all that may be saved
        await anyio.sleep(100)
        await call.map(range(8))
    assert recorder.starts == [0, 0, 0, 1, 101, 101, 101, 102]


async def test_a_batch_that_needs_no_wait_has_its_own_reason() -> None:
    busy = Refusing(run_s=3)
    async with opening(busy, limit=EVERY_SECOND) as (_, call, tasks):
        await launch(tasks, call(0))
        await launch(tasks, call(1))  # waits for the slot, for longer than for the limit
    assert busy.reasons == ["timer", "timer"]
    assert busy.starts == [0, 3]


async def test_a_window_that_ends_after_the_limit_is_kept(recorder: Recorder) -> None:
    async with opening(recorder, batch_wait_timeout_s=2, limit=EVERY_SECOND) as (_, call, tasks):
        await launch(tasks, call(0))
        await anyio.sleep(2.5)
        await launch(tasks, call(1))
    assert recorder.starts == [2, 4.5]
    assert recorder.reasons == ["timer", "timer"]


# What ends a wait, and what does not


async def test_a_deadline_ends_a_call_that_waits_for_the_limit(recorder: Recorder) -> None:
    async with opening(recorder, limit=Limit(batches_per_s=0.1)) as (_, call, tasks):
        await call(0)
        late, other = await launch(tasks, call.options(timeout_s=2)(1), call(2))
        await anyio.sleep(3)
        assert isinstance(late.outcome, shoal.errors.DeadlineExceeded)
        assert late.ended_at == pytest.approx(2)
        assert other.outcome is PENDING
    assert recorder.batches == [[0], [2]]
    assert recorder.starts == [0, 10]


async def test_a_flush_does_not_exceed_the_limit(recorder: Recorder) -> None:
    batcher = shoal.Batcher(recorder, batch_wait_timeout_s=None, limit=EVERY_SECOND)
    async with opening(batcher) as (_, call, tasks):
        for number in range(2):
            await launch(tasks, call(number))
            batcher.flush()
            await settle()
        assert recorder.batches == [[0]]
    assert recorder.starts == [0, 1]
    assert recorder.reasons == ["flush", "limit"]


@pytest.mark.parametrize("graceful_s", [2.5, 20])
async def test_closing_waits_for_the_limit_but_no_longer_than_it_may(graceful_s, recorder):
    options: Any = {"limit": EVERY_SECOND, "graceful_shutdown_timeout_s": graceful_s}
    async with opening(recorder, max_batch_size=1, **options) as (batcher, call, tasks):
        callers = await launch(tasks, *(call(n) for n in range(5)))
        counts = await batcher.aclose()
    ended = [caller.outcome for caller in callers]
    served = 5 if graceful_s == 20 else 3
    assert ended[:served] == [*range(served)]
    assert all(isinstance(one, shoal.errors.BatcherClosed) for one in ended[served:])
    assert (counts.finished, counts.failed) == (served - 1, 5 - served)
    assert anyio.current_time() == pytest.approx(min(graceful_s, 4))


@pytest.mark.parametrize("overload", ["reject", "wait"])
async def test_the_bound_of_the_queue_holds_though_slots_are_idle(overload, recorder):
    options: Any = {"max_queued_requests": 3, "overload": overload}
    async with opening(recorder, **CALLS, **options, limit=EVERY_SECOND) as (batcher, call, tasks):
        await call(0)
        await launch(tasks, call(1))
        callers = await launch(tasks, *(call(n) for n in range(2, 8)))
        statistics = batcher.statistics()
        assert statistics.queued == 3
        assert statistics.scheduling_capacity == 0
        rejected = [c.outcome for c in callers if isinstance(c.outcome, shoal.errors.Overloaded)]
        assert (len(rejected), statistics.parked) == ((4, 0) if overload == "reject" else (0, 4))
    queued = [1, 2, 3] if overload == "reject" else [*range(1, 8)]
    assert [item for batch in recorder.batches[1:] for item in batch] == queued
    assert recorder.batches[1] == [1, 2]


async def test_callers_that_wait_for_room_fill_the_batch_when_the_limit_allows_it(recorder):
    batcher = shoal.Batcher(recorder, max_queued_requests=1, overload="wait", limit=EVERY_SECOND)
    async with opening(batcher) as (_, call, tasks):
        await call(0)
        await launch(tasks, *(call(n) for n in range(1, 6)))
        assert (batcher.statistics().queued, batcher.statistics().parked) == (1, 4)
    assert recorder.batches == [[0], [1, 2, 3, 4, 5]]


async def test_arrivals_do_not_wake_a_slot_that_waits_for_the_limit(monkeypatch):
    busy, decisions = Recorder(), 0
    decide = Former.decide

    def counted(former: Former, now: float) -> Any:
        nonlocal decisions
        decisions += 1
        return decide(former, now)

    async with opening(busy, max_batch_size=500, limit=EVERY_SECOND) as (_, call, tasks):
        await call(0)
        await launch(tasks, call(1))
        monkeypatch.setattr(Former, "decide", counted)
        for number in range(100):
            await launch(tasks, call.options(timeout_s=9)(number))
        assert decisions == 0
        await anyio.sleep(2)
        assert 1 <= decisions <= 5
    assert [len(batch) for batch in busy.batches] == [1, 101]


# Changes


CHANGES: dict[str, tuple[Limit | None, float]] = {
    "faster": (Limit(batches_per_s=0.5), 2),
    "slower": (Limit(batches_per_s=0.05), 20),
    "by cost": (Limit(cost_per_min=1), 1),
    "none": (None, 1),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_applies_to_requests_that_wait(change: str, recorder: Recorder) -> None:
    limit, starts_at = CHANGES[change]
    async with opening(recorder, limit=Limit(batches_per_s=0.1)) as (batcher, call, tasks):
        await call(0)
        await launch(tasks, call(1))
        await anyio.sleep(1)
        batcher.configure(limit=limit)
        assert batcher.options.limit == limit
    assert recorder.starts == [0, starts_at]


async def test_a_batcher_may_get_a_limit_while_it_is_open(recorder: Recorder) -> None:
    batcher = shoal.Batcher(recorder, **CALLS)
    async with batcher as call:
        await call.map(range(4))
        batcher.configure(limit=EVERY_SECOND)
        await call.map(range(6))
    assert recorder.starts == [0, 0, 0, 1, 2]


async def test_a_smaller_burst_spends_what_was_saved_up_only_in_part(recorder: Recorder) -> None:
    batcher = shoal.Batcher(recorder, limit=Limit(batches_per_s=1, burst_s=5), **CALLS)
    async with batcher as call:
        await call(0)
        await anyio.sleep(10)
        batcher.configure(limit=Limit(batches_per_s=1, burst_s=1))
        await call.map(range(6))
    assert recorder.starts == [0, 10, 10, 11]


# With other options


async def test_streams_are_limited_too() -> None:
    starts: list[float] = []

    async def handler(items: list[int]) -> AsyncIterator[list[int]]:
        starts.append(anyio.current_time())
        yield items

    async def read(call: Any, item: int) -> list[int]:
        async with call(item) as stream:
            return [one async for one in stream]

    async with shoal.Batcher(handler, max_batch_size=1, limit=EVERY_SECOND) as call:
        assert await outcomes(*(read(call, n) for n in range(3))) == [[0], [1], [2]]
    assert starts == pytest.approx([0, 1, 2])


async def test_a_batch_whose_callers_left_in_its_tick_is_not_paid_for(recorder: Recorder) -> None:
    batcher = shoal.Batcher(recorder, batch_wait_timeout_s=5, limit=Limit(batches_per_s=0.01))
    async with opening(batcher) as (_, call, tasks):
        (caller,) = await launch(tasks, call(0))
        caller.leave()
        batcher.flush()  # the slot may be woken before its caller is
        await settle()
        batcher.configure(batch_wait_timeout_s=0)
        await call(2)
    assert recorder.starts == [0]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({}, ValueError, "needs batches_per_s, cost_per_min, or both"),
        ({"batches_per_s": 0}, ValueError, "batches_per_s must be above 0"),
        ({"cost_per_min": math.inf}, ValueError, "cost_per_min must be above 0, and finite"),
        ({"cost_per_min": math.nan}, ValueError, "cost_per_min must be above 0"),
        ({"batches_per_s": "5"}, TypeError, "batches_per_s must be a number, such as 100"),
        ({"batches_per_s": 5, "burst_s": -1}, ValueError, "burst_s must be at least 0 seconds"),
        ({"batches_per_s": 5, "burst_s": math.inf}, ValueError, "burst_s must be finite"),
    ],
)
@pytest.mark.one_loop
async def test_a_wrong_limit_is_refused(fields: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        Limit(**fields)


@pytest.mark.one_loop
async def test_a_number_is_not_a_limit() -> None:
    with pytest.raises(TypeError, match=r"limit must be a Limit or None.*shoal\.Limit\("):
        shoal.Batcher(Held(), limit=5)  # type: ignore[call-overload]


async def test_a_cost_beyond_all_numbers_blocks_and_breaks_nothing(recorder: Recorder) -> None:
    options: Any = {"batch_size_fn": lambda n: n, "max_batch_size": 10**500}
    async with opening(recorder, **options, limit=Limit(cost_per_min=1)) as (batcher, call, tasks):
        assert await call(10**400) == 10**400
        callers: list[Caller] = await launch(tasks, call.options(timeout_s=5)(1))
        await anyio.sleep(6)
        assert isinstance(callers[0].outcome, shoal.errors.DeadlineExceeded)
        batcher.configure(limit=None)
        assert await call(2) == 2
