"""How long requests wait for a batch to fill: by level, and until idle."""

from __future__ import annotations

import pytest

from core.former_scenes import admit, new, queue, take
from shoal import QueuePolicy
from shoal.core.batch import DispatchReason
from shoal.core.policy import Dispatch, Wait


@pytest.mark.parametrize(
    ("window_s", "reason", "at"),
    [
        (0, DispatchReason.IDLE, 1.5),  # with an idle timeout, 0 is no bound
        (None, DispatchReason.IDLE, 1.5),
        (5, DispatchReason.IDLE, 1.5),
        (1.25, DispatchReason.TIMER, 1.25),
    ],
)
def test_the_wait_ends_when_nobody_came_for_so_long(
    window_s: float | None, reason: DispatchReason, at: float
) -> None:
    former = queue(new(0), new(0.5), idle_timeout_s=1, batch_wait_timeout_s=window_s)
    assert former.decide(0.5) == Wait(at)
    assert former.decide(at) == Dispatch(2, reason)


def test_an_arrival_makes_the_wait_longer_and_wakes_nobody() -> None:
    former = queue(new(0), idle_timeout_s=1)
    former.decide(0)
    assert not former.admit(new(0.75)).ring
    assert former.decide(1) == Wait(1.75)


def test_who_must_leave_earlier_wakes_the_slot() -> None:
    former = queue(
        new(0, priority=2),
        priority_levels=2,
        batch_wait_timeout_s=10,
        queue_policies={1: QueuePolicy(batch_wait_timeout_s=1)},
    )
    assert former.decide(0) == Wait(10)
    assert not former.admit(new(2, priority=2)).ring
    assert former.admit(new(3, priority=1)).ring
    assert former.decide(3) == Wait(4)
    assert len(take(former, 4)) == 3


def test_a_level_without_a_window_of_its_own_only_fills_the_room_of_others() -> None:
    former = queue(
        new(0, priority=2),
        priority_levels=2,
        max_batch_size=3,
        queue_policies={2: QueuePolicy(batch_wait_timeout_s=None)},
    )
    assert former.decide(1e9) == Wait(None)
    admit(former, new(1e9, priority=1))
    assert len(take(former, 1e9)) == 2
    admit(former, *[new(0, priority=2) for _ in range(3)])
    assert former.decide(0) == Dispatch(3, DispatchReason.FULL)


def test_when_who_must_leave_first_has_left_the_others_wait_on() -> None:
    hasty = new(0, priority=1)
    former = queue(
        hasty,
        new(0, priority=2),
        priority_levels=2,
        batch_wait_timeout_s=10,
        queue_policies={1: QueuePolicy(batch_wait_timeout_s=1)},
    )
    assert former.decide(0) == Wait(1)
    former.leave(hasty)
    assert former.decide(1) == Wait(10)
