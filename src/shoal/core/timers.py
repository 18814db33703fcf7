"""Timers, most of which are cancelled before they expire, and the time limits of requests.

Any values that can be ordered may take the place of times.

A cancelled entry is emptied and stays in the heap until its turn comes, or until there are many of
them.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shoal.core.options.mixes import queue_policies_of
from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.core.options.options import BatchOptions
    from shoal.core.request import Request, RequestOptions

Timer: TypeAlias = "list[Any]"
"""One entry: its time, its number, and its subject, which is None once it is cancelled."""

_FORGOTTEN_WORTH_A_SWEEP: Final = 64


class Timers:
    """Timers in order of time; a subject that is not wanted any more counts as cancelled."""

    __slots__ = ("_heap", "_is_wanted", "_new_number", "_sweep_at")

    def __init__(self, is_wanted: Callable[[Any], bool] | None = None) -> None:
        self._heap: list[Timer] = []
        self._is_wanted = is_wanted
        self._new_number = count().__next__
        self._sweep_at = _FORGOTTEN_WORTH_A_SWEEP

    def add(self, at: Any, what: object) -> Timer:
        """`what` is any subject that counts as true."""
        number = self._new_number()
        if number >= self._sweep_at:
            self._sweep(number)
        timer = [at, number, what]
        heappush(self._heap, timer)
        return timer

    @staticmethod
    def forget(timer: Timer) -> None:
        timer[2] = None

    def _sweep(self, number: int) -> None:
        self._heap = [*filter(itemgetter(2), self._heap)]
        if self._is_wanted is not None:
            self._heap = [one for one in self._heap if self._is_wanted(one[2])]
        heapify(self._heap)
        self._sweep_at = number + len(self._heap) + _FORGOTTEN_WORTH_A_SWEEP

    def next_at(self) -> float:
        timer = self._next()
        at: float = math.inf if timer is None else timer[0]
        return at

    def first(self) -> Any:
        timer = self._next()
        return None if timer is None else timer[2]

    def due(self, now: float) -> Iterator[Any]:
        """Removes the timers that expire by `now`, and yields their subjects in order of time."""
        while (timer := self._next()) is not None and timer[0] <= now:
            heappop(self._heap)
            what, timer[2] = timer[2], None
            yield what

    def _next(self) -> Timer | None:
        heap = self._heap
        while heap and heap[0][2] is None:
            heappop(heap)
        return heap[0] if heap else None

    def __len__(self) -> int:
        return sum([one[2] is not None for one in self._heap])


MADE_LATE: Final = "was made after its deadline"
_QUEUED_OR_PARKED: Final = (State.PARKED, State.QUEUED)


class Overdue:
    """The time limits of a batcher's requests: deadlines, and timeouts in the queue."""

    def __init__(self, demote: Callable[[Request], object], options: BatchOptions) -> None:
        self._demote = demote
        self._options = options
        # Whether the time in the queue is limited for some priority level.
        self.limits_queue = False
        self.timers = Timers()

    def change(self, options: BatchOptions) -> None:
        self._options = options
        self.limits_queue = any(one.timeout_s is not None for one in queue_policies_of(options))

    def watch(self, request: Request) -> float:
        """Starts the timers of an admitted request; returns when the first ends, or infinity."""
        asked = request.options
        if asked is None:
            return math.inf
        until = asked.deadline
        if until is None:
            until = math.inf
        else:
            asked.timer = self.timers.add(until, request)
        if self.limits_queue or asked.queue_timeout_s is not None:
            return min(until, self._watch_queued(request, asked))
        return until

    def watch_again(self, request: Request) -> float:
        """Starts a timer again that ended while a request was in the handler; returns its time."""
        asked = request.options
        timer = None if asked is None else asked.queue_timer
        if asked is None or timer is None:
            return math.inf
        if request.returned.deaths:  # it left the queue in time, and its handler did not refuse it
            self.timers.forget(timer)
            return math.inf
        if timer[2] is not None or asked.delayed_at is not None:
            return math.inf
        asked.queue_timer = self.timers.add(timer[0], (request,))
        return float(timer[0])

    def forget(self, asked: RequestOptions | None) -> None:
        if asked is None:
            return
        if asked.timer is not None:
            asked.timer[2] = None
        if asked.queue_timer is not None:
            asked.queue_timer[2] = None

    def _watch_queued(self, request: Request, asked: RequestOptions) -> float:
        limit_s, asked.delays = asked.queue_timeout_s, False
        policy = self._options.queue_policy(asked.priority)
        if policy is not None:
            asked.delays = policy.timeout_action == "delay"
            if policy.timeout_s is not None:
                limit_s = policy.timeout_s if limit_s is None else min(limit_s, policy.timeout_s)
        if limit_s is None:
            return math.inf
        until = request.arrived_at + limit_s
        asked.queue_timer = self.timers.add(until, (request,))
        return until

    def pop(self, now: float) -> Iterator[tuple[Request, str]]:
        """Yields the requests that have timed out, with the reason for the error message."""
        for what in self.timers.due(now):
            if (ended := self.expired(what, now)) is not None:
                yield ended

    def expired(self, what: Request | tuple[Request], now: float) -> tuple[Request, str] | None:
        """Returns the request of an expired timer and why it must end; None if it goes on."""
        if not isinstance(what, tuple):
            was_late = what.deadline is not None and what.deadline <= what.arrived_at
            return what, MADE_LATE if was_late else "was not answered by its deadline"
        (request,) = what
        is_waiting = request.state in _QUEUED_OR_PARKED
        if not is_waiting and (request.batch is None or not request.batch.is_queued):
            return None
        assert request.options is not None
        if not request.options.delays:
            return request, "waited in the queue for longer than its timeout"
        request.options.delayed_at = now
        if request.state is State.QUEUED:
            self._demote(request)
        return None
