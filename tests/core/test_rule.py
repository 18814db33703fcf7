"""The internal interface of policies, beyond the public one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from core.former_scenes import admit, new, queue
from shoal.core.batch import DispatchReason
from shoal.core.policies.rule import Guarded
from shoal.core.policy import Wait
from shoal.core.request import State
from shoal.policies import WholeQueuePolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal import Request
    from shoal.policies import Pressure

ALL: dict[str, dict[str, Any]] = {
    "SizeOrWait": {},
    "Ranked": {"order": "deadline"},
    "Buckets": {"bucket_by": len},
    "Guarded": {"policy": lambda _options: Own()},
}


class Own(WholeQueuePolicy):
    """A user's policy whose own names have another meaning in the internal interface."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 1000
        self.append = self.extend = self.by_arrival = self.cost_beside = self.cost_of_all = None

    def choose(self, queue: Sequence[Request], now: float, pressure: Pressure | None) -> Any:
        return queue, DispatchReason.FULL


@pytest.mark.parametrize("name", ALL)
def test_each_rule_knows_the_size_of_its_queue(name: str) -> None:
    requests = [new(key="a"), new(key="b"), new(key="b")]
    former = queue(*requests, **ALL[name])
    assert type(former._policy).__name__ == name
    assert former.cost == 3
    assert former.scheduling_capacity == 7
    former.leave(requests[0])
    assert former.cost == 2
    assert former.cost_beside(new(key="a").options) == (0 if name == "Buckets" else 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ALL)
def test_many_requests_are_added_as_if_one_by_one(name: str) -> None:
    former = queue(**ALL[name])
    assert former.decide(0.0) == Wait(None, 0 if name == "Guarded" else 1)
    requests = [new(), new()]
    for request in requests:
        request.state = State.QUEUED
    assert former.arrive_all(requests)
    assert former.live == former.cost == 2
    assert former.parked_and_queued() == requests


def test_a_rule_that_must_decide_is_asked_when_many_are_added() -> None:
    guarded = Guarded(Own())
    assert guarded.extend([new(), new()])
    assert guarded.cost_of_all() == 2


def test_requests_of_one_moment_are_in_order_of_arrival() -> None:
    first, second, earlier = new(1, priority=2), new(1, priority=1), new(0, priority=2)
    former = queue(first, second, earlier, priority_levels=2)
    assert former._policy.by_arrival() == [earlier, first, second]


def test_a_plain_queue_is_in_order_of_arrival() -> None:
    admitted_late, other = new(0), new(1)
    former = queue(other, batch_wait_timeout_s=9)
    admit(former, admitted_late)
    assert former._policy.by_arrival() == [other, admitted_late]
