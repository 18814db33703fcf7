"""Queues and requests for tests without an event loop."""

from typing import Any

import pytest

from shoal import BatchOptions
from shoal.core.forming.call_options import RequestOptionsFactory
from shoal.core.forming.former import Former
from shoal.core.policy import Dispatch
from shoal.core.request import Request, RequestOptions, State

ENDS = {State.FINISHED, State.FAILED, State.DECLINED, State.CANCELLED}
TRANSITIONS: dict[State | None, set[State]] = {
    None: {State.PARKED, State.QUEUED},
    State.PARKED: {State.QUEUED, State.FAILED, State.CANCELLED},
    State.QUEUED: {State.RUNNING, State.FAILED, State.CANCELLED},
    State.RUNNING: ENDS | {State.QUEUED},  # after a `RetryLater`
    **{end: set() for end in ENDS},
}


def options_of(**given: Any) -> RequestOptions:
    options = RequestOptions()
    options.due = given.get("deadline")
    for name, value in given.items():
        setattr(options, name, value)
    return options


def new(
    at: float = 0.0, *, item: Any = None, waits_s: float | None = None, **asked: Any
) -> Request:
    """Makes a new request that may be queued for at most `waits_s`."""
    made = Request()
    made.item, made.arrived_at = item, at
    made.options = options_of(**asked, queue_timeout_s=waits_s)
    return made


def queue(*requests: Request, idle: int = 1, **options: Any) -> Former:
    """Makes a queue and admits requests to it."""
    former = Former(BatchOptions.of(options))
    former.idle_slots = idle
    admit(former, *requests)
    return former


def admit(former: Former, *requests: Request) -> None:
    for request in requests:
        former.admit(request)
        former.overdue.watch(request)


def hand_out(former: Former, now: float = 0.0) -> list[Request]:
    """Takes a batch, whose requests may still be put back."""
    decision = former.decide(now)
    assert isinstance(decision, Dispatch)
    return former.take(decision)


def take(former: Former, now: float = 0.0) -> list[Request]:
    """Takes a batch as a slot does, and marks it as running."""
    taken = hand_out(former, now)
    for request in taken:
        request.state = State.RUNNING
    former.reform()
    return taken


def expire(former: Former, now: float) -> list[Request]:
    """Returns the requests that must end because they timed out; the others are delayed."""
    return [request for request, _ in former.overdue.pop(now)]


def change(former: Former, **changes: Any) -> list[Request]:
    """Changes options; returns the requests that can no longer be served."""
    options = former.options.changed(changes)
    return [
        request for request, _ in former.change(options, RequestOptionsFactory("it", options).renew)
    ]


def waiting(former: Former) -> list[Request]:
    return list(former._policy.waiting())


def check(former: Former) -> None:
    """Asserts the invariants of a queue."""
    queued, parked = waiting(former), list(former._parked)
    assert former.live == len(queued)
    assert all(request.state is State.QUEUED for request in queued)
    counts_costs = former.options.batch_size_fn is not None
    size = sum(request.cost for request in queued) if counts_costs else len(queued)
    assert former.cost == pytest.approx(size)
    assert former.parked == len(parked)
    assert not parked or not former._fits(1, parked[0].cost)
