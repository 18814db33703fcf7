"""A batcher without an event loop: its callers, slots and handler are steps of one loop.

It does what `batching` does, in the same order, and decides nothing by itself: requests get their
terms and enter the `Former`, a slot that has nothing to do asks it and waits until it is rung, the
batches that ran tell the model how long they took.

At one instant what arrives comes first, then batches end, then time is up for those who have no
more of it, then free slots look at the line. In an event loop chance settles that.
"""

from __future__ import annotations

import heapq
import math
from array import array
from typing import TYPE_CHECKING

from shoal.core.batch import Batch, DispatchReason
from shoal.core.forming.call_options import NO_CALL_OPTIONS, CallOptions, RequestOptionsFactory
from shoal.core.forming.former import Former
from shoal.core.policies.sizing import load_of
from shoal.core.policy import Dispatch, Wait
from shoal.core.request import NOTHING, Request, State
from shoal.core.simulation.results import Arrival, Outcome, SimulatedBatch
from shoal.errors import ItemTooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.core.options.options import BatchOptions

QUEUED = State.QUEUED
RUNNING = State.RUNNING
FINISHED = State.FINISHED
_NEVER = math.inf
_UNTIL_SOMEONE_COMES = Wait(None, 1)


class SimulatedBatcher:
    """One batcher and one trace.

    Attributes:
        arrived_at, latency_s, outcomes, batches: As in `Simulation`.
        ended_at: When the last batch ended.

    Invariant: ``_running`` and ``_since`` have the batches in the handler, one for each busy slot.
    """

    def __init__(self, options: BatchOptions, run_time: Callable[[float], float]) -> None:
        self._options = options
        self._run_time = run_time
        limit_s = options.handler_timeout_s
        self._limit_s = _NEVER if limit_s is None else limit_s
        self._options_factory = RequestOptionsFactory("the simulated batcher", options)
        self._former = Former(options)
        self._has_request_options = (
            self._options_factory.of_each
            or options.request_timeout_s is not None
            or not self._former.takes_anyone
        )
        self._timers = self._former.overdue.timers
        self._is_timed = False
        # When each batch ends, its number, which puts equal times in order, and whether it is out
        # of time then.
        self._running: list[tuple[float, int, Batch, bool]] = []
        self._since: dict[Batch, float] = {}
        self._former.batches = self._since
        # Whether a slot waits at the line, and until when; it looks no sooner unless rung.
        self._listens = False
        self._listens_until = _NEVER
        # When there is something to do beside letting requests come.
        self._next_at = _NEVER
        self.arrived_at = array("d")
        self.latency_s = array("d")
        self.outcomes: list[Outcome] = []
        self.batches: list[SimulatedBatch] = []
        self.ended_at = -_NEVER
        self._tell_idle(-_NEVER)

    def serve(self, trace: Iterable[float | Arrival]) -> None:
        """Lets every request of the trace come, and end."""
        latest = -_NEVER
        for place, arrival in enumerate(trace):
            at = arrival.at if isinstance(arrival, Arrival) else arrival
            if not latest <= at < _NEVER:
                raise ValueError(
                    f"a trace goes forward in time, but request {place} of it comes at {at} s, "
                    f"after one at {latest} s"
                )
            if place == 0:
                self._next_at = at  # when the slots begin to look at the line
            latest = at
            while self._next_at < at:
                self._step()
            self.arrived_at.append(at)
            self.latency_s.append(math.nan)
            self.outcomes.append(Outcome.FINISHED)
            request = Request()
            request.waiter = place  # nobody waits on it, so its place in the trace is put there
            request.arrived_at = at
            request.error = request.batch = None
            self._enter(request, arrival)
        former = self._former
        while self._next_at < _NEVER or former.live or former.parked:
            if self._next_at < _NEVER:
                latest = self._next_at
                self._step()
            elif former.draining:
                raise RuntimeError("requests wait, but no batch is made and nobody comes")
            else:
                former.drain()
                self._ring(latest)

    def _enter(self, request: Request, arrival: float | Arrival) -> None:
        """Does what a call does until it waits."""
        former = self._former
        request.item = request.options = None
        if isinstance(arrival, Arrival) or self._has_request_options:
            if not self._resolve_options(request, arrival):
                return
        elif former.live < former.room.most:
            request.state = QUEUED
            if former.arrive(request):
                self._ring(request.arrived_at)
            return
        admission = former.admit(request)
        if admission.refusal is not None:
            self.outcomes[request.waiter] = Outcome.REJECTED
            return
        if admission.victim is not None:
            self.outcomes[admission.victim.waiter] = Outcome.SHED
        if admission.ring:
            self._ring(request.arrived_at)
        until = former.overdue.watch(request)
        if until < _NEVER:
            self._is_timed = True
            self._next_at = min(self._next_at, until)

    def _resolve_options(self, request: Request, arrival: float | Arrival) -> bool:
        """Gives a call its item and its record; says whether it may try to enter."""
        call_options = NO_CALL_OPTIONS
        if isinstance(arrival, Arrival):
            request.item = arrival.item
            _, _, priority, deadline_s, queue_timeout_s = arrival
            call_options = CallOptions(deadline_s, NOTHING, priority, queue_timeout_s)
        if call_options == NO_CALL_OPTIONS and not self._has_request_options:
            return True
        at = request.arrived_at
        try:
            request.options = asked = self._options_factory.of(request.item, call_options, at)
        except ItemTooLarge:
            self.outcomes[request.waiter] = Outcome.REJECTED
            return False
        if asked.deadline is not None and asked.deadline <= at:
            self.outcomes[request.waiter] = Outcome.EXPIRED
            return False
        return True

    def _step(self) -> None:
        """Does what there is to do next, other than letting requests come."""
        now = self._next_at
        former, running = self._former, self._running
        while running and running[0][0] <= now:
            _, _, batch, interrupted = heapq.heappop(running)
            if batch in self._since:  # else it was abandoned
                self._end(batch, now, interrupted=interrupted)
        if self._is_timed:
            for request, _ in former.overdue.pop(now):
                self._expire(request, now)
        if self._idle and (not self._listens or self._listens_until <= now):
            self._look_at_queue(now)
        next_at = self._timers.next_at() if self._is_timed else _NEVER
        if self._listens and self._listens_until < next_at:
            next_at = self._listens_until
        if running and running[0][0] < next_at:
            next_at = running[0][0]
        self._next_at = next_at

    def _look_at_queue(self, now: float) -> None:
        """Lets idle slots take batches, and the last of them wait where there is none."""
        former = self._former
        self._listens = False
        former.wake_at = 0
        while self._idle:
            # An empty line needs no asking: it makes a slot wait for who comes first.
            decision = former.decide(now) if former.live else _UNTIL_SOMEONE_COMES
            if isinstance(decision, Dispatch):
                self._start(former.take(decision), decision.reason, now)
                continue
            former.wake_at = decision.wake_at
            self._listens = True
            self._listens_until = _NEVER if decision.until is None else decision.until
            return

    def _start(self, requests: list[Request], reason: DispatchReason, now: float) -> None:
        """Gives a batch to an idle slot."""
        load = load_of(requests, self._options)
        batch = Batch(len(self.batches) + 1, reason, requests, load)
        for request in requests:
            request.state = RUNNING
            request.batch = batch
        run_s = self._run_time(load)
        if not 0 <= run_s < _NEVER:
            raise ValueError(
                "the latency model must give a time in seconds, but for a batch of size "
                f"{load:g} it gives {run_s!r}"
            )
        interrupted = run_s > self._limit_s
        run_s = min(run_s, self._limit_s)
        heapq.heappush(self._running, (now + run_s, batch.id, batch, interrupted))
        places = tuple([request.waiter for request in requests])
        self.batches.append(SimulatedBatch(now, reason, places, load, run_s))
        self._since[batch] = now
        self._tell_idle(now)

    def _end(self, batch: Batch, now: float, *, interrupted: bool) -> None:
        """Ends a batch, with results unless the handler is out of time or everybody has left."""
        run_s = now - self._since.pop(batch)
        latency_s = self.latency_s
        for request in batch.members:
            if request.state is not RUNNING:
                continue
            request.state = FINISHED
            request.batch = None
            if interrupted:
                self.outcomes[request.waiter] = Outcome.FAILED
            else:
                latency_s[request.waiter] = now - request.arrived_at
            if request.options is not None:
                self._former.overdue.forget(request)
        model = self._former.model
        (model.interrupted if interrupted else model.observe)(batch.load, run_s)
        self.ended_at = now
        self._tell_idle(now)

    def _expire(self, request: Request, now: float) -> None:
        """Lets a request go whose time is up."""
        if request.state is RUNNING:
            batch, request.batch = request.batch, None
            assert isinstance(batch, Batch)
            request.state = State.CANCELLED
            batch.active -= 1
            if not batch.active and self._options.cancel_abandoned:
                record = self.batches[batch.id - 1]
                self.batches[batch.id - 1] = record._replace(run_s=now - record.dispatched_at)
                self._end(batch, now, interrupted=True)
        elif request.state in (QUEUED, State.PARKED):
            if self._former.leave(request):
                self._ring(now)
        else:
            return
        self.outcomes[request.waiter] = Outcome.EXPIRED

    def _tell_idle(self, now: float) -> None:
        self._idle = self._options.slots - len(self._since)
        if self._former.reform(idle_slots=self._idle):
            self._ring(now)

    def _ring(self, now: float) -> None:
        """Makes the slot that waits at the line decide again."""
        if self._listens:
            self._listens_until = self._next_at = now
