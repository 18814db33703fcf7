"""Options that change how batches are formed, while requests wait that came under others."""

from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import (
    PENDING,
    Held,
    Refusing,
    launch,
    line_up,
    outcome,
    plugged,
    settle,
    using,
)
from shoal import QueuePolicy, RetryLater


@pytest.mark.parametrize(
    ("before", "after", "batches"),
    [
        pytest.param({}, {"bucket_by": lambda n: n % 2}, [[0, 2, 4], [1, 3, 5]], id="buckets"),
        pytest.param({"bucket_by": lambda n: n % 2}, {"bucket_by": None}, [[*range(6)]], id="one"),
        pytest.param(
            {},
            {"batch_size_fn": lambda n: n, "max_batch_size": 5},
            [[0, 1, 2], [3], [4], [5]],
            id="costs",
        ),
        pytest.param(
            {"batch_size_fn": lambda n: n, "max_batch_size": 5},
            {"batch_size_fn": None},
            [[0, 1, 2, 3, 4], [5]],
            id="no costs",
        ),
        pytest.param(
            {},
            {"max_batch_size": 4, "allowed_batch_sizes": (2, 4)},
            [[0, 1, 2, 3], [4, 5]],
            id="allowed",
        ),
        pytest.param({}, {"preferred_batch_sizes": (4,)}, [[0, 1, 2, 3], [4, 5]], id="preferred"),
        pytest.param({"idle_timeout_s": 1}, {"idle_timeout_s": None}, [[*range(6)]], id="no idle"),
        pytest.param({}, {"order": "deadline"}, [[*range(6)]], id="order"),
        pytest.param({}, {"priority_levels": 3}, [[*range(6)]], id="levels"),
    ],
)
async def test_who_waits_is_served_by_the_new_options_in_order_of_arrival(before, after, batches):
    held = Held()
    batcher = shoal.Batcher(held, **before)
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call(0))
        batcher.flush()
        await settle()
        callers = await line_up(tasks, *map(call, range(6)))
        batcher.configure(**after)
        held.gate.set()
    assert [caller.outcome for caller in callers] == list(range(6))
    assert held.batches[1:] == batches


async def test_a_new_window_counts_from_the_arrival(held: Held) -> None:
    batcher = shoal.Batcher(held, batch_wait_timeout_s=None)
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call("plug"))
        batcher.flush()
        await settle()
        await line_up(tasks, call(1))
        await anyio.sleep(4)
        batcher.configure(idle_timeout_s=6, batch_wait_timeout_s=0)
        held.gate.set()
    assert held.started_at[1:] == [pytest.approx(6)]


async def test_what_is_too_large_under_the_new_options_fails_alone(held: Held) -> None:
    batcher = shoal.Batcher(held, batch_size_fn=lambda n: n)
    async with plugged(held, batcher, 1) as (call, tasks):
        small, large = await line_up(tasks, call(4), call(6))
        batcher.configure(max_batch_size=5)
        await settle()
        assert small.outcome is PENDING
        assert isinstance(large.outcome, shoal.errors.ItemTooLarge)
        assert (batcher.statistics().queued, batcher.statistics().failed) == (1, 1)
    assert small.outcome == 4
    assert held.batches == [[1], [4]]


async def test_who_is_parked_is_admitted_by_the_new_bound_in_order(held: Held) -> None:
    batcher = shoal.Batcher(held, max_queued_requests=1, max_batch_size=1, overload="wait")
    async with plugged(held, batcher) as (call, tasks):
        await line_up(tasks, *map(call, range(5)))
        assert (batcher.statistics().queued, batcher.statistics().parked) == (1, 4)
        batcher.configure(max_queued_requests=3, bucket_by=lambda n: n % 2)
        assert (batcher.statistics().queued, batcher.statistics().parked) == (3, 2)
    assert held.batches[1:] == [[n] for n in range(5)]


async def test_wishes_are_kept_when_the_options_change(held: Held) -> None:
    batcher = shoal.Batcher(held, max_batch_size=1, priority_levels=2)
    async with plugged(held, batcher) as (call, tasks):
        (late,) = await line_up(tasks, call.options(timeout_s=5)("late"))
        (bored,) = await line_up(tasks, call.options(queue_timeout_s=3)("bored"))
        await line_up(tasks, call.options(priority=2)("low"), call.options(priority=1)("high"))
        batcher.configure(bucket_by=lambda item: None, order="deadline")
        await anyio.sleep(6)
        assert [late.ended_at, bored.ended_at] == [
            pytest.approx(5),
            pytest.approx(3),
        ]
    assert held.batches == [["plug"], ["high"], ["low"]]


async def test_levels_that_are_gone_become_the_lowest(held: Held) -> None:
    batcher = shoal.Batcher(held, max_batch_size=1, priority_levels=9, priority_aging_s=None)
    async with plugged(held, batcher) as (call, tasks):
        for level in (9, 5, 1, 2):
            await line_up(tasks, call.options(priority=level)(level))
        batcher.configure(priority_levels=2)
    assert held.batches[1:] == [[1], [9], [5], [2]]


async def test_who_waited_before_levels_had_bounds_counts_for_them(held: Held) -> None:
    batcher = shoal.Batcher(held, max_batch_size=1)
    async with plugged(held, batcher) as (call, tasks):
        callers = await line_up(tasks, call(1), call(2))
        batcher.configure(default_queue_policy=shoal.QueuePolicy(max_queued_requests=2))
        assert isinstance(await outcome(call(3)), shoal.errors.Overloaded)
        await callers[0].gone()
        await line_up(tasks, call(4))
    assert held.batches[1:] == [[2], [4]]


async def test_who_waited_before_the_queue_shed_may_be_shed(held: Held) -> None:
    batcher = shoal.Batcher(held, max_batch_size=1, max_queued_requests=2)
    async with plugged(held, batcher) as (call, tasks):
        callers = await line_up(tasks, call(1), call(2))
        batcher.configure(overload="shed_oldest")
        callers += await line_up(tasks, call(3))
    assert isinstance(callers[0].outcome, shoal.errors.Overloaded)
    assert held.batches[1:] == [[2], [3]]


async def test_a_flush_that_waits_for_a_slot_outlives_a_change(held: Held) -> None:
    batcher = shoal.Batcher(held, max_batch_size=2, batch_wait_timeout_s=60)
    async with batcher as call, anyio.create_task_group() as tasks:
        await launch(tasks, call(0), call(1))
        (flushed,) = await line_up(tasks, call(2))
        batcher.flush()
        batcher.configure(bucket_by=lambda item: None)
        await held.release()
        assert flushed.outcome == 2


async def test_a_change_that_is_refused_changes_nothing_for_those_who_wait(recorder):
    batcher = shoal.Batcher(recorder, batch_wait_timeout_s=1, bucket_by=lambda n: n % 2)
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, *map(call, range(4)))
        with pytest.raises(ValueError, match="do not go together"):
            batcher.configure(allowed_batch_sizes=(5, 10), preferred_batch_sizes=(4,))
    assert recorder.batches == [[0, 2], [1, 3]]


async def test_calls_before_the_change_run_under_it_and_padding_is_that_of_the_dispatch(held):
    batcher = shoal.Batcher(held, max_batch_size=4, allowed_batch_sizes=(4,))
    async with plugged(held, batcher, 0) as (call, tasks):
        await line_up(tasks, call(1))
        batcher.configure(allowed_batch_sizes=(2, 4))
    assert held.batches == [[0, 0, 0, 0], [1, 1]]


@pytest.mark.parametrize(("before", "after"), [("delay", None), ("reject", "delay")])
async def test_a_request_that_comes_back_keeps_the_action_at_the_end_of_its_time_in_the_queue(
    before: Any, after: Any
) -> None:
    handler = Refusing([RetryLater(1)], run_s=3)
    policies = [QueuePolicy(timeout_s=2, timeout_action=one) for one in (before, after) if one]
    batcher = shoal.Batcher(handler, default_queue_policy=policies[0])
    async with using(batcher) as (call, tasks):
        (waiter,) = await launch(tasks, call(0))
        batcher.configure(default_queue_policy=None if after is None else policies[1])
    if before == "delay":
        assert waiter.outcome == 0
    else:
        assert isinstance(waiter.outcome, shoal.errors.DeadlineExceeded)
