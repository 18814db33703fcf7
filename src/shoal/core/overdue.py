"""When requests have run out of time: their deadlines, and how long they may wait in line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.core.request import State
from shoal.core.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.core.options import BatchOptions
    from shoal.core.request import Request

_IN_LINE: Final = (State.PARKED, State.QUEUED)


class Overdue:
    """Watches the time of requests.

    Args:
        demote: Lets a request in line go behind the others of its level.
    """

    __slots__ = ("_demote", "timers")

    def __init__(self, demote: Callable[[Request], None]) -> None:
        self._demote = demote
        self.timers = Timers()

    def watch(self, request: Request, options: BatchOptions) -> None:
        """Watches a request that has just been let in, if its time is limited."""
        asked = request.options
        if asked is None:
            return
        if asked.deadline is not None:
            asked.timers = (self.timers.add(asked.deadline, (request, False, False)),)
        limit_s, delays = asked.queue_timeout_s, False
        policy = options.queue_policy(asked.priority)
        if policy is not None:
            delays = policy.timeout_action == "delay"
            if policy.timeout_s is not None:
                limit_s = policy.timeout_s if limit_s is None else min(limit_s, policy.timeout_s)
        if limit_s is not None:
            timer = self.timers.add(request.arrived_at + limit_s, (request, True, delays))
            asked.timers = (*asked.timers, timer)

    def forget(self, request: Request) -> None:
        """Watches a request no more; does nothing if it is not watched."""
        asked = request.options
        if asked is not None and asked.timers:
            for timer in asked.timers:
                self.timers.forget(timer)
            asked.timers = ()

    def pop(self, now: float) -> Iterator[tuple[Request, str]]:
        """Yields the requests whose time is up, and what they did not do in time."""
        request: Request
        for request, ends_in_line, delays in self.timers.due(now):
            if not ends_in_line:
                yield request, "was not answered by its deadline"
                continue
            if request.state not in _IN_LINE:
                continue
            if not delays:
                yield request, "waited in line for longer than its time-out"
                continue
            assert request.options is not None
            request.options.delayed_at = now
            if request.state is State.QUEUED:
                self._demote(request)
