"""Which request is shed for a new one when the queue is full."""

from __future__ import annotations

from typing import Any

import pytest

from core.former_scenes import admit, change, hand_out, new, queue, waiting
from shoal import QueuePolicy
from shoal.core.request import State


def full_queue(overload: str, *levels: int, **options: Any) -> Any:
    requests = [new(n, priority=level) for n, level in enumerate(levels)]
    former = queue(
        *requests,
        idle=0,
        max_queued_requests=len(levels),
        overload=overload,
        priority_levels=3,
        **options,
    )
    return former, requests


@pytest.mark.parametrize(("level", "shed"), [(1, 1), (2, 1), (3, 1)])
def test_the_oldest_of_the_lowest_level_is_shed(level: int, shed: int) -> None:
    former, requests = full_queue("shed_oldest", 2, 3, 3, 1)
    newcomer = new(9, priority=level)
    admission = former.admit(newcomer)
    assert admission.victim is requests[shed]
    assert requests[shed].state is State.FAILED
    assert newcomer in waiting(former)
    assert former.live == 4


@pytest.mark.parametrize(("level", "shed"), [(1, 2), (2, 2), (3, None)])
def test_the_newest_of_the_lowest_level_is_shed_for_a_higher_one(
    level: int, shed: int | None
) -> None:
    former, requests = full_queue("shed_lowest", 2, 3, 3, 1)
    admission = former.admit(new(9, priority=level))
    assert admission.victim is (None if shed is None else requests[shed])
    assert (admission.refusal is None) == (shed is not None)


def test_who_was_put_back_is_as_old_as_before() -> None:
    old, gone, recent = new(0, priority=2), new(0, priority=2), new(1, priority=2)
    former = queue(
        old,
        gone,
        recent,
        idle=0,
        max_batch_size=2,
        max_queued_requests=3,
        overload="shed_lowest",
        priority_levels=2,
    )
    assert hand_out(former, 5) == [old, gone]
    gone.state = State.CANCELLED
    former.put_back([old])
    admit(former, new(2, priority=1))
    assert former.admit(new(3, priority=1)).victim is recent


@pytest.mark.parametrize("overload", ["shed_oldest", "shed_lowest"])
def test_callers_that_arrive_and_leave_leave_nothing_behind(overload: str) -> None:
    former = queue(new(), idle=0, max_queued_requests=100, overload=overload)
    for _ in range(1000):
        one = new()
        former.admit(one)
        former.leave(one)
    assert former._control is not None
    assert former._control._shedding is not None
    assert len(former._control._shedding._heap) < 200


def test_the_bound_holds_while_some_are_parked_from_before() -> None:
    first, second = new(0), new(1)
    former = queue(first, second, idle=0, max_queued_requests=1, overload="wait")
    change(former, overload="shed_oldest")
    former.admit(new(2))
    assert former.live <= former.most


def test_a_level_has_a_bound_of_its_own() -> None:
    policy = QueuePolicy(max_queued_requests=1)
    former = queue(idle=0, priority_levels=2, queue_policies={2: policy}, overload="wait")
    answers = [former.admit(new(priority=level)).refusal for level in (2, 2, 1, 1)]
    assert [answer is None for answer in answers] == [True, False, True, True]
    assert answers[1] == "1 requests of priority 2 are waiting, the limit of the level"


def test_a_request_that_is_put_back_counts_for_its_level() -> None:
    gone, stays = new(), new()
    policy = QueuePolicy(max_queued_requests=2)
    former = queue(gone, stays, idle=0, default_queue_policy=policy)
    taken = hand_out(former)
    gone.state = State.CANCELLED
    former.put_back(taken)
    assert [former.admit(new()).refusal is None for _ in range(2)] == [True, False]
