"""The time limits of requests: their deadlines, and how long they may wait in the queue."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from shoal.core.request import State
from shoal.core.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.core.options.options import BatchOptions
    from shoal.core.request import Request, RequestOptions

_QUEUED_OR_PARKED: Final = (State.PARKED, State.QUEUED)


class Overdue:
    __slots__ = ("_demote", "_options", "limits_queue", "timers")

    def __init__(self, demote: Callable[[Request], object], options: BatchOptions) -> None:
        self._demote = demote
        self._options = options
        # Whether the time in the queue is limited for some priority level.
        self.limits_queue = False
        self.timers = Timers()

    def change(self, options: BatchOptions) -> None:
        self._options = options
        policies = [*options.queue_policies.values(), options.default_queue_policy]
        self.limits_queue = any(p is not None and p.timeout_s is not None for p in policies)

    def watch(self, request: Request) -> float:
        """Starts the timers of an admitted request; returns when the first ends, or infinity."""
        asked = request.options
        if asked is None:
            return math.inf
        until = math.inf
        if asked.deadline is not None:
            until = asked.deadline
            asked.timer = self.timers.add(until, request)
        if self.limits_queue or asked.queue_timeout_s is not None:
            return min(until, self._watch_queued(request, asked))
        return until

    def forget(self, request: Request) -> None:
        asked = request.options
        if asked is None:
            return
        if (timer := asked.timer) is not None:
            self.timers.forget(timer)
            asked.timer = None
        if asked.queue_timer is not None:
            self.timers.forget(asked.queue_timer)
            asked.queue_timer = None

    def _watch_queued(self, request: Request, asked: RequestOptions) -> float:
        limit_s, delays = asked.queue_timeout_s, False
        policy = self._options.queue_policy(asked.priority)
        if policy is not None:
            delays = policy.timeout_action == "delay"
            if policy.timeout_s is not None:
                limit_s = policy.timeout_s if limit_s is None else min(limit_s, policy.timeout_s)
        if limit_s is None:
            return math.inf
        until = request.arrived_at + limit_s
        asked.queue_timer = self.timers.add(until, (request, delays))
        return until

    def pop(self, now: float) -> Iterator[tuple[Request, str]]:
        """Yields the requests that have timed out, with the reason for the error message."""
        what: Request | tuple[Request, bool]
        for what in self.timers.due(now):
            if not isinstance(what, tuple):
                yield what, "was not answered by its deadline"
                continue
            request, delays = what
            if not (
                request.state in _QUEUED_OR_PARKED
                or (request.batch is not None and request.batch.waits)
            ):
                continue
            if not delays:
                yield request, "waited in the queue for longer than its timeout"
                continue
            assert request.options is not None
            request.options.delayed_at = now
            if request.state is State.QUEUED:
                self._demote(request)
