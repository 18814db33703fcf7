"""Deadlines: which request goes first, when a batch leaves early, and which call is refused."""

from typing import Any

import anyio
import pytest

import shoal
from batching.callers import launch, line_up, outcome
from batching.scenes import Held, Refusing, opening, plugged
from shoal import DispatchReason

# order


@pytest.mark.parametrize(
    ("options", "dues", "expected"),
    [
        pytest.param(
            {"max_batch_size": 1, "priority_aging_s": 10.0},
            {"none": None, "30": 30, "9": 9, "12": 12, "5": 5},
            [["5"], ["9"], ["none"], ["12"], ["30"]],
            id="one without is due when it has aged",
        ),
        pytest.param(
            {"max_batch_size": 1, "priority_aging_s": None},
            {"none": None, "30": 30, "9": 9, "12": 12, "5": 5},
            [["5"], ["9"], ["12"], ["30"], ["none"]],
            id="one without comes last",
        ),
        pytest.param(
            {"request_timeout_s": 60},
            {"a": None, "b": None, "c": None, "first": 59},
            [["first", "a", "b", "c"]],
            id="equal ones by arrival",
        ),
        pytest.param(
            {"bucket_by": lambda item: item[0]},
            {"a1": 20, "b1": 9, "a2": 5, "c1": 7},
            [["a2", "a1"], ["c1"], ["b1"]],
            id="buckets",
        ),
    ],
)
async def test_the_earliest_deadline_goes_first(options, dues, expected, held):
    async with plugged(held, order="deadline", **options) as (_, call, tasks):
        for item, due in dues.items():
            await line_up(tasks, call.options(timeout_s=due)(item))
    assert held.batches[1:] == expected


async def test_deadlines_order_the_requests_of_a_level_and_levels_go_before(held: Held) -> None:
    options: Any = {"order": "deadline", "priority_levels": 2, "priority_aging_s": None}
    async with plugged(held, **options) as (_, call, tasks):
        for priority, due in [(2, 5), (1, 30), (2, 2), (1, 9)]:
            asking = call.options(priority=priority, timeout_s=due)
            await line_up(tasks, asking((priority, due)))
    assert held.batches[1] == [(1, 9), (1, 30), (2, 2), (2, 5)]


# Leaving in time


async def test_lb2_a_batch_leaves_at_half_of_the_time_while_nothing_was_measured() -> None:
    handler = Refusing(run_s=1)
    async with opening(handler, batch_wait_timeout_s=None) as (batcher, call, tasks):
        callers = await line_up(tasks, call("no deadline"))
        await anyio.sleep(2)
        callers += await line_up(tasks, call.options(timeout_s=8)("due"))
    assert handler.batches == [["no deadline", "due"]]
    assert handler.started_at == [pytest.approx(2 + 4)]
    assert handler.reasons == [DispatchReason.DEADLINE]
    assert [caller.outcome for caller in callers] == ["no deadline", "due"]
    assert batcher.statistics().batches[DispatchReason.DEADLINE] == 1


async def test_a_batch_leaves_when_its_run_still_ends_in_time() -> None:
    times = [3.9, 4.0, 4.1]
    handler = Refusing()
    async with opening(handler, batch_wait_timeout_s=60) as (batcher, call, tasks):
        for handler.run_s in times * 14:  # the longer it is known, the later it can leave
            await line_up(tasks, call("before"))
            batcher.flush()
            await anyio.sleep(5)
        for handler.run_s in times:
            started = anyio.current_time()
            (caller,) = await line_up(tasks, call.options(timeout_s=20)("due"))
            await anyio.sleep(30)
            assert caller.outcome == "due"
            assert handler.reasons[-1] is DispatchReason.DEADLINE
            assert 15 <= handler.started_at[-1] - started < 16


async def test_only_the_bucket_of_the_urgent_request_leaves_early() -> None:
    handler = Refusing()
    batcher = shoal.Batcher(handler, batch_wait_timeout_s=60, bucket_by=lambda item: item[0])
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call("a1"))
        await line_up(tasks, call.options(timeout_s=10)("b1"))
        await line_up(tasks, call("b2"), call("a2"))
    assert handler.batches == [["b1", "b2"], ["a1", "a2"]]
    assert handler.reasons == [DispatchReason.DEADLINE, DispatchReason.TIMER]


async def test_an_urgent_request_leaves_although_others_of_its_bucket_go_before_it() -> None:
    handler = Refusing()
    batcher = shoal.Batcher(
        handler,
        max_batch_size=6,
        batch_wait_timeout_s=60,
        batch_size_fn=lambda size: size,
        priority_levels=2,
    )
    async with batcher as call, anyio.create_task_group() as tasks:
        (urgent,) = await line_up(tasks, call.options(priority=2, timeout_s=10)(3))
        await line_up(tasks, call.options(priority=1)(2))
    assert urgent.outcome == 3
    assert handler.batches == [[2, 3]]
    assert handler.started_at == [pytest.approx(5)]


async def test_a_request_that_waits_for_a_preferred_size_leaves_in_time() -> None:
    handler = Refusing()
    async with opening(
        handler, batch_wait_timeout_s=None, preferred_batch_sizes=(4,), request_timeout_s=10
    ) as (_, call, tasks):
        callers = await line_up(tasks, call(1), call(2))
    assert [caller.outcome for caller in callers] == [1, 2]
    assert handler.reasons == [DispatchReason.DEADLINE]


async def test_one_that_has_left_makes_nobody_leave_early() -> None:
    handler = Refusing()
    async with opening(handler, batch_wait_timeout_s=60) as (_, call, tasks):
        (urgent,) = await line_up(tasks, call.options(timeout_s=10)("urgent"))
        await line_up(tasks, call("patient"))
        urgent.leave()
    assert handler.batches == [["patient"]]
    assert handler.started_at == [pytest.approx(60)]


# use_scope_deadline


async def test_the_deadline_of_the_cancel_scope_makes_a_batch_leave_in_time() -> None:
    handler = Refusing(run_s=1)
    async with shoal.Batcher(handler, batch_wait_timeout_s=60, use_scope_deadline=True) as call:
        with anyio.fail_after(10):
            assert await call("due") == "due"
    assert handler.reasons == [DispatchReason.DEADLINE]


async def test_without_the_option_the_scope_only_ends_the_call() -> None:
    handler = Refusing(run_s=1)
    async with shoal.Batcher(handler, batch_wait_timeout_s=60) as call:
        with anyio.move_on_after(10) as scope:
            await call("due")
        assert scope.cancelled_caught
    assert handler.batches == []


async def test_of_the_scope_and_the_calls_own_deadline_the_earlier_counts(held: Held) -> None:
    options: Any = {"max_batch_size": 1, "order": "deadline", "use_scope_deadline": True}

    async def within(scope_s: float, call: Any, item: Any) -> Any:
        with anyio.fail_after(scope_s):
            return await call(item)

    async with plugged(held, **options) as (_, call, tasks):
        await line_up(
            tasks,
            within(8, call, "scope 8"),
            within(6, call.options(timeout_s=20), "scope 6"),
            within(20, call.options(timeout_s=4), "own 4"),
            call.options(timeout_s=7)("own 7"),
        )
    assert held.batches[1:] == [["own 4"], ["scope 6"], ["own 7"], ["scope 8"]]


# refuse_late


async def test_a_call_that_can_not_end_in_time_is_refused_at_once() -> None:
    handler = Refusing(run_s=4)
    async with opening(handler, max_batch_size=1, refuse_late=True) as (batcher, call, tasks):
        callers = await launch(tasks, call.options(timeout_s=9)("not measured yet"))
        callers += await line_up(tasks, call.options(timeout_s=9)("not known either"))
        await anyio.sleep(10)
        callers += await launch(tasks, call("running"))
        started = anyio.current_time()
        refusal = await outcome(call.options(timeout_s=7)("late"))
        assert isinstance(refusal, shoal.errors.Overloaded)
        assert "would end 8 s from now, and is due in 7 s" in str(refusal)
        assert anyio.current_time() == started
        assert batcher.statistics().rejected == 1
        callers += await line_up(tasks, call.options(timeout_s=9)("in time"))
        callers += await line_up(tasks, call("whenever"))
    ran = ["not measured yet", "not known either", "running", "in time", "whenever"]
    assert [caller.outcome for caller in callers] == ran
    assert handler.batches == [[item] for item in ran]


async def test_an_idle_batcher_refuses_nobody_and_so_learns_that_it_got_faster() -> None:
    handler = Refusing(run_s=10)
    async with shoal.Batcher(handler, max_batch_size=1, refuse_late=True) as call:
        await call("a cold start")
        handler.run_s = 1
        assert await outcome(call.options(timeout_s=5)("warm")) == "warm"


async def test_what_is_ahead_in_the_queue_counts_for_refusing() -> None:
    handler = Refusing(run_s=4)
    async with opening(handler, max_batch_size=2, refuse_late=True) as (_, call, tasks):
        await call.map([1, 2])
        callers = await launch(tasks, *map(call, range(2)))  # in the handler, for 4 s
        await anyio.sleep(1)
        callers += await line_up(tasks, *map(call, range(2, 4)))  # then these, for 4 s more
        late = await outcome(call.options(timeout_s=10)("due in 10, done in 3 + 4 + 4"))
        assert isinstance(late, shoal.errors.Overloaded)
        callers += await line_up(tasks, call.options(timeout_s=12)(4))
    assert [caller.outcome for caller in callers] == list(range(5))
