"""Who in line can't wait for company: those a flush covers, and those whose time runs out.

A request with a deadline must be on its way early enough for the handler to end in time, by the run
times measured; as long as none were, at half of its time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shoal.core.batch import CutReason
from shoal.core.policy import Hurry
from shoal.core.request import State
from shoal.core.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.core.latency_model import LatencyModel
    from shoal.core.request import Request

_FLUSH = Hurry(CutReason.FLUSH)
_DRAIN = Hurry(CutReason.DRAIN)
_LEFTOVERS_WORTH_A_SWEEP = 64
# What is measured is the handler's time alone; handing the batch out and back takes some, too.
_MARGIN = 1.05
_MARGIN_S = 0.001


class Urgency:
    """Why a batch may be wanted before the policy would cut one.

    Attributes:
        draining: Whether nobody waits for company any more.
        unseen: Requests that are due at some time and have not been noted. While every slot is busy
            it does not matter when they must leave, and most will have left before it does.
        handed_out_flushed: Whether a flush covered any of those who were handed out last.
    """

    __slots__ = (
        "_covered",
        "_handed_out",
        "_has_times",
        "_leave_by",
        "draining",
        "handed_out_flushed",
        "unseen",
    )

    def __init__(self) -> None:
        self.draining = False
        self.handed_out_flushed = False
        # Those in line that a flush covers, and those of them that the last `take` handed out.
        self._covered: set[Request] = set()
        self._handed_out: set[Request] = set()
        self._leave_by = Timers()
        self._has_times = False
        self.unseen: list[Request] = []

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
        if run_s is None:
            leave_by = (request.arrived_at + due) / 2
        else:
            leave_by = due - run_s * _MARGIN - _MARGIN_S
        if leave_by < math.inf:
            self._has_times = True
            self._leave_by.add(leave_by, request)
            if len(self._leave_by) > 2 * live + _LEFTOVERS_WORTH_A_SWEEP:
                self._leave_by.keep(_is_in_line)
        return leave_by

    def see(self, model: LatencyModel, size: float, live: int) -> None:
        """Notes those of the unseen requests that are in line still."""
        for request in self.unseen:
            asked = request.options
            if request.state is State.QUEUED and asked is not None and asked.due is not None:
                self.note(request, asked.due, model, size, live)
        self.unseen.clear()

    def note_later(self, request: Request, live: int) -> None:
        """Puts a request to the unseen ones, and drops of them those that have left, if many."""
        self.unseen.append(request)
        if len(self.unseen) > 2 * live + _LEFTOVERS_WORTH_A_SWEEP:
            self.unseen = [other for other in self.unseen if _is_in_line(other)]

    def forget_times(self) -> None:
        """Forgets who must leave when, and who was handed out."""
        if self.unseen:
            self.unseen = []
        if self._has_times:
            self._has_times = False
            self._leave_by = Timers()
        if self._handed_out:
            self._handed_out = set()

    def hurry(self, now: float) -> Hurry | None:
        """Returns why a batch is wanted now; None for no reason."""
        if self._covered:
            return _FLUSH
        if self.draining:
            return _DRAIN
        if self._has_times:
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
        self.handed_out_flushed = bool(self._handed_out)

    def put_back(self) -> None:
        """Notes that the last requests that were handed out are in line again."""
        self._covered |= {r for r in self._handed_out if r.state is State.QUEUED}

    def _first(self) -> Request | None:
        """Returns the request in line that must leave first; None for none."""
        if not self._has_times:
            return None
        first: Request | None = self._leave_by.first()
        while first is not None and not _is_in_line(first):
            next(self._leave_by.due(math.inf))
            first = self._leave_by.first()
        return first


def _is_in_line(request: Request) -> bool:
    return request.state is State.QUEUED
