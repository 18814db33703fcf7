"""The queue by examples, beside what tests/batching says of it."""

import gc
import math
from collections.abc import Sequence
from typing import Any

import pytest

from core.former_scenes import admit, change, check, expire, hand_out, new, queue, take, waiting
from shoal import BatchOptions, QueuePolicy, Request
from shoal.core.forming.former import Former
from shoal.core.policies.buckets import Buckets
from shoal.core.policy import Dispatch, Wait
from shoal.core.request import Batch, DispatchReason, Returned, State
from shoal.policies import Pressure, WholeQueuePolicy

# When a batch goes


def test_a_flush_does_not_outlive_those_who_failed_in_a_change() -> None:
    large, small = new(item=8, cost=8), new(item=1)
    former = queue(large, small, batch_size_fn=float, batch_wait_timeout_s=None)
    former.flush()
    assert change(former, max_batch_size=5) == [large]
    assert take(former) == [small]
    admit(former, new(item=1))
    assert isinstance(former.decide(0), Wait)


class Hostile(WholeQueuePolicy):
    """A policy that empties the list passed to `put_back`, and uses our internal names."""

    def __init__(self, _options: Any) -> None:
        super().__init__()
        self.size = 1000
        self.append = self.extend = self.by_arrival = self.cost_beside = self.cost_of_all = None

    def choose(self, queue: Sequence[Request], now: float, pressure: Pressure | None) -> Any:
        return queue, DispatchReason.FULL

    def put_back(self, requests: Any) -> None:
        super().put_back(requests)
        requests.clear()


def test_a_policy_may_change_the_list_it_takes_back_and_have_any_names() -> None:
    requests = [new(), new()]
    former = queue(*requests, policy=Hostile)
    assert former.cost_beside(new().options) == former.cost == 2  # type: ignore[arg-type]
    former.put_back(hand_out(former))
    assert former.live == len(requests)


@pytest.mark.parametrize("never", [None, math.inf])
@pytest.mark.parametrize("order", ["arrival", "deadline"])
def test_strict_levels_do_not_age(order: str, never: float | None) -> None:
    low, high = new(0, priority=2), new(1e9, priority=1)
    former = queue(low, high, priority_levels=2, priority_aging_s=never, order=order, idle=0)
    assert waiting(former) == [high, low]


@pytest.mark.parametrize("costs", [[0.9, 0.1], [0.7, 0.2, 0.1], [0.1] * 10])
def test_costs_that_sum_up_to_the_bound_share_a_batch(costs: list[float]) -> None:
    former = queue(*[new(cost=cost) for cost in costs], max_batch_size=1, batch_size_fn=float)
    assert len(take(former)) == len(costs)


def test_an_arrival_extends_an_idle_wait_and_wakes_nobody() -> None:
    former = queue(new(0), idle_timeout_s=1)
    former.decide(0)
    assert not former.admit(new(0.75)).ring
    assert former.decide(1) == Wait(1.75)


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


@pytest.mark.parametrize("calm_before", [False, True])
def test_a_request_must_leave_by_the_run_times_measured_meanwhile(calm_before: bool) -> None:
    former = Former(BatchOptions.of({"max_batch_size": 8, "batch_wait_timeout_s": 9}))
    former.batches[Batch(1, DispatchReason.FULL, [])] = 0.0
    former.idle_slots = 1
    former.model.observe(1, 1.0)
    admit(former, new())
    former.decide(0.0)
    if calm_before:
        assert not former.admit(new(1.0, deadline=1000.0)).ring
    for _ in range(200):
        former.model.observe(1, 20.0)
    assert former.admit(new(1.0, deadline=25.0)).ring


# What is left behind


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"overload": "shed_oldest"},
        {"overload": "shed_lowest"},
        {"overload": "wait", "max_queued_requests": 1},
    ],
)
def test_callers_that_arrive_and_leave_leave_nothing_behind(options: dict[str, Any]) -> None:
    former = queue(new(), idle=0, **{"max_queued_requests": 100, **options})
    for _ in range(1000):
        one = new()
        former.admit(one)
        former.leave(one)
    shed = former._control._heap if former._control else ()
    kept = [former._parked, former._policy.queue, shed]
    assert sum(map(len, kept)) < 200
    assert former.live == 1


@pytest.mark.parametrize("deadline", [60.0, math.inf])
@pytest.mark.parametrize("idle", [0, 1])
def test_callers_with_deadlines_that_arrive_and_leave_leave_nothing_behind(deadline, idle):
    former = queue(new(deadline=1.0), idle=idle, batch_wait_timeout_s=9)
    if idle:
        former.decide(0.0)
    for _ in range(1000):
        one = new(deadline=deadline)
        admit(former, one)
        former.leave(one)
        former.overdue.forget(one.options)
    assert len(former.pressures._leave_by._heap) + len(former.pressures.unseen) < 200
    assert len(former.overdue.timers) == 1


def test_a_flush_goes_on_for_those_who_were_put_back() -> None:
    gone, stays = new(), new()
    former = queue(gone, stays, batch_wait_timeout_s=None)
    former.flush()
    taken = hand_out(former)
    gone.state = State.CANCELLED
    former.put_back([one for one in taken if one is stays])
    assert former.decide(0) == Dispatch(1, DispatchReason.FLUSH)
    assert take(former) == [stays]


@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_retried_request_is_dispatched_at_once_and_by_its_own_reason(is_flushed: bool) -> None:
    former = queue(new(), batch_wait_timeout_s=9)
    former.flush()
    (retried,) = take(former)
    retried.state, retried.returned = State.QUEUED, Returned(1, 0)
    admit(former, new())
    former.insert(retried)
    if is_flushed:
        former.flush()
    assert former.decide(0) == Dispatch(2, DispatchReason.RETRY)
    former.put_back(hand_out(former))
    assert former.decide(0) == Dispatch(2, DispatchReason.RETRY)
    take(former)
    admit(former, new())
    assert isinstance(former.decide(0), Wait)


def test_who_was_put_back_is_as_old_as_before() -> None:
    old, gone, recent = new(0, priority=2), new(0, priority=2), new(1, priority=2)
    bound: Any = {"max_queued_requests": 3, "overload": "shed_lowest", "priority_levels": 2}
    former = queue(old, gone, recent, idle=0, max_batch_size=2, **bound)
    assert hand_out(former, 5) == [old, gone]
    gone.state = State.CANCELLED
    former.put_back([old])
    admit(former, new(2, priority=1))
    assert former.admit(new(3, priority=1)).victim is recent


def test_a_request_that_is_put_back_counts_for_its_level() -> None:
    gone, stays = new(), new()
    policy = QueuePolicy(max_queued_requests=2)
    former = queue(gone, stays, idle=0, default_queue_policy=policy)
    taken = hand_out(former)
    gone.state = State.CANCELLED
    former.put_back(taken)
    assert [former.admit(new()).refusal is None for _ in range(2)] == [True, False]


def test_what_a_call_asked_for_outlives_a_change() -> None:
    one = new(0.0, waits_s=5.0, deadline=9.0, metadata={"user": 1})
    asked = one.options
    assert asked is not None
    asked.asked_priority, asked.due, asked.waits_for_room = 2, 4.0, True
    former = queue(one, priority_levels=3, batch_wait_timeout_s=9)
    change(former, max_batch_size=3)
    assert one.options is not asked
    names = "asked_priority deadline delays due metadata queue_timeout_s queue_timer timer"
    for name in [*names.split(), "waits_for_room"]:
        assert getattr(one.options, name) == getattr(asked, name)


@pytest.mark.parametrize("overload", ["shed_oldest", "shed_lowest"])
@pytest.mark.parametrize("sheds_before", [False, True])
def test_a_request_that_is_queued_again_is_shed_by_its_arrival(
    overload: str, sheds_before: bool
) -> None:
    others = [new(n, priority=2) for n in range(1, 5)]
    bound: Any = {"max_queued_requests": 4, "overload": overload, "priority_levels": 2}
    former = queue(new(0, priority=2), max_batch_size=1, **bound)
    (back,) = take(former)
    former.idle_slots = 0
    admit(former, *others)
    if sheds_before:
        assert former.admit(new(5)).victim in others
    back.state, back.returned = State.QUEUED, Returned(1, 0)
    former.insert(back)
    left = [one for one in [back, *others] if one.state is State.QUEUED]
    expected = left[0 if overload == "shed_oldest" else -1]
    assert former.admit(new(6)).victim is expected


@pytest.mark.parametrize("aging_s", [None, 10.0])
def test_delayed_requests_stay_in_order_when_the_options_change(aging_s: float | None) -> None:
    first, second = new(0.0), new(1.0, waits_s=1.0)
    policy = QueuePolicy(timeout_s=5, timeout_action="delay")
    levels: Any = {"priority_levels": 2, "priority_aging_s": aging_s}
    former = queue(first, second, idle=0, max_batch_size=1, default_queue_policy=policy, **levels)
    assert expire(former, 2.0) == expire(former, 5.0) == []
    assert waiting(former) == [second, first]
    change(former, max_batch_size=2)
    assert waiting(former) == [second, first]
    assert take(former, 9.0) == [second, first]


def test_a_delayed_request_is_behind_the_others_of_its_level_whatever_its_deadline() -> None:
    delayed, other = new(waits_s=1.0, deadline=50.0), new(deadline=100.0)
    policy = QueuePolicy(timeout_s=5, timeout_action="delay")
    strict: Any = {"order": "deadline", "priority_aging_s": None}
    former = queue(delayed, other, idle=0, default_queue_policy=policy, **strict)
    assert waiting(former) == [delayed, other]
    assert expire(former, 2.0) == []
    assert waiting(former) == [other, delayed]


def test_a_request_that_comes_back_is_no_other_call() -> None:
    former = queue(*(new(n) for n in range(3)), max_batch_size=2)
    calls = former.calls
    taken = take(former)
    assert former.calls == calls
    for request in reversed(taken):
        request.state = State.QUEUED
        former.insert(request)
    assert former.calls == calls
    assert waiting(former)[:2] == taken
    check(former)


# Buckets: their order, when a slot is woken, and that empty ones are dropped


KEYS: dict[str, Any] = {"bucket_by": len, "max_batch_size": 2}


@pytest.mark.parametrize("how", ["leaves", "comes"])
def test_a_slot_is_not_woken_for_a_bucket_that_is_due_later(how: str) -> None:
    name = "batch_wait_timeout_s" if how == "leaves" else "idle_timeout_s"
    first = new(0.0, key="a")
    former = queue(first, bucket_by=len, **{name: 1.0})
    assert former.decide(0.0).until == 1.0  # type: ignore[union-attr]
    admit(former, new(0.5, key="a"))
    if how == "leaves":
        former.leave(first)
    assert former.decide(0.5).until == 1.5  # type: ignore[union-attr]


def test_a_bucket_that_is_empty_is_forgotten_and_keeps_no_request() -> None:
    former = queue(new(-1, key="stays"), priority_levels=2, batch_wait_timeout_s=3600, **KEYS)
    gc.collect()
    before = sum(isinstance(found, Request) for found in gc.get_objects())
    for key in range(40):
        pair = [new(0, key=key), new(0, key=key)]
        admit(former, *pair)
        assert take(former) == pair
        for one in pair:
            one.state = State.FINISHED
    del pair, one
    former.decide(0.0)
    gc.collect()
    assert sum(isinstance(found, Request) for found in gc.get_objects()) <= before + 2
    assert isinstance(former._policy, Buckets)
    assert list(former._policy._buckets) == ["stays"]


@pytest.mark.parametrize("options", [{}, {"sticky_load_factor": 1.25}])
def test_a_call_whose_key_cannot_be_compared_leaves_nothing_behind(options: Any) -> None:
    class Key:
        def __hash__(self) -> int:
            return hash(None)

        def __eq__(self, other: object) -> bool:
            raise ValueError

    waits = new(0, key=None)
    former = queue(waits, **KEYS, **options)
    for _ in range(3):
        with pytest.raises(ValueError):
            former.admit(new(0, key=Key()))
    check(former)
    assert take(former) == [waits]
    assert isinstance(former._policy, Buckets)
    assert former._policy._homes is None or not former._policy._homes._waiting


def test_newcomers_that_lead_a_bucket_and_leave_are_forgotten() -> None:
    taken, stays = new(0, key="a", deadline=1e9), new(0, key="b", deadline=2e9)
    former = queue(taken, stays, order="deadline", **KEYS)
    assert take(former) == [taken]
    for n in range(5000):
        one = new(0, key="b", deadline=1e8 - n)
        former.admit(one)
        former.leave(one)
    policy = former._policy
    assert isinstance(policy, Buckets)
    assert len(policy._ready._heap) + len(policy._agenda._heap) < 300
    assert take(former) == [stays]


def test_when_its_head_leaves_a_bucket_is_as_old_as_its_next() -> None:
    leaves, stays, other = new(0, key="a"), new(2, key="a"), new(1, key="b")
    former = queue(leaves, other, stays, batch_wait_timeout_s=5, **{**KEYS, "max_batch_size": 3})
    third = new(0, key="c")
    admit(former, third)
    decision = former.decide(9.0)  # all are looked at
    assert isinstance(decision, Dispatch)
    former.leave(leaves)
    assert [take(former, 9.0) for _ in range(3)] == [[third], [other], [stays]]


def test_requests_that_are_put_back_are_dispatched_at_once() -> None:
    leaves, stays = new(0, key="a"), new(0, key="a")
    former = queue(leaves, stays, **KEYS)
    taken = hand_out(former)
    leaves.state = State.CANCELLED
    former.put_back(taken)
    assert take(former) == [stays]
