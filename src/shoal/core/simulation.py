"""Simulates how a batcher's options handle some traffic, with the real rules in simulated time.

The queue and the rules that form batches only decide and have no side effects, so they can be used
without an event loop: an arrival is passed to the real `Former`, a free slot asks it, and the
handler is represented by its run time only. A minute of traffic is simulated in a moment, and the
result is the same as the engine's for every request; the tests compare the two.

The alternatives are a formula, or a second implementation of the rules. Formulas exist only for the
simplest queues, and a second implementation would be wrong as soon as the first one changes.

The overhead of the program itself, some microseconds per request, is left out: a simulation does
not show how many requests one process can handle.

`SimulatedBatcher` does what `batching` does, in the same order. Events of one instant are processed
in this order: arrivals, ends of batches, timeouts, then idle slots look at the queue. In an event
loop this order is random.
"""

from __future__ import annotations

import heapq
import math
from array import array
from typing import TYPE_CHECKING

from shoal.core.forming.admission import QUIET
from shoal.core.forming.call_options import NO_CALL_OPTIONS, CallOptions, RequestOptionsFactory
from shoal.core.forming.former import Former
from shoal.core.options.option import whole
from shoal.core.policies.sizing import load_of
from shoal.core.policy import Dispatch
from shoal.core.replicas.members import LoadedModel, Member, Members, home_and_model_of
from shoal.core.request import NOTHING, Batch, DispatchReason, Request, State
from shoal.core.simulation_results import (
    Arrival,
    ClosedLoop,
    Outcome,
    RunTimes,
    SimulatedBatch,
    Simulation,
)
from shoal.errors import ItemTooLarge, NoSuchModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shoal.core.options.options import BatchOptions


QUEUED = State.QUEUED
RUNNING = State.RUNNING
FINISHED = State.FINISHED
_NEVER = math.inf


def _stay_away(now: float) -> None:
    """Makes no further call; for the callers of a trace."""


class SimulatedBatcher:
    # Invariant: `_running` and `_since` have the batches in the handler, one for each busy slot.

    def __init__(
        self,
        options: BatchOptions,
        run_time: Callable[[float], float],
        replicas: int | None,
        load_s: float,
    ) -> None:
        self._has_replicas = replicas is not None
        replicas = replicas or 1
        self._load_s = load_s
        self.loads = 0
        self._members: Members[int] = Members()
        for number in range(1, replicas + 1):
            self._members.add(Member(str(number), number, options.slots))
        if options.max_concurrent_batches is not None:
            options = options.changed(
                {"max_concurrent_batches": options.max_concurrent_batches * replicas}
            )
        self._options = options
        self._run_time = run_time
        limit_s = options.handler_timeout_s
        self._limit_s = _NEVER if limit_s is None else limit_s
        self._options_factory = RequestOptionsFactory("the simulated batcher", options)
        self._former = Former(options, self._members)
        self._since = self._former.batches
        self._has_request_options = (
            options.request_timeout_s is not None or not self._former.takes_anyone
        )
        self._timers = self._former.overdue.timers
        # When each batch ends, its number, which orders equal times, and whether the handler times
        # out then.
        self._running: list[tuple[float, int, Batch, bool]] = []
        # When each model that is being loaded will be ready; the number orders equal times.
        self._loading: list[tuple[float, int, LoadedModel]] = []
        # The replica that each of them runs on.
        self._places: dict[Batch, Member[int]] = {}
        # Until when a slot waits for requests; it decides no sooner unless woken. Minus infinity
        # while none waits, so that the next idle one decides at once.
        self._listens_until = -_NEVER
        # The time of the next event other than an arrival.
        self._next_at = _NEVER
        self.arrived_at = array("d")
        self.latency_s = array("d")
        self.outcomes: list[Outcome] = []
        self.batches: list[SimulatedBatch] = []
        self.ended_at = -_NEVER
        # Called with the time when a request has ended, however it did.
        self._call_again: Callable[[float], object] = _stay_away
        self._report_idle(-_NEVER)

    def serve(self, trace: Iterable[float | Arrival]) -> None:
        """Runs the whole trace until every request has ended."""
        latest = -_NEVER
        for place, arrival in enumerate(trace):
            at = arrival.at if isinstance(arrival, Arrival) else arrival
            if not latest <= at < _NEVER:
                raise ValueError(
                    f"the times of a trace must ascend, but request {place} arrives at {at} s, "
                    f"after one at {latest} s"
                )
            if place == 0:
                self._next_at = at  # when the slots first look at the queue
            latest = at
            while self._next_at < at:
                self._step()
            self._arrive(at, arrival)
        self._run_out(latest)

    def calls_of(self, loop: ClosedLoop) -> Iterator[float]:
        """Yields when callers call again; it goes on until the next call is known."""
        thinks = loop.sampler()
        coming = [thinks() for _ in range(loop.callers)]
        heapq.heapify(coming)
        self._call_again = lambda now: heapq.heappush(coming, now + thinks())
        while True:
            at = coming[0] if coming else _NEVER
            if self._next_at < at:
                self._step()
            elif at < loop.duration_s:
                yield heapq.heappop(coming)
            else:
                break
        self._call_again = _stay_away

    def _arrive(self, at: float, arrival: float | Arrival) -> None:
        request = Request()
        # There is no waiter, so this holds its position in the trace.
        request.waiter = len(self.arrived_at)
        request.arrived_at = at
        request.error = request.batch = None
        self.arrived_at.append(at)
        self.latency_s.append(math.nan)
        self.outcomes.append(Outcome.FINISHED)
        self._enter(request, arrival)
        if self.outcomes[request.waiter] is not Outcome.FINISHED:
            self._call_again(at)

    def _run_out(self, latest: float) -> None:
        """Continues without arrivals until every request has ended."""
        former = self._former
        while self._next_at < _NEVER or former.live or former.parked:
            if self._next_at < _NEVER:
                latest = self._next_at
                self._step()
            elif former.pressures.draining:
                raise RuntimeError(
                    "the policy forms no batch, though requests wait and no more will arrive"
                )
            else:
                former.drain()
                self._ring(latest)

    def _enter(self, request: Request, arrival: float | Arrival) -> None:
        former = self._former
        request.item = request.options = None
        if not self._resolve_options(request, arrival):
            return
        admission = former.admit(request)
        if admission is QUIET and request.options is None:
            return  # the usual case
        if admission.refusal is not None:
            self.outcomes[request.waiter] = Outcome.REJECTED
            return
        if admission.victim is not None:
            self.outcomes[admission.victim.waiter] = Outcome.SHED
            self._call_again(request.arrived_at)
        if admission.ring:
            self._ring(request.arrived_at)
        until = former.overdue.watch(request)
        self._next_at = min(self._next_at, until)

    def _resolve_options(self, request: Request, arrival: float | Arrival) -> bool:
        """Sets the item and the options of a request; returns False if it has ended already."""
        call_options = NO_CALL_OPTIONS
        if isinstance(arrival, Arrival):
            request.item = arrival.item
            _, _, priority, timeout_s, queue_timeout_s, shard_key, model = arrival
            names = {"shard_key": shard_key, "model": model}
            metadata = {name: one for name, one in names.items() if one is not None} or NOTHING
            call_options = CallOptions(timeout_s, metadata, priority, queue_timeout_s)
        if call_options == NO_CALL_OPTIONS and not self._has_request_options:
            return True
        at = request.arrived_at
        try:
            request.options = asked = self._options_factory.of(request.item, call_options, at)
        except (ItemTooLarge, NoSuchModel):
            self.outcomes[request.waiter] = Outcome.REJECTED
            return False
        if asked.deadline is not None and asked.deadline <= at:
            self.outcomes[request.waiter] = Outcome.EXPIRED
            return False
        return True

    def _step(self) -> None:
        now = self._next_at
        former, running = self._former, self._running
        while running and running[0][0] <= now:
            _, _, batch, interrupted = heapq.heappop(running)
            if batch in self._since:  # else it was abandoned
                self._end(batch, now, interrupted=interrupted)
        while self._loading and self._loading[0][0] <= now:
            heapq.heappop(self._loading)[2].flight = None
            self._ring(now)  # it may be unloaded for another one
        for request, _ in former.overdue.pop(now):
            self._expire(request, now)
        if self._idle and self._listens_until <= now:
            self._look_at_queue(now)
        self._next_at = min(
            self._timers.next_at(),
            self._listens_until if self._idle else _NEVER,
            running[0][0] if running else _NEVER,
            self._loading[0][0] if self._loading else _NEVER,
        )

    def _look_at_queue(self, now: float) -> None:
        former = self._former
        self._listens_until = -_NEVER
        while self._idle:
            decision = former.decide(now)
            if isinstance(decision, Dispatch):
                self._start(former.take(decision), decision.reason, now)
                continue
            # Nothing is due in an empty queue, whatever a policy waits for: a trace ends.
            until = decision.until if former.live else None
            self._listens_until = _NEVER if until is None else until
            return

    def _start(self, requests: list[Request], reason: DispatchReason, now: float) -> None:
        load = load_of(requests, self._options)
        batch = Batch(len(self.batches) + 1, reason, requests, load)
        for request in requests:
            request.state = RUNNING
            request.batch = batch
        home, model = home_and_model_of(batch)
        replica = self._members.choose(self._options.max_batch_size, home, model)
        assert replica is not None  # a slot is idle
        self._members.begin(replica, batch.size)
        self._places[batch] = replica
        self._since[batch] = now
        self._report_idle(now)  # the requests that it admits count as waiting for their models
        run_s = self._run_time(load)
        if not 0 <= run_s < _NEVER:
            raise ValueError(
                "the latency model must return a time in seconds, but for a batch of size "
                f"{load:g} it returned {run_s!r}"
            )
        if model is not None:
            run_s += self._load_time(replica, model, now)
        interrupted = run_s > self._limit_s
        run_s = min(run_s, self._limit_s)
        heapq.heappush(self._running, (now + run_s, batch.id, batch, interrupted))
        places = tuple([request.waiter for request in requests])
        is_spilled = home is not None and home is not replica
        self.batches.append(
            SimulatedBatch(now, reason, places, load, run_s, replica.replica, is_spilled)
        )

    def _load_time(self, replica: Member[int], model: str, now: float) -> float:
        """Returns how long a batch waits for its model, which it loads if need be."""
        is_new = self._members.use_model(replica, model) is not None
        used = replica.models[model]
        if is_new:
            self.loads += 1
            used.ready_at = now + self._load_s
            used.flight = self
            heapq.heappush(self._loading, (used.ready_at, self.loads, used))
        return max(0.0, used.ready_at - now)

    def _end(self, batch: Batch, now: float, *, interrupted: bool) -> None:
        """Ends a batch, with results unless the handler has timed out or all callers have left."""
        run_s = now - self._since.pop(batch)
        replica = self._places.pop(batch)
        _, model = home_and_model_of(batch)
        used = None if model is None else replica.models[model]
        self._members.end(replica, batch.size, used)
        latency_s = self.latency_s
        for request in batch.members:
            if request.state is not RUNNING:
                continue
            request.state = FINISHED
            request.batch = None
            self._call_again(now)
            if interrupted:
                self.outcomes[request.waiter] = Outcome.FAILED
            else:
                latency_s[request.waiter] = now - request.arrived_at
            if request.options is not None:
                self._former.overdue.forget(request.options)
        former = self._former
        former.ended(batch, run_s, now, interrupted=interrupted)
        self.ended_at = now
        self._report_idle(now)
        if self._has_replicas:
            self._ring(now)  # a batch may have waited for this replica

    def _expire(self, request: Request, now: float) -> None:
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
        self._call_again(now)

    def _report_idle(self, now: float) -> None:
        self._former.idle_slots = self._idle = self._options.slots - len(self._since)
        if self._former.reform():
            self._ring(now)

    def _ring(self, now: float) -> None:
        if self._listens_until > -_NEVER:
            self._listens_until = self._next_at = now


def simulate(
    trace: Iterable[float | Arrival] | ClosedLoop,
    options: BatchOptions,
    latency_model: Callable[[float], float] | RunTimes,
    *,
    replicas: int | None = None,
    load_s: float = 0.0,
) -> Simulation:
    """Simulates a batcher that serves a trace of arrivals.

    After the last arrival the batcher runs until all requests have ended. If its options would wait
    for more requests forever, it is then drained.

    Args:
        trace: The arrivals in ascending order: times in seconds, or `Arrival` records for calls
            that are not all alike. Or callers in a `ClosedLoop`.
        options: The options of the batcher.
        latency_model: The run time of the handler, in seconds: a function of the batch size (the
            sum of the costs with a ``batch_size_fn``), or a `Linear`.
        replicas: The number of replicas of a backend; each has ``max_concurrent_batches`` at once.
            None for a batcher by itself.
        load_s: How long it takes to load a model, with the option ``models``, in seconds.

    Returns:
        The outcome of every request, and the batches.

    Raises:
        ValueError: The times of the trace do not ascend, the model returns an invalid time, or the
            options can't be simulated: with `split` one call makes several requests.
    """
    if options.split is not None:
        raise ValueError("split can't be simulated: write its parts into the trace, as requests")
    run_time = latency_model.sampler() if isinstance(latency_model, RunTimes) else latency_model
    if replicas is not None:
        whole("replicas", replicas, least=1)
    batcher = SimulatedBatcher(options, run_time, replicas, load_s)
    batcher.serve(batcher.calls_of(trace) if isinstance(trace, ClosedLoop) else trace)
    arrived_at = batcher.arrived_at
    return Simulation(
        options,
        arrived_at,
        batcher.latency_s,
        batcher.outcomes,
        batcher.batches,
        duration_s=max(batcher.ended_at, arrived_at[-1]) - arrived_at[0] if arrived_at else 0.0,
        replicas=replicas or 1,
        loads=batcher.loads,
    )
