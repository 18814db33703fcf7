"""Who in line can't wait for company: those a flush covers, and those whose time runs out.

A request with a deadline must be on its way early enough for the handler to end in time, by the run
times measured; as long as none were, at half of its time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shoal.core.batch import DispatchReason
from shoal.core.policies.factory import may_wait
from shoal.core.policy import Pressure, Wait
from shoal.core.request import State
from shoal.core.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.core.latency_model import LatencyModel
    from shoal.core.options.options import BatchOptions
    from shoal.core.request import Request

_FLUSH = Pressure(DispatchReason.FLUSH)
_DRAIN = Pressure(DispatchReason.DRAIN)
_LEFTOVERS_WORTH_A_SWEEP = 64
# What is measured is the handler's time alone; handing the batch out and back takes some, too.
_MARGIN = 1.05
_MARGIN_S = 0.001


class PressureTracker:
    """Why a batch may be wanted before the policy would cut one.

    Args:
        model: The run times measured.

    Attributes:
        asleep_until: When the slot that waits decides again, in seconds; minus infinity if none
            waits.
        covered: The requests in line that a flush covers.
        draining: Whether nobody waits for company any more.
        unseen: Requests that are due at some time and have not been noted. While every slot is busy
            it does not matter when they must leave, and most will have left before it does.
        handed_out_flushed: Whether a flush covered any of those who were handed out last.
        may_wait: Whether requests wait for company at all; else none has to leave early.
    """

    __slots__ = (
        "_handed_out",
        "_has_times",
        "_leave_by",
        "_model",
        "_most",
        "asleep_until",
        "covered",
        "draining",
        "handed_out_flushed",
        "may_wait",
        "unseen",
    )

    def __init__(self, model: LatencyModel) -> None:
        self._model = model
        self._most = 1
        self.may_wait = False
        self.asleep_until = -math.inf
        self.draining = False
        self.handed_out_flushed = False
        self.covered: set[Request] = set()
        # Those that were covered of those that the last `take` handed out.
        self._handed_out: set[Request] = set()
        self._leave_by = Timers()
        self._has_times = False
        self.unseen: list[Request] = []

    def change(self, options: BatchOptions) -> None:
        """Takes in new options, and forgets the times, which were noted by the old ones."""
        self._most = options.max_batch_size
        self.may_wait = may_wait(options)
        self.forget_times()

    def flush(self, waiting: Iterable[Request]) -> None:
        """Makes these requests leave with the next cuts, full or not."""
        self.covered = set(waiting)

    def note_arrival(self, request: Request, due: float, live: int) -> bool:
        """Notes that a request has come which is due.

        Args:
            request: A request in line.
            due: When it must have ended, in seconds.
            live: How many requests are in line, with this one.

        Returns:
            Whether it must leave before the slot that waits decides again.
        """
        if self.asleep_until != -math.inf:
            return self._note(request, due, live) < self.asleep_until
        self.unseen.append(request)
        if len(self.unseen) > 2 * live + _LEFTOVERS_WORTH_A_SWEEP:
            self.unseen = [other for other in self.unseen if _is_queued(other)]
        return False

    def see(self, live: int) -> None:
        """Notes when those of the unseen requests must leave that are in line still.

        Args:
            live: How many requests are in line.
        """
        for request in self.unseen:
            asked = request.options
            if request.state is State.QUEUED and asked is not None and asked.due is not None:
                self._note(request, asked.due, live)
        self.unseen.clear()

    def forget_times(self) -> None:
        """Forgets who must leave when, and who was handed out."""
        if self.unseen:
            self.unseen = []
        if self._has_times:
            self._has_times = False
            self._leave_by = Timers()
        if self._handed_out:
            self._handed_out = set()

    def pressure(self, now: float) -> Pressure | None:
        """Returns why a batch is wanted now; None for no reason."""
        if self.covered:
            return _FLUSH
        if self.draining:
            return _DRAIN
        if self._has_times:
            first = self._first()
            if first is not None and self._leave_by.next_at() <= now:
                return Pressure(DispatchReason.DEADLINE, first)
        return None

    def sleep(self, wait: Wait, live: int) -> Wait:
        """Notes that the free slot waits, and for how long.

        Args:
            wait: What the policy said.
            live: How many requests are in line.

        Returns:
            The same, or until the next request must leave where that is sooner.
        """
        until = math.inf if wait.until is None else wait.until
        if live and self._first() is not None:
            until = min(until, self._leave_by.next_at())
        self.asleep_until = until
        asked = None if until == math.inf else until
        return wait if asked == wait.until else Wait(asked, wait.wake_at)

    def left(self, request: Request) -> None:
        """Notes that a request has left the line for good."""
        if self.covered:
            self.covered.discard(request)

    def taken(self, requests: Sequence[Request]) -> None:
        """Notes that requests were handed out.

        It changes nothing if no flush covers anyone in line, or covered those handed out before.
        """
        if self.covered:
            self._handed_out = self.covered.intersection(requests)
            self.covered -= self._handed_out
        elif self._handed_out:
            self._handed_out = set()
        self.handed_out_flushed = bool(self._handed_out)

    def put_back(self) -> None:
        """Notes that the last requests that were handed out are in line again."""
        self.covered |= {r for r in self._handed_out if r.state is State.QUEUED}

    def _note(self, request: Request, due: float, live: int) -> float:
        """Notes when a request must leave that is due, and returns it, in seconds."""
        # As large as the batch would be in which it leaves.
        run_s = self._model.bound_s(min(live, self._most))
        if run_s is None:
            leave_by = (request.arrived_at + due) / 2
        else:
            leave_by = due - run_s * _MARGIN - _MARGIN_S
        if leave_by < math.inf:
            self._has_times = True
            self._leave_by.add(leave_by, request)
            if len(self._leave_by) > 2 * live + _LEFTOVERS_WORTH_A_SWEEP:
                self._leave_by.keep(_is_queued)
        return leave_by

    def _first(self) -> Request | None:
        """Returns the request in line that must leave first; None for none."""
        if not self._has_times:
            return None
        first: Request | None = self._leave_by.first()
        while first is not None and not _is_queued(first):
            next(self._leave_by.due(math.inf))
            first = self._leave_by.first()
        return first


def _is_queued(request: Request) -> bool:
    return request.state is State.QUEUED
