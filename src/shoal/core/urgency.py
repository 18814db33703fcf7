"""Who in line can't wait for company: those a flush covers, and those whose time runs out.

A request with a deadline must be on its way early enough for the handler to end in time, by the run
times measured; as long as none were, at half of its time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shoal.core.batch import CutReason
from shoal.core.policies.base import Hurry
from shoal.core.request import State
from shoal.core.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.core.latency_model import LatencyModel
    from shoal.core.request import Request

_FLUSH = Hurry(CutReason.FLUSH)
_DRAIN = Hurry(CutReason.DRAIN)
_LEFTOVERS_WORTH_A_SWEEP = 64


class Urgency:
    """Why a batch may be wanted before the policy would cut one.

    Attributes:
        draining: Whether nobody waits for company any more.
    """

    __slots__ = ("_covered", "_handed_out", "_leave_by", "draining")

    def __init__(self) -> None:
        self.draining = False
        # Those in line that a flush covers, and those of them that the last `take` handed out.
        self._covered: set[Request] = set()
        self._handed_out: set[Request] = set()
        self._leave_by = Timers()

    def flush(self, waiting: Iterable[Request]) -> None:
        """Makes these requests leave with the next cuts, full or not."""
        self._covered = set(waiting)

    def note(
        self, request: Request, due: float, model: LatencyModel, size: float, live: int
    ) -> float:
        """Notes that a request is due, and returns when it must leave.

        Args:
            request: A request in line.
            due: When it must have ended, in seconds.
            model: The run times measured.
            size: How large a batch it would leave in.
            live: How many requests are in line.
        """
        run_s = model.bound_s(size)
        leave_by = (request.arrived_at + due) / 2 if run_s is None else due - run_s
        if leave_by < math.inf:
            self._leave_by.add(leave_by, request)
            if len(self._leave_by) > 2 * live + _LEFTOVERS_WORTH_A_SWEEP:
                self._leave_by.keep(_is_in_line)
        return leave_by

    def forget_times(self) -> None:
        """Forgets who must leave when, and who was handed out."""
        if len(self._leave_by):
            self._leave_by = Timers()
        if self._handed_out:
            self._handed_out = set()

    def hurry(self, now: float) -> Hurry | None:
        """Returns why a batch is wanted now; None for no reason."""
        if self._covered:
            return _FLUSH
        if self.draining:
            return _DRAIN
        first = self._first()
        if first is not None and self._leave_by.next_at() <= now:
            return Hurry(CutReason.DEADLINE, first)
        return None

    def until(self) -> float:
        """Returns when the next request must leave; infinity for none."""
        return math.inf if self._first() is None else self._leave_by.next_at()

    def left(self, request: Request) -> None:
        """Notes that a request has left the line for good."""
        if self._covered:
            self._covered.discard(request)

    def taken(self, requests: Sequence[Request]) -> None:
        """Notes that requests were handed out."""
        if self._covered:
            self._handed_out = self._covered.intersection(requests)
            self._covered -= self._handed_out
        elif self._handed_out:
            self._handed_out = set()

    def put_back(self) -> None:
        """Notes that the last requests that were handed out are in line again."""
        self._covered |= {r for r in self._handed_out if r.state is State.QUEUED}

    def _first(self) -> Request | None:
        """Returns the request in line that must leave first; None for none."""
        if not len(self._leave_by):
            return None
        first: Request | None = self._leave_by.first()
        while first is not None and not _is_in_line(first):
            next(self._leave_by.due(math.inf))
            first = self._leave_by.first()
        return first


def _is_in_line(request: Request) -> bool:
    return request.state is State.QUEUED
