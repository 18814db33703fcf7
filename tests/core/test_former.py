"""The queue by examples: when a batch is dispatched, and which requests are admitted or shed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from core.former_scenes import admit, change, check, expire, hand_out, new, queue, take, waiting
from shoal import BatchOptions, QueuePolicy
from shoal.core.forming.former import Former
from shoal.core.policies.rule import SizeOrWait
from shoal.core.policy import Dispatch, Wait
from shoal.core.request import DispatchReason, State
from shoal.policies import WholeQueuePolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal import Request
    from shoal.policies import Pressure

# When a batch goes


def test_the_wait_is_counted_from_the_oldest_arrival() -> None:
    oldest = new(1)
    former = queue(oldest, new(3), batch_wait_timeout_s=5, max_batch_size=4)
    assert former.decide(5.999) == Wait(6, 4)
    assert former.decide(6) == Dispatch(2, DispatchReason.TIMER)
    former.leave(oldest)
    assert former.decide(6) == Wait(8, 4)


@pytest.mark.parametrize("leaving", [0, 1, 2])
def test_a_flush_covers_what_is_queued_then(leaving: int) -> None:
    requests = [new(), new(), new()]
    former = queue(*requests, batch_wait_timeout_s=None)
    former.flush()
    for one in requests[:leaving]:
        former.leave(one)
    assert former.decide(0) == Dispatch(3 - leaving, DispatchReason.FLUSH)
    assert take(former) == requests[leaving:]
    admit(former, new())
    assert former.decide(0) == Wait(None, 10)


def test_a_flush_does_not_outlive_those_who_failed_in_a_change() -> None:
    large, small = new(item=8, cost=8), new(item=1)
    former = queue(large, small, batch_size_fn=float, batch_wait_timeout_s=None)
    former.flush()
    assert change(former, max_batch_size=5) == [large]
    assert take(former) == [small]
    admit(former, new(item=1))
    assert isinstance(former.decide(0), Wait)


def test_a_flush_goes_on_for_those_who_were_put_back() -> None:
    gone, stays = new(), new()
    former = queue(gone, stays, batch_wait_timeout_s=None)
    former.flush()
    taken = hand_out(former)
    gone.state = State.CANCELLED
    former.put_back([one for one in taken if one is stays])
    assert former.decide(0) == Dispatch(1, DispatchReason.FLUSH)
    assert take(former) == [stays]


def test_a_flush_is_of_those_who_were_handed_out_last() -> None:
    former = queue(new(), max_batch_size=1, batch_wait_timeout_s=0)
    former.flush()
    take(former)
    assert former.pressures.handed_out_flushed
    admit(former, new())
    take(former)
    assert not former.pressures.handed_out_flushed


class Emptying(WholeQueuePolicy):
    """A policy that empties the list that `put_back` passes to it."""

    def __init__(self, _options: Any) -> None:
        super().__init__()

    def choose(self, queue: Sequence[Request], now: float, pressure: Pressure | None) -> Any:
        return queue, DispatchReason.FULL

    def put_back(self, requests: Any) -> None:
        super().put_back(requests)
        requests.clear()


def test_a_rule_may_change_the_list_of_those_that_it_takes_back() -> None:
    requests = [new(), new()]
    former = queue(*requests, policy=Emptying)
    former.put_back(hand_out(former))
    assert former.live == len(requests)


# Deadlines


def test_who_is_due_leaves_at_half_of_its_time_while_no_run_time_is_known() -> None:
    former = queue(new(2, deadline=10), batch_wait_timeout_s=60)
    assert former.decide(2) == Wait(6, 10)
    assert former.decide(6) == Dispatch(1, DispatchReason.DEADLINE)


def test_a_slot_that_waits_is_woken_for_one_who_is_due_earlier() -> None:
    former = queue(new(), batch_wait_timeout_s=60)
    decision = former.decide(0)
    assert isinstance(decision, Wait)
    assert not former.admit(new(1, deadline=200)).ring
    assert former.admit(new(1, deadline=50)).ring


def test_who_is_due_leaves_though_others_come_first() -> None:
    low = new(0, deadline=10, priority=2)
    former = queue(low, max_batch_size=2, batch_wait_timeout_s=60, priority_levels=2)
    for _ in range(3):
        admit(former, new(0, priority=1))
    while low.state is not State.RUNNING:
        assert take(former, 5.0)
    assert former.live == 0


# Admission


def test_what_idle_slots_can_take_does_not_count_as_waiting() -> None:
    former = queue(max_batch_size=4, max_queued_requests=3)
    assert former.most == 7
    former.reform(idle_slots=0)
    assert former.most == 3


def test_idle_slots_take_as_much_as_the_costs_allow() -> None:
    former = queue(max_queued_requests=0, batch_size_fn=float)
    answers = [former.admit(new(cost=cost)).refusal for cost in (6, 5, 4, 0, 1)]
    assert [answer is None for answer in answers] == [True, False, True, True, False]
    assert "max_queued_requests=0" in str(answers[1])


def test_a_closed_queue_admits_the_parked_and_refuses_others() -> None:
    first, second = new(), new()
    former = queue(first, second, max_queued_requests=1, overload="wait", idle=0)
    assert second.state is State.PARKED
    former.close()
    assert waiting(former) == [first, second]
    assert former.admit(new()).refusal == "it is closed"
    former.reform(idle_slots=1)
    assert former.scheduling_capacity == 0


def parked_by_cost(*costs: float, idle: int = 0) -> tuple[Any, list[Any]]:
    requests = [new(cost=cost) for cost in costs]
    former = queue(
        *requests, max_queued_requests=0, overload="wait", batch_size_fn=float, idle=idle
    )
    return former, requests


def test_an_idle_slot_admits_a_large_parked_request() -> None:
    former, (large,) = parked_by_cost(6)
    former.reform(idle_slots=1)
    assert large.state is State.QUEUED


def test_nobody_overtakes_a_parked_request() -> None:
    former, (_, leaves, large) = parked_by_cost(4, 3, 7, idle=1)
    former.leave(leaves)
    assert large.state is State.PARKED
    small = new(cost=1)
    admit(former, small)
    assert small.state is State.PARKED


# Changes


def test_a_change_fails_who_does_not_fit_any_more_parked_or_not() -> None:
    requests = [new(item=item, cost=item) for item in (2, 8, 9)]
    former = queue(*requests, batch_size_fn=float, max_queued_requests=2, overload="wait", idle=0)
    assert change(former, max_batch_size=4) == requests[1:]
    assert (former.live, former.parked) == (1, 0)
    assert [one.state for one in requests[1:]] == [State.FAILED, State.FAILED]


def test_a_demotion_that_comes_after_a_change_hands_nobody_out_twice() -> None:
    late = new(item=1)
    policy = QueuePolicy(timeout_s=1, timeout_action="delay")
    former = queue(late, max_batch_size=4, default_queue_policy=policy)
    change(former, default_queue_policy=None, batch_size_fn=float)
    assert expire(former, 2.0) == []
    check(former)
    assert take(former, 2.0) == [late]
    assert former.live == 0


# Deadlines that are computed only if they may matter before a slot decides again


def measured(**options: Any) -> Former:
    """Makes a queue whose handler takes a second, as measured, and whose batches wait for 9 s."""
    former = queue(max_batch_size=8, batch_wait_timeout_s=9, **options)
    for _ in range(20):
        former.model.observe(1, 1.0)
    return former


def must_leave_by(former: Former, due: float, size: int) -> float:
    lead_s = former.pressures.lead_s(size)
    assert lead_s is not None
    return due - lead_s


@pytest.mark.parametrize("seconds", [-0.1, 0.1])
def test_a_slot_is_woken_for_a_request_that_must_leave_before_it_decides(seconds: float) -> None:
    former = measured()
    admit(former, *[new() for _ in range(6)])
    assert former.decide(0.0) == Wait(9.0, 8)
    due = 2 * 9.0 - must_leave_by(former, 9.0, 7) + seconds
    assert former.admit(new(1.0, deadline=due)).ring == (seconds < 0)
    assert former.decide(1.0) == Wait(pytest.approx(min(9.0, 9.0 + seconds)), 8)


def test_the_first_of_requests_that_came_while_no_slot_waited_counts() -> None:
    former = measured()
    admit(former, *[new(deadline=due) for due in (200.0, 5.0, 100.0)])
    wait = former.decide(0.0)
    assert isinstance(wait, Wait)
    assert wait.until is not None
    assert must_leave_by(former, 5.0, 8) <= wait.until < 5.0
    assert not former.pressures.unseen


def test_a_request_leaves_in_time_for_the_cost_of_its_batch() -> None:
    former = queue(max_batch_size=100, batch_wait_timeout_s=9, batch_size_fn=float)
    for _ in range(20):
        former.model.observe(1, 0.1)
        former.model.observe(50, 5.0)
    admit(former, new(cost=1), new(cost=49, deadline=12.0))
    wait = former.decide(0.0)
    assert isinstance(wait, Wait)
    assert wait.until == must_leave_by(former, 12.0, 50) < 9


def test_a_slot_is_woken_once_for_requests_that_come_together() -> None:
    former = measured()
    assert former.decide(0.0) == Wait(None, 1)
    assert [former.admit(new(deadline=60)).ring for _ in range(5)] == [True, *[False] * 4]


def test_a_request_must_leave_by_the_run_times_measured_while_a_slot_waits() -> None:
    batches: dict[Any, float] = {object(): 0.0}
    former = Former(BatchOptions.of({"max_batch_size": 8, "batch_wait_timeout_s": 9}), batches)
    former.reform(idle_slots=1)
    former.model.observe(1, 1.0)
    admit(former, new())
    former.decide(0.0)
    for _ in range(200):
        former.model.observe(1, 20.0)
    assert former.admit(new(1.0, deadline=25.0)).ring


def test_run_times_that_are_measured_between_two_arrivals_count_for_the_second() -> None:
    batches: dict[Any, float] = {object(): 0.0}
    former = Former(BatchOptions.of({"max_batch_size": 8, "batch_wait_timeout_s": 9}), batches)
    former.reform(idle_slots=1)
    former.model.observe(1, 1.0)
    admit(former, new())
    former.decide(0.0)
    assert not former.admit(new(1.0, deadline=1000.0)).ring
    for _ in range(200):
        former.model.observe(1, 20.0)
    assert former.admit(new(1.0, deadline=25.0)).ring


# What is left behind


def test_the_queue_does_not_grow_by_callers_that_arrive_and_leave() -> None:
    former = queue(new(), batch_wait_timeout_s=None)
    assert isinstance(former._policy, SizeOrWait)
    longest = 0
    for _ in range(10_000):
        one = new()
        former.admit(one)
        former.leave(one)
        longest = max(longest, len(former._policy.queue))
    assert longest < 100
    assert former.live == 1


def test_parked_callers_that_leave_do_not_grow_it_either() -> None:
    former = queue(new(), new(), max_queued_requests=0, max_batch_size=1, overload="wait")
    longest = 0
    for _ in range(10_000):
        one = new()
        former.admit(one)
        former.leave(one)
        longest = max(longest, len(former._parked))
    assert longest < 100
    assert former.parked == 1


@pytest.mark.parametrize("deadline", [60.0, math.inf])
@pytest.mark.parametrize("idle", [0, 1])
def test_callers_with_deadlines_that_arrive_and_leave_leave_nothing_behind(
    deadline: float, idle: int
) -> None:
    former = queue(new(deadline=1.0), idle=idle, batch_wait_timeout_s=9)
    if idle:
        former.decide(0.0)
    for _ in range(1000):
        one = new(deadline=deadline)
        admit(former, one)
        former.leave(one)
        former.overdue.forget(one)
    assert len(former.pressures._leave_by) + len(former.pressures.unseen) < 200
    assert len(former.overdue.timers) == 1


def test_a_flush_keeps_nobody_after_it() -> None:
    former = queue(new(), batch_wait_timeout_s=None)
    former.flush()
    take(former)
    former.decide(0)
    assert not former.pressures._handed_out
    assert not former.pressures.covered


def test_once_a_batch_is_due_no_arrival_wakes_a_slot() -> None:
    former = queue(new(), new(), max_batch_size=3, batch_wait_timeout_s=10)
    assert former.decide(0) == Wait(10, 3)
    assert former.wake_at == 3
    assert former.decide(10) == Dispatch(2, DispatchReason.TIMER)
    assert not former.admit(new()).ring
