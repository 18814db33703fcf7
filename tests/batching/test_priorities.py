"""Levels of priority, ageing, how each level may wait, and what a call may ask for itself."""

from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, PENDING, Caller, line_up, outcome, outcomes
from batching.scenes import Held, Recorder, opening, plugged, settle

THREE: dict[str, Any] = {"priority_levels": 3, "max_batch_size": 2}


async def put(tasks: Any, call: Any, *items: Any, **options: Any) -> list[Caller]:
    """Queues items, each with the same options of its call; none is an ordinary call."""
    asking = call.options(**options) if options else call
    return await line_up(tasks, *map(asking, items))


# Order


async def test_higher_levels_go_first_and_equals_in_order_of_arrival(held: Held) -> None:
    async with plugged(held, **THREE) as (_, call, tasks):
        await put(tasks, call, "low 1", "low 2", priority=3)
        await put(tasks, call, "usual 1")
        await put(tasks, call, "high 1", "high 2", "high 3", priority=1)
        await put(tasks, call, "usual 2", priority=2)
    assert held.batches[1:] == [
        ["high 1", "high 2"],
        ["high 3", "usual 1"],
        ["usual 2", "low 1"],
        ["low 2"],
    ]


async def test_isolated_levels_share_no_batch_and_keep_their_order(held: Held) -> None:
    async with plugged(held, **THREE, priority_mixing="isolate") as (_, call, tasks):
        await put(tasks, call, "low 1", priority=3)
        await put(tasks, call, "usual 1", "usual 2", "usual 3")
        await put(tasks, call, "high 1", priority=1)
    assert held.batches[1:] == [["high 1"], ["usual 1", "usual 2"], ["usual 3"], ["low 1"]]


async def test_isolated_levels_are_kept_apart_within_each_bucket(recorder: Recorder) -> None:
    apart: Any = {"priority_levels": 2, "priority_mixing": "isolate", "batch_wait_timeout_s": 1}
    async with opening(recorder, **apart, bucket_by=lambda item: item[0]) as (_, call, tasks):
        await put(tasks, call, "a1", "b1", "a2", priority=2)
        await put(tasks, call, "a3", "b2", priority=1)
    assert recorder.batches == [["a3"], ["b2"], ["a1", "a2"], ["b1"]]


@pytest.mark.parametrize(
    ("default", "expected"),
    [(None, ["high", "other", "usual", "low"]), (1, ["high", "usual", "other", "low"])],
)
async def test_a_call_that_names_no_level_has_the_default_one(default, expected, held):
    options: Any = {"priority_levels": 3, "default_priority": default}
    async with plugged(held, **options) as (_, call, tasks):
        await put(tasks, call, "low", priority=3)
        await put(tasks, call, "other", priority=2)
        await put(tasks, call, "high", priority=1)
        await put(tasks, call, "usual")
    assert held.batches[1] == expected


@pytest.mark.parametrize(("aging_s", "first"), [(10.0, "low"), (100.0, "high"), (None, "high")])
async def test_what_has_waited_for_long_goes_ahead_of_higher_levels(aging_s, first, held):
    options: Any = {"priority_levels": 2, "priority_aging_s": aging_s}
    async with plugged(held, max_batch_size=1, **options) as (_, call, tasks):
        await put(tasks, call, "low", priority=2)
        await anyio.sleep(11)
        await put(tasks, call, "high", priority=1)
    assert held.batches[1] == [first]


# What a call may ask for


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"priority": 0}, ValueError),
        ({"priority": 1.5}, TypeError),
        ({"priority": "high"}, TypeError),
        ({"queue_timeout_s": -1}, ValueError),
        ({"queue_timeout_s": "1"}, TypeError),
    ],
)
async def test_the_wishes_of_a_call_are_checked(options: Any, error: type[Exception]) -> None:
    async with shoal.Batcher(Recorder()) as call:
        with pytest.raises(error):
            call.options(**options)


async def test_a_level_that_there_is_not_fails_its_call_alone(recorder: Recorder) -> None:
    async with shoal.Batcher(recorder, priority_levels=2) as call:
        with pytest.raises(ValueError, match=r"from 1, the highest, to priority_levels=2, not 3"):
            await call.options(priority=3)(1)
        with pytest.raises(ValueError, match="priority_levels=2"):
            await call.options(priority=3).map([1, 2])
        assert await call.options(priority=2)(4) == 4
    assert recorder.batches == [[4]]


async def test_a_map_has_the_wishes_of_its_call(held: Held) -> None:
    async with plugged(held, **THREE) as (_, call, tasks):
        (late,) = await line_up(tasks, call.options(queue_timeout_s=2).map(["a", "b"]))
        await put(tasks, call, "c")
        await line_up(tasks, call.options(priority=1).map(["d", "e"]))
        await anyio.sleep(3)
        assert isinstance(late.outcome, shoal.errors.DeadlineExceeded)
    assert held.batches[1:] == [["d", "e"], ["c"]]


# queue_timeout_s and QueuePolicy


@pytest.mark.parametrize(
    ("policy_s", "call_s", "deadline_s", "ends_at"),
    [(None, 3, None, 3), (5, None, None, 5), (5, 3, 9, 3), (3, 5, None, 3), (None, 5, 2, 2)],
)
async def test_a_call_can_only_shorten_how_long_it_may_wait_in_the_queue(
    policy_s: float | None, call_s: float | None, deadline_s: float | None, ends_at: float
) -> None:
    held = Held()
    policy = shoal.QueuePolicy(timeout_s=policy_s)
    options: Any = {"max_batch_size": 1, "default_queue_policy": policy}
    async with plugged(held, **options) as (batcher, call, tasks):
        (caller,) = await put(tasks, call, "late", queue_timeout_s=call_s, timeout_s=deadline_s)
        await anyio.sleep(9)
        assert isinstance(caller.outcome, shoal.errors.DeadlineExceeded)
        assert caller.ended_at == pytest.approx(ends_at)
        statistics = batcher.statistics()
        assert (statistics.expired, statistics.cancelled, statistics.queued) == (1, 0, 0)
    assert held.batches == [["plug"]]
    if deadline_s == ends_at:
        assert "was not answered by its deadline" in str(caller.outcome)


async def test_the_time_in_the_queue_does_not_count_in_the_handler(held: Held) -> None:
    async with shoal.Batcher(held) as call, anyio.create_task_group() as tasks:
        (caller,) = await put(tasks, call, 1, queue_timeout_s=1)
        await anyio.sleep(5)
        assert caller.outcome is PENDING
        held.gate.set()
    assert caller.outcome == 1


async def test_who_is_parked_is_in_the_queue_for_its_time_out(held: Held) -> None:
    options: Any = {"max_batch_size": 1, "max_queued_requests": 1, "overload": "wait"}
    async with plugged(held, **options) as (batcher, call, tasks):
        (queued, parked) = await put(tasks, call, 1, 2, queue_timeout_s=3)
        assert batcher.statistics().parked == 1
        await anyio.sleep(4)
        expired = [type(caller.outcome) for caller in (queued, parked)]
        assert expired == [shoal.errors.DeadlineExceeded] * 2
        assert batcher.statistics().parked == 0
    assert held.batches == [["plug"]]


async def test_what_is_delayed_lets_its_own_level_go_first_and_is_served_after_all(held):
    delaying = shoal.QueuePolicy(timeout_s=2, timeout_action="delay")
    options: Any = {"priority_levels": 3, "queue_policies": {2: delaying}, "priority_aging_s": None}
    async with plugged(held, max_batch_size=1, **options) as (batcher, call, tasks):
        callers = await put(tasks, call, "delayed 1", "delayed 2", priority=2)
        await put(tasks, call, "low", priority=3)
        await anyio.sleep(3)
        callers += await put(tasks, call, "in time", priority=2)
        assert [caller.outcome for caller in callers] == [PENDING] * 3
    assert held.batches[1:] == [["in time"], ["delayed 1"], ["delayed 2"], ["low"]]
    assert batcher.statistics().expired == 0


async def test_a_delay_without_levels_keeps_the_order_of_those_that_are_delayed(held: Held) -> None:
    policy = shoal.QueuePolicy(timeout_s=2, timeout_action="delay")
    async with plugged(held, max_batch_size=3, default_queue_policy=policy) as (_, call, tasks):
        callers = await put(tasks, call, 1, 2, 3)
        await anyio.sleep(3)
        await put(tasks, call, 4)
        callers[1].leave()
    assert held.batches[1:] == [[4, 1, 3]]


@pytest.mark.parametrize("overload", ["wait", "shed_oldest"])
async def test_tb13_the_bound_of_a_level_refuses_whatever_overload_says(overload, held):
    policies = {3: shoal.QueuePolicy(max_queued_requests=1)}
    options: Any = {"overload": overload, "max_queued_requests": 9, "queue_policies": policies}
    all_options: Any = {"max_batch_size": 1, "priority_levels": 3, **options}
    async with plugged(held, **all_options) as (batcher, call, tasks):
        (low,) = await put(tasks, call, "low", priority=3)
        refusal = await outcome(call.options(priority=3)("low too"))
        assert isinstance(refusal, shoal.errors.Overloaded)
        assert "requests of priority 3" in str(refusal)
        await put(tasks, call, "high 1", "high 2", priority=1)
        low.leave()
        await settle()
        await put(tasks, call, "low in its place", priority=3)
    assert low.outcome == LEFT
    assert held.batches[1:] == [["high 1"], ["high 2"], ["low in its place"]]
    assert batcher.statistics().rejected == 1


async def test_a_burst_into_an_idle_batcher_is_within_the_bound_of_its_level(recorder):
    policy = shoal.QueuePolicy(max_queued_requests=1)
    async with shoal.Batcher(recorder, max_batch_size=3, default_queue_policy=policy) as call:
        assert await outcomes(*map(call, range(3))) == [0, 1, 2]
        refused = [
            result
            for result in await outcomes(*map(call, range(4)))
            if isinstance(result, Exception)
        ]
    assert [type(error) for error in refused] == [shoal.errors.Overloaded]
    assert [len(batch) for batch in recorder.batches] == [3, 3]


async def test_each_level_may_have_a_window_of_its_own(recorder: Recorder) -> None:
    policies = {1: shoal.QueuePolicy(batch_wait_timeout_s=1)}
    options: Any = {"priority_levels": 2, "batch_wait_timeout_s": 10, "queue_policies": policies}
    async with opening(recorder, **options) as (_, call, tasks):
        await put(tasks, call, "low", priority=2)
        await anyio.sleep(2)
        await put(tasks, call, "high", priority=1)
        await anyio.sleep(3)
        await put(tasks, call, "low 2", priority=2)
    assert recorder.batches == [["high", "low"], ["low 2"]]
    assert recorder.started_at == [pytest.approx(3), pytest.approx(15)]


async def test_a_level_without_a_window_only_fills_the_room_of_others(recorder: Recorder) -> None:
    policies = {2: shoal.QueuePolicy(batch_wait_timeout_s=None)}
    options: Any = {"priority_levels": 2, "priority_aging_s": None, "queue_policies": policies}
    async with opening(recorder, max_batch_size=3, **options) as (_, call, tasks):
        low = await put(tasks, call, "low 1", "low 2", priority=2)
        await anyio.sleep(3600)
        assert [caller.outcome for caller in low] == [PENDING] * 2
        await put(tasks, call, "high", priority=1)
        await anyio.sleep(3600)
        low += await put(tasks, call, "low 3", "low 4", "low 5", priority=2)  # full by themselves
    assert recorder.batches == [["high", "low 1", "low 2"], ["low 3", "low 4", "low 5"]]
