"""The internal interface of policies, beyond the public one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from core.former_scenes import new, queue
from shoal.core.policy import Wait
from shoal.core.request import DispatchReason, State
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
