"""How much goes into a batch, and how long requests wait for it to fill."""

from __future__ import annotations

from typing import Any

import pytest

from core.former_scenes import admit, new, queue, take
from shoal import BatchOptions, QueuePolicy
from shoal.core.policies.sizing import load_of, padded
from shoal.core.policy import Dispatch, Wait
from shoal.core.request import DispatchReason


def sizes_of(former: Any, now: float = 0.0) -> list[float]:
    sizes: list[float] = []
    while former.live:
        sizes.append(sum(one.cost for one in take(former, now)))
    return sizes


@pytest.mark.parametrize(
    ("costs", "batches"),
    [
        ([4, 4, 4], [8, 4]),
        ([6, 5, 4], [6, 9]),  # 6 and 4 would fit, but nothing overtakes the 5
        ([10, 0, 1], [10, 1]),
        ([0.5] * 21, [10, 0.5]),
        ([10], [10]),
    ],
)
def test_what_fits_goes_and_what_does_not_stays_first(
    costs: list[float], batches: list[float]
) -> None:
    assert sizes_of(queue(*[new(cost=cost) for cost in costs], batch_size_fn=float)) == batches


@pytest.mark.parametrize("costs", [[0.9, 0.1], [0.7, 0.2, 0.1], [0.1] * 10])
def test_costs_that_sum_up_to_the_bound_share_a_batch(costs: list[float]) -> None:
    former = queue(*[new(cost=cost) for cost in costs], max_batch_size=1, batch_size_fn=float)
    assert len(take(former)) == len(costs)


def test_an_item_that_does_not_fit_makes_the_batch_before_it_full() -> None:
    former = queue(new(cost=6), batch_size_fn=float, batch_wait_timeout_s=9)
    assert isinstance(former.decide(0), Wait)
    admit(former, new(cost=5))
    decision = former.decide(0)
    assert isinstance(decision, Dispatch)
    assert decision.reason is DispatchReason.FULL


@pytest.mark.parametrize(
    ("padding", "measured", "batches"),
    [
        ("up", {}, [18]),
        ("down", {}, [16, 2]),
        ("cost", {}, [18]),  # what was not measured yet is tried
        ("cost", {32: 1.0}, [16, 2]),
        ("cost", {16: 1.0}, [18]),
        ("cost", {16: 1.0, 32: 2.0}, [16, 2]),  # 1/16 for each is less than 2/18
        ("cost", {16: 1.0, 32: 1.1}, [18]),
    ],
)
def test_eighteen_requests_where_16_and_32_are_allowed(
    padding: str, measured: dict[int, float], batches: list[int]
) -> None:
    former = queue(
        *[new() for _ in range(18)],
        max_batch_size=32,
        allowed_batch_sizes=(16, 32),
        padding=padding,
    )
    for size, seconds in measured.items():
        former.model.observe(size, seconds)
    assert sizes_of(former) == batches


def test_a_request_larger_than_the_reduced_size_goes_alone() -> None:
    requests = [new(cost=3), new(cost=0.5)]
    former = queue(
        *requests,
        max_batch_size=4,
        batch_size_fn=float,
        allowed_batch_sizes=(2, 4),
        padding="down",
        pad=lambda items, n: items,
    )
    assert [take(former), take(former)] == [requests[:1], requests[1:]]


@pytest.mark.parametrize(("size", "to"), [(0, 4), (1, 4), (4, 4), (4.5, 8), (8, 8)])
def test_padding_goes_up_to_the_next_allowed_size(size: float, to: int) -> None:
    assert padded((4, 8), size) == to


def test_the_load_of_a_batch_has_its_padding() -> None:
    requests = [new(cost=3), new(cost=2)]
    assert load_of(requests, BatchOptions()) == 2
    assert load_of(requests, BatchOptions(batch_size_fn=float)) == 5
    allowed = BatchOptions(max_batch_size=8, allowed_batch_sizes=(4, 8))
    assert load_of(requests, allowed) == 4


def preferring(count: int, **options: Any) -> Any:
    return queue(
        *[new() for _ in range(count)],
        max_batch_size=10,
        preferred_batch_sizes=(4, 8),
        **options,
    )


@pytest.mark.parametrize(
    ("count", "goes"), [(1, None), (3, None), (4, 4), (5, 4), (7, 4), (8, 8), (10, 8)]
)
def test_the_largest_preferred_size_that_is_there_goes_at_once(
    count: int, goes: int | None
) -> None:
    former = preferring(count, batch_wait_timeout_s=5)
    decision = former.decide(0)
    assert isinstance(decision, Wait if goes is None else Dispatch)
    if goes is not None:
        assert len(take(former)) == goes


@pytest.mark.parametrize(("count", "goes"), [(1, 1), (3, 3), (5, 5), (9, 9), (12, 10)])
def test_when_the_window_is_over_all_goes_that_is_there(count: int, goes: int) -> None:
    assert len(take(preferring(count, batch_wait_timeout_s=5), 5.0)) == goes


@pytest.mark.parametrize(("count", "goes"), [(1, 1), (3, 3), (5, 4), (9, 8)])
def test_without_a_window_the_preferred_size_goes_or_what_is_there(count: int, goes: int) -> None:
    assert len(take(preferring(count))) == goes


def test_what_cannot_grow_to_a_preferred_size_does_not_wait() -> None:
    former = queue(
        new(cost=3),
        new(cost=6),
        preferred_batch_sizes=(4, 8),
        batch_size_fn=float,
        batch_wait_timeout_s=5,
    )
    assert [one.cost for one in take(former)] == [3]


# How long requests wait for a batch to fill


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
