"""The order of requests: levels, ageing, deadlines, and requests that waited for too long."""

from __future__ import annotations

import math

import pytest

from core.former_scenes import admit, change, expire, new, queue, take, waiting
from shoal import BatchOptions, QueuePolicy
from shoal.core.policies.ranked import rank_of

ONE = {"max_batch_size": 1, "idle": 0}
LATE = QueuePolicy(timeout_s=30, timeout_action="delay")


def test_where_nothing_is_asked_for_there_is_no_rank() -> None:
    assert rank_of(BatchOptions(default_queue_policy=QueuePolicy(timeout_s=1))) is None
    for options in (
        BatchOptions(priority_levels=2),
        BatchOptions(order="deadline"),
        BatchOptions(default_queue_policy=LATE),
        BatchOptions(queue_policies={1: LATE}),
    ):
        assert rank_of(options) is not None


@pytest.mark.parametrize("levels_lower", [1, 2])
def test_nobody_is_overtaken_for_longer_than_ageing_takes(levels_lower: int) -> None:
    """One request of the highest level arrives each second, and one can be served each second."""
    low = new(0, priority=1 + levels_lower)
    former = queue(low, priority_levels=3, priority_aging_s=10.0, **ONE)
    for second in range(100):
        admit(former, new(second, priority=1))
        if take(former, second) == [low]:
            assert second == pytest.approx(10 * levels_lower, abs=1)
            return
    raise AssertionError("it waits forever")


@pytest.mark.parametrize("never", [None, math.inf])
@pytest.mark.parametrize("order", ["arrival", "deadline"])
def test_strict_levels_do_not_age(order: str, never: float | None) -> None:
    low, high = new(0, priority=2), new(1e9, priority=1)
    former = queue(low, high, priority_levels=2, priority_aging_s=never, order=order, **ONE)
    assert waiting(former) == [high, low]


def test_the_earliest_deadline_is_first() -> None:
    late, early, never = new(0, deadline=9), new(1, deadline=5), new(2)
    former = queue(late, never, early, order="deadline", priority_aging_s=None, **ONE)
    assert waiting(former) == [early, late, never]
    change(former, priority_aging_s=4.0)  # and one without is due 4 s after its arrival
    assert waiting(former) == [early, never, late]


@pytest.mark.parametrize("aging_s", [None, 10.0])
@pytest.mark.parametrize("order", ["arrival", "deadline"])
def test_who_waited_for_too_long_lets_the_others_of_its_level_go_first(
    order: str, aging_s: float | None
) -> None:
    late, other = new(0.0), new(25.0)
    former = queue(
        late, other, priority_aging_s=aging_s, order=order, default_queue_policy=LATE, **ONE
    )
    assert expire(former, 31.0) == []
    assert waiting(former) == [other, late]
    newcomer = new(32.0)
    admit(former, newcomer)
    assert waiting(former) == [other, newcomer, late]


@pytest.mark.parametrize("order", ["arrival", "deadline"])
@pytest.mark.parametrize("aging_s", [None, 10.0])
def test_those_who_waited_for_too_long_stay_in_order(order: str, aging_s: float | None) -> None:
    requests = [new(n / 4) for n in range(3)]
    former = queue(
        *requests, order=order, priority_aging_s=aging_s, default_queue_policy=LATE, **ONE
    )
    assert expire(former, 31.0) == []
    assert waiting(former) == requests
    assert [take(former, 31.0) for _ in requests] == [[one] for one in requests]


@pytest.mark.parametrize("aging_s", [None, 10.0])
def test_delayed_requests_stay_in_order_when_the_options_change(aging_s: float | None) -> None:
    first, second = new(0.0), new(1.0, waits_s=1.0)
    policy = QueuePolicy(timeout_s=5, timeout_action="delay")
    former = queue(
        first,
        second,
        priority_levels=2,
        priority_aging_s=aging_s,
        default_queue_policy=policy,
        **ONE,
    )
    assert expire(former, 2.0) == expire(former, 5.0) == []
    assert waiting(former) == [second, first]
    change(former, max_batch_size=2)
    assert waiting(former) == [second, first]
    assert take(former, 9.0) == [second, first]


def test_a_call_can_only_shorten_the_time_of_its_level() -> None:
    policy = QueuePolicy(timeout_s=10)
    usual, shorter, longer = new(), new(waits_s=5), new(waits_s=50)
    former = queue(usual, shorter, longer, default_queue_policy=policy, **ONE)
    assert expire(former, 5.0) == [shorter]
    assert expire(former, 10.0) == [usual, longer]
