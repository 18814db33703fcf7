"""Lines and requests for tests without an event loop."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import BatchOptions
from shoal.core.forming.call_options import RequestOptionsFactory
from shoal.core.forming.former import Former
from shoal.core.policy import Dispatch
from shoal.core.request import Request, RequestOptions, State


def new(
    at: float = 0.0, *, item: Any = None, waits_s: float | None = None, **asked: Any
) -> Request:
    """Makes a request that wants to be let in, `waits_s` at most."""
    made = Request()
    made.item, made.arrived_at = item, at
    made.options = RequestOptions(**asked)
    made.options.queue_timeout_s = waits_s
    return made


def queue(*requests: Request, idle: int = 1, **options: Any) -> Former:
    """Makes a line into which requests have been let."""
    former = Former(BatchOptions.of(options))
    former.reform(idle_slots=idle)
    come(former, *requests)
    return former


def come(former: Former, *requests: Request) -> None:
    for request in requests:
        former.admit(request)
        former.overdue.watch(request)


def take(former: Former, now: float = 0.0) -> list[Request]:
    """Takes a batch as a slot does, which runs at once."""
    decision = former.decide(now)
    assert isinstance(decision, Dispatch)
    taken = former.take(decision)
    for request in taken:
        request.state = State.RUNNING
    former.reform()
    return taken


def let_time_be_up(former: Former, now: float) -> list[Request]:
    """Returns those who must end because their time is up; the others are delayed."""
    return [request for request, _ in former.overdue.pop(now)]


def change(former: Former, **changes: Any) -> list[Request]:
    """Changes options; returns those who can't be served any more."""
    options = former.options.changed(changes)
    return [
        request for request, _ in former.change(options, RequestOptionsFactory("it", options).renew)
    ]


def waiting(former: Former) -> list[Request]:
    return list(former._policy.waiting())


def check(former: Former) -> None:
    """Asserts what must hold of a line after each step."""
    queued, parked = waiting(former), list(former._parked)
    assert former.live == len(queued)
    assert all(request.state is State.QUEUED for request in queued)
    counts_costs = former.options.batch_size_fn is not None
    size = sum(request.cost for request in queued) if counts_costs else len(queued)
    assert former.size == pytest.approx(size)
    assert former.parked == len(parked)
    assert not parked or not former._fits(1, parked[0].cost)
