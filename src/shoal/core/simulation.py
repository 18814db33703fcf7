"""What options would do at some traffic: the real rules, in time that is only a number.

The line and the rule that cuts batches decide and never act, so they can be asked here as the slots
ask them, without an event loop: an arrival enters the real `Former`, a free slot asks it, and the
handler is nothing but how long it takes. A minute of traffic takes a moment, and the answer is the
engine's own, request by request; the tests hold the two against each other.

The rival is a formula, or a model of the rule beside the rule. Formulas exist for the simplest
lines alone, and a second copy of the rules would be wrong the day after the first one changes.

What is left out is what the program itself costs, some microseconds a request. So a simulation is
right where the handler is what takes time, and says nothing of how many requests one process can
take in.

At one instant what arrives comes first, then batches end, then time is up for those who have no
more of it, then free slots look at the line.
"""

from __future__ import annotations

import heapq
import math
from array import array
from typing import TYPE_CHECKING

from shoal.core.batch import Batch
from shoal.core.forming import Former
from shoal.core.policies.base import Cut
from shoal.core.request import NOTHING, Request, State
from shoal.core.simulated import Arrival, Outcome, RunTimes, SimulatedBatch, Simulation
from shoal.core.terms import NO_WISHES, Terms, Wishes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.core.batch import CutReason
    from shoal.core.options import BatchOptions

QUEUED = State.QUEUED
RUNNING = State.RUNNING
FINISHED = State.FINISHED
_NEVER = math.inf


def simulate(
    trace: Iterable[float | Arrival],
    options: BatchOptions,
    latency_model: Callable[[float], float] | RunTimes,
) -> Simulation:
    """Runs the rules that form batches over a trace of arrivals, in virtual time.

    When the last request has come the batcher goes on until all have ended; where options would
    wait for company for ever, it then drains.

    Args:
        trace: When requests come, in ascending order: times in seconds, or `Arrival` for calls that
            are not all alike.
        options: The options of the batcher.
        latency_model: How long the handler takes, in seconds: a function of the size that it is
            given (the sum of the costs where there is a ``batch_size_fn``), or a `Linear`.

    Returns:
        What became of every request, and the batches.

    Raises:
        ValueError: The trace goes back in time, the model gives no time, or the options can't be
            simulated: with `split` one call makes several requests.
    """
    if options.split is not None:
        raise ValueError("split can't be simulated: write its parts into the trace, as requests")
    run_time = latency_model.sampler() if isinstance(latency_model, RunTimes) else latency_model
    batcher = _Batcher(options, run_time)
    batcher.serve(trace)
    arrived_at = batcher.arrived_at
    return Simulation(
        options,
        arrived_at,
        batcher.latency_s,
        batcher.outcomes,
        batcher.batches,
        duration_s=max(batcher.ended_at, arrived_at[-1]) - arrived_at[0] if arrived_at else 0.0,
    )


class _Batcher:
    """A batcher whose callers, slots and handler are steps of one loop.

    Attributes:
        arrived_at, latency_s, outcomes, batches: As in `Simulation`.
        ended_at: When the last batch ended.

    Invariant: ``_running`` and ``_since`` have the batches in the handler, one for each busy slot.
    """

    def __init__(self, options: BatchOptions, run_time: Callable[[float], float]) -> None:
        self._options = options
        self._run_time = run_time
        self._terms = Terms("the simulated batcher", options)
        self._former = Former(options)
        self._has_terms = (
            self._terms.of_each
            or options.request_timeout_s is not None
            or not self._former.takes_anyone
        )
        self._timers = self._former.overdue.timers
        # When each batch ends, its number, which settles the order of equal times, and whether the
        # handler ends then or has run out of time.
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
            request.cell = place  # nobody waits on it, so its place in the trace is put there
            request.arrived_at = at
            request.error = request.batch = None
            self._enter(request, arrival)
        former = self._former
        while self._next_at < _NEVER or former.live or former.parked:
            if self._next_at == _NEVER:
                if former.draining:
                    raise RuntimeError("requests wait, but no batch is made and nobody comes")
                former.drain()
                self._ring(max(latest, self.ended_at))
            self._step()

    def _enter(self, request: Request, arrival: float | Arrival) -> None:
        """Does what a call does until it waits."""
        former = self._former
        request.item = request.options = None
        if isinstance(arrival, Arrival) or self._has_terms:
            if not self._come_to_terms(request, arrival):
                return
        elif former.live < former.room:
            request.state = QUEUED
            if former.arrive(request):
                self._ring(request.arrived_at)
            return
        admission = former.admit(request)
        if admission.refusal is not None:
            self.outcomes[request.cell] = Outcome.REJECTED
            return
        if admission.victim is not None:
            self.outcomes[admission.victim.cell] = Outcome.SHED
        former.overdue.watch(request, self._options)
        if admission.ring:
            self._ring(request.arrived_at)
        self._next_at = min(self._next_at, self._timers.next_at())

    def _come_to_terms(self, request: Request, arrival: float | Arrival) -> bool:
        """Gives a call its item and its record; says whether it may try to enter."""
        wishes = NO_WISHES
        if isinstance(arrival, Arrival):
            request.item = arrival.item
            _, _, priority, deadline_s, queue_timeout_s = arrival
            wishes = Wishes(deadline_s, NOTHING, priority, queue_timeout_s)
        if wishes == NO_WISHES and not self._has_terms:
            return True
        at = request.arrived_at
        request.options = asked = self._terms.of(request.item, wishes, at)
        if self._terms.refusal(asked) is not None:
            self.outcomes[request.cell] = Outcome.REJECTED
            return False
        if asked.deadline is not None and asked.deadline <= at:
            self.outcomes[request.cell] = Outcome.EXPIRED
            return False
        return True

    def _step(self) -> None:
        """Does what there is to do next, other than letting requests come."""
        now = self._next_at
        former, running = self._former, self._running
        while running and running[0][0] <= now:
            _, _, batch, in_time = heapq.heappop(running)
            if batch in self._since:  # else it was abandoned
                self._end(batch, now, in_time=in_time)
        if self._timers.next_at() <= now:
            for request, _ in former.overdue.pop(now):
                self._expire(request, now)
        if self._idle and (not self._listens or self._listens_until <= now):
            self._look_at_line(now)
        next_at = self._listens_until if self._listens else _NEVER
        if running and running[0][0] < next_at:
            next_at = running[0][0]
        self._next_at = min(next_at, self._timers.next_at())

    def _look_at_line(self, now: float) -> None:
        """Lets idle slots take batches, and the last of them wait where there is none."""
        former = self._former
        self._listens = False
        former.wake_at = 0
        while self._idle:
            decision = former.decide(now)
            if isinstance(decision, Cut):
                self._start(former.take(decision), decision.reason, now)
                continue
            former.wake_at = decision.wake_at
            self._listens = True
            self._listens_until = _NEVER if decision.until is None else decision.until
            return

    def _start(self, requests: list[Request], reason: CutReason, now: float) -> None:
        """Gives a batch to an idle slot."""
        load = self._former.load_of(requests)
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
        limit_s = self._options.handler_timeout_s
        in_time = True
        if limit_s is not None and run_s > limit_s:
            run_s, in_time = limit_s, False
        heapq.heappush(self._running, (now + run_s, batch.id, batch, in_time))
        places = tuple([request.cell for request in requests])
        self.batches.append(SimulatedBatch(now, reason, places, load, run_s))
        self._since[batch] = now
        self._tell_idle(now)

    def _end(self, batch: Batch, now: float, *, in_time: bool = True) -> None:
        """Ends a batch: with results, or because the handler is out of time or has been left."""
        run_s = now - self._since.pop(batch)
        latency_s = self.latency_s
        for request in batch.requests:
            if request.state is not RUNNING:
                continue
            request.state = FINISHED
            request.batch = None
            if in_time:
                latency_s[request.cell] = now - request.arrived_at
            else:
                self.outcomes[request.cell] = Outcome.FAILED
            if request.options is not None:
                self._former.overdue.forget(request)
        self._former.model.observe(batch.load, run_s)
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
                self.batches[batch.id - 1] = record._replace(run_s=now - record.cut_at)
                self._end(batch, now)
        elif request.state in (QUEUED, State.PARKED):
            if self._former.leave(request):
                self._ring(now)
        else:
            return
        self.outcomes[request.cell] = Outcome.EXPIRED

    def _tell_idle(self, now: float) -> None:
        self._idle = self._options.max_concurrent_batches - len(self._since)
        if self._former.reform(idle_slots=self._idle):
            self._ring(now)

    def _ring(self, now: float) -> None:
        """Makes the slot that waits at the line decide again."""
        if self._listens:
            self._listens_until = self._next_at = now
