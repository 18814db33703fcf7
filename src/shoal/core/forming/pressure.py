"""Whether a batch must be dispatched before its policy would dispatch it.

A request with a deadline must be dispatched early enough for the handler to end in time, by the
measured run times; before the first measurement, after half of its time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shoal.core.policies.factory import may_wait
from shoal.core.policy import Pressure, Wait
from shoal.core.queue import LEFTOVERS_WORTH_A_SWEEP
from shoal.core.request import DispatchReason, State
from shoal.core.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.core.latency_model import LatencyModel
    from shoal.core.options.options import BatchOptions
    from shoal.core.request import Request


_DRAIN = Pressure(DispatchReason.DRAIN)
# Only the handler's time is measured; dispatching the batch and returning results takes some, too.
_MARGIN = 1.05
_MARGIN_S = 0.001


class PressureTracker:
    """Determines whether a batch must be dispatched before the policy would do so."""

    def __init__(self, model: LatencyModel, waiting_cost: Callable[[], float]) -> None:
        self._model = model
        self._waiting_cost = waiting_cost
        self._most_cost: float = 1
        # Whether requests ever wait for a batch to fill; otherwise none has to leave early.
        self.may_wait = False
        # When the waiting slot decides again; minus infinity if no slot waits.
        self.asleep_until = -math.inf
        self.draining = False
        # Why some of the requests that were taken last could not wait: FLUSH, RETRY, or None.
        self.taken_because: DispatchReason | None = None
        # The queued requests that wait only for a slot: a flush covers them, or they are retried.
        # The first one decides the reason of the batch.
        self.covered: dict[Request, None] = {}
        # The requests of the last `take` that were `covered`.
        self._handed_out: dict[Request, None] = {}
        self._leave_by = Timers(_is_queued)
        # Whether the dispatch time of any request is known.
        self.has_times = False
        # Requests with a due time that was not processed. Most of them leave before it is needed,
        # since it isn't while all slots are busy or the waiting slot decides again much earlier.
        self.unseen: list[Request] = []
        self._earliest_unseen = math.inf  # no unseen request is due before this
        # A request due before this time may have to leave before the waiting slot decides again.
        # Minus infinity if no slot waits; None if not computed, as no such request has arrived.
        self.urgent_before: float | None = -math.inf

    def change(self, options: BatchOptions) -> None:
        self._most_cost = options.batch_limit.cost
        self.may_wait = may_wait(options)
        self.forget_times()

    def flush(self, waiting: Iterable[Request]) -> None:
        self.covered = dict.fromkeys(waiting)

    def note_arrival(self, request: Request, due: float, live: int) -> bool:
        """Returns whether a request must be dispatched before the waiting slot decides again."""
        urgent_before = self.urgent_before
        if urgent_before is None:
            # A larger batch takes no less time, so no request must leave earlier than by this.
            lead_s = self.lead_s(self._most_cost)
            urgent_before = math.inf if lead_s is None else self.asleep_until + lead_s
            self.urgent_before = urgent_before
        if due < urgent_before:
            is_urgent = self._note(request, due) < self.asleep_until
            if is_urgent:
                self.urgent_before = -math.inf  # the slot decides as soon as it runs
            return is_urgent
        self.unseen.append(request)
        if due < self._earliest_unseen:
            self._earliest_unseen = due
        if len(self.unseen) > 2 * live + LEFTOVERS_WORTH_A_SWEEP:
            self.unseen = [other for other in self.unseen if _is_queued(other)]
        return False

    def must_see(self, wait: Wait) -> bool:
        """Returns whether an unseen request, of which there are some, can't wait that long."""
        if wait.until is None:
            return True
        lead_s = self.lead_s(self._most_cost)
        return lead_s is None or self._earliest_unseen - lead_s < wait.until

    def see(self) -> None:
        for request in self.unseen:
            asked = request.options
            if request.state is State.QUEUED and asked is not None and asked.due is not None:
                self._note(request, asked.due)
        self.unseen.clear()
        self._earliest_unseen = math.inf

    def forget_times(self) -> None:
        """Drops all dispatch times, and the record of the last taken requests."""
        self.unseen = []
        self._earliest_unseen = math.inf
        self.has_times = False
        self._leave_by = Timers(_is_queued)
        self._handed_out = {}

    def pressure(self, now: float) -> Pressure | None:
        """Returns None unless requests are `covered`, or it is `draining`, or it `has_times`."""
        if (reason := _reason_of(self.covered)) is not None:
            return Pressure(reason)
        if self.draining:
            return _DRAIN
        first = self._first()
        if first is not None and self._leave_by.next_at() <= now:
            return Pressure(DispatchReason.DEADLINE, first)
        return None

    def shortened(self, wait: Wait) -> Wait:
        """Shortens a wait until a request must be dispatched; unchanged unless it `has_times`."""
        if self._first() is None:
            return wait
        until = self._leave_by.next_at()
        return wait if wait.until is not None and wait.until <= until else Wait(until, wait.wake_at)

    def left(self, request: Request) -> None:
        self.covered.pop(request, None)

    def taken(self, requests: Sequence[Request]) -> None:
        """Has no effect unless requests are `covered`, or some of the last `take` were."""
        self._handed_out = {request: None for request in requests if request in self.covered}
        self.taken_because = _reason_of(self._handed_out)
        for request in self._handed_out:
            del self.covered[request]

    def put_back(self) -> None:
        back = (request for request in self._handed_out if request.state is State.QUEUED)
        self.covered = dict.fromkeys(back) | self.covered

    def lead_s(self, cost: float) -> float | None:
        """Returns how long before its deadline a request must be dispatched, in seconds."""
        run_s = None if cost == math.inf else self._model.bound_s(cost)
        return None if run_s is None else run_s * _MARGIN + _MARGIN_S

    def _note(self, request: Request, due: float) -> float:
        # The batch that it leaves with would cost that much.
        lead_s = self.lead_s(min(self._waiting_cost(), self._most_cost))
        leave_by = (request.arrived_at + due) / 2 if lead_s is None else due - lead_s
        if leave_by < math.inf:
            self.has_times = True
            self._leave_by.add(leave_by, request)
        return leave_by

    def _first(self) -> Request | None:
        first: Request | None = self._leave_by.first()
        while first is not None and not _is_queued(first):
            next(self._leave_by.due(math.inf))
            first = self._leave_by.first()
        return first


def _is_queued(request: Request) -> bool:
    return request.state is State.QUEUED


def _reason_of(covered: Iterable[Request]) -> DispatchReason | None:
    first = next(iter(covered), None)
    if first is None:
        return None
    return DispatchReason.RETRY if hasattr(first, "returned") else DispatchReason.FLUSH
