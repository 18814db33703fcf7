"""The queue of a batcher: admission, removal, and when a free worker slot dispatches a batch.

A policy decides which requests form a batch (`policies`). Other decisions have modules of their
own: which requests are refused though there is room, and which are shed (`admission`), which must
be dispatched now (`pressure`), which wait for callers that may call again (`regathering`), and when
a batch may start that a service behind the handler limits (`limiter`). `core.timers` has their time
limits.

`Former` only decides, and its callers act: they ask again at the time that `Wait` names, end
requests that are overdue, and report how many slots are idle. So the engine and the simulation use
the same code.

Only a free slot calls `Former.decide`, so batches are formed as late as possible: while all slots
are busy, requests accumulate, and the next batch is large. The alternative, to close a batch when
its timer expires and to queue closed batches for a slot, makes many small batches from the same
load.

Invariants:
    ``live`` is the number of requests in the policy, all in the state QUEUED.
    ``parked`` is the number of requests in ``_parked`` in the state PARKED.
    A request is parked only while there is no room, so parked ones never overtake each other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from shoal.core.forming.admission import QUIET, RINGING, Admission, AdmissionControl
from shoal.core.forming.limiter import Limiter
from shoal.core.forming.pressure import PressureTracker
from shoal.core.forming.regathering import WORTH_S, Regathering
from shoal.core.latency_model import LatencyModel
from shoal.core.policies.factory import adaptive_of, distinguishes_requests, policy_of
from shoal.core.policies.rule import SizeOrWait
from shoal.core.policy import Dispatch, Wait
from shoal.core.queue import NOTHING, Amount, ArrivalQueue, cost_of, is_worth_a_sweep
from shoal.core.replicas.members import NO_MEMBERS
from shoal.core.request import DispatchReason, Request, State
from shoal.core.timers import Overdue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shoal.core.options.options import BatchOptions
    from shoal.core.policies.rule import Rule
    from shoal.core.replicas.members import Members
    from shoal.core.request import Batch, RequestOptions

QUEUED = State.QUEUED
PARKED = State.PARKED


class Former:
    def __init__(
        self,
        options: BatchOptions,
        members: Members[Any] = NO_MEMBERS,
        limiter: Limiter | None = None,
    ) -> None:
        self._members = members
        self.model = LatencyModel()
        self.limiter = Limiter() if limiter is None else limiter
        # Whether a due batch may wait for the limiter.
        self._is_limited = False
        self._decided_at = -math.inf
        # The batches in the handler and their start times, in seconds; its callers keep them.
        self.batches: dict[Batch, float] = {}
        self.closed = False
        # The option `max_queued_requests`; infinity for None, 0 once it is `closed`. While fewer
        # requests than `unchecked_below` are queued, another one needs no check.
        self.bound = self.unchecked_below = 0.0
        # How many slots are idle, infinity for no limit, and what open batches can take now; its
        # callers keep them, and call `reform` after a change.
        self.idle_slots = 0.0
        self.open_room = NOTHING
        self.overdue = Overdue(lambda request: self._policy.demote(request), options)
        self.live = self.parked = self.wake_at = 0
        # Whether new options are pending until no batch is being collected.
        self.awaits_change = self._wakes_always = False
        self._left = 0  # how many requests have left the queue, however they did
        self.pressures = pressures = PressureTracker(self.model, lambda: self._policy.cost_of_all())
        self.regathering = Regathering(self.model, self.overdue, pressures)
        self._parked = ArrivalQueue(PARKED)
        self._control: AdmissionControl | None
        # Adds a request to the queue; returns whether a slot must decide now.
        self.append: Callable[[Request], object]
        self._take_in(options)

    def add(self, request: Request) -> bool:
        """Queues a QUEUED request, for which there is room; returns whether to wake the slot."""
        live = self.live + 1
        if self.append(request):
            self.wake_at = live
        if (asked := request.options) is not None and asked.due is not None:
            if self.pressures.may_wait:
                if self.pressures.note_arrival(request, asked.due, live):
                    self.wake_at = live
            elif asked.due < self.regathering.urgent_before:
                self.wake_at = live
        self.live = live
        return live == self.wake_at

    def admit(self, request: Request) -> Admission:
        """Queues, parks or refuses a request; may shed another."""
        control = self._control
        if control is not None and not self.closed:
            refusal = control.full_level(request)
            if refusal is None or self._start_at_once(1, request.cost):
                refusal = control.lateness(request, self.cost, self.batches)
            if refusal is not None:
                return Admission(refusal)
        victim = None
        if self.parked or not self._fits(1, request.cost):
            if self.closed:
                return Admission("it is closed")
            if self.options.overload == "wait" or request.waits_for_room:
                self._park(request)
                return QUIET
            victim = None if control is None or self.parked else control.victim(request)
            if victim is None:
                return Admission(self._fullness())
        request.state = QUEUED
        rings = self.add(request)  # first, since a user's rule may raise
        if control is not None:
            control.note_added(request, self.live)
        if victim is not None:
            self._drop(victim, State.FAILED)
            return Admission(None, victim, rings)
        return RINGING if rings else QUIET

    def refusal_of(self, requests: Sequence[Request]) -> str | None:
        # No other one is shed for them, because one of them might still be refused.
        waits = self.options.overload == "wait" or requests[0].waits_for_room
        if waits or self._fits(len(requests), cost_of(requests)):
            return None
        return self._fullness()

    def arrive_all(self, requests: list[Request]) -> bool:
        before = self.live
        must_decide = self._policy.extend(requests)
        self.live += len(requests)
        return must_decide or self._wakes_always or before < self.wake_at <= self.live

    def leave(self, request: Request, state: State = State.CANCELLED) -> bool:
        """Removes a waiting request that has ended; returns whether the slot must be woken."""
        self._drop(request, state)
        return (self.parked > 0 and self.reform()) or self._wakes_always

    @property
    def _at_once(self) -> Amount:
        """Returns how much of the queue idle slots and open batches are about to take."""
        if self._is_limited:
            return NOTHING
        return self.limit.times(self.idle_slots).plus(*self.open_room)

    def reform(self) -> bool:
        """Admits parked requests; returns whether the waiting slot must be woken."""
        woken = False
        while (request := self._parked.first()) is not None and self._fits(1, request.cost):
            request.state = QUEUED
            try:
                woken = self.add(request) or woken
            except BaseException:
                request.state = PARKED  # so that it is found, and failed, later
                raise
            self._parked.pop()
            self.parked -= 1
            if self._control is not None:
                self._control.note_admitted(request, self.live)
        return woken

    def wake_always(self) -> None:
        """Makes every arrival and departure wake the slot from now on; for open batches."""
        self._wakes_always = True
        self.append = self._append_and_wake

    def decide(self, now: float) -> Dispatch | Wait:
        if self.limiter.is_active and (limited := self._decide_within_limit(now)) is not None:
            return limited
        pressures, regathering = self.pressures, self.regathering
        pressure = None
        if not self.live:
            self._tidy()
        elif pressures.has_times or pressures.draining or pressures.covered:
            pressure = pressures.pressure(now)
        decision = self._policy.decide(now, pressure)
        if regathering.owed or regathering.has_waited:
            decision = regathering.decide(
                decision, self._policy, now, self.live, self.calls, self.idle_slots
            )
        if isinstance(decision, Dispatch):
            pressures.asleep_until = pressures.urgent_before = -math.inf
            self.wake_at = 0
            return decision
        if pressures.unseen and pressures.must_see(decision):
            # Now their deadlines matter, and may change the decision.
            pressures.see()
            return self.decide(now)
        if pressures.has_times:
            decision = pressures.shortened(decision)
        pressures.asleep_until = math.inf if decision.until is None else decision.until
        pressures.urgent_before = math.inf if self.batches else None  # a run may be measured
        self.wake_at = decision.wake_at
        return decision

    def _decide_within_limit(self, now: float) -> Dispatch | Wait | None:
        """Decides while the limiter makes a difference; returns None if it makes none."""
        limiter, pressures = self.limiter, self.pressures
        self._decided_at = now
        if self.live and now < limiter.opens_at:
            # As while all slots are busy: no arrival wakes the slot, and requests accumulate.
            self._is_limited = True
            self.wake_at = 0
            pressures.asleep_until = pressures.urgent_before = -math.inf
            return Wait(limiter.opens_at)
        if not self._is_limited:
            return None
        self._is_limited = False
        self.reform()
        decision = self.decide(now)
        if isinstance(decision, Dispatch):
            return decision._replace(reason=DispatchReason.LIMIT)
        return decision

    def take(self, dispatch: Dispatch) -> list[Request]:
        # They stay QUEUED; the caller changes their state. The next `reform` admits parked ones.
        taken = self._handed_out(self._policy.take(dispatch))
        if self.limiter.is_active:
            self.limiter.spend(cost_of(taken), self._decided_at)
        return taken

    def take_within(self, room: Amount) -> list[Request]:
        taken = self._handed_out(self._policy.take_within(room))
        if not self.live:
            self._tidy()  # `decide` is not called for open batches
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        """Undoes the last `take`, except for requests that are no longer QUEUED."""
        waiting = [request for request in requests if request.state is QUEUED]
        self._policy.put_back(waiting)
        self.limiter.refund()
        self.pressures.put_back()
        self.live += len(waiting)
        self._left -= len(waiting)
        if self._control is not None:
            for request in waiting:
                self._control.note_returned(request)

    def insert(self, request: Request) -> None:
        """Queues a request of an earlier batch again, at its place; it does not wait for others."""
        self._policy.insert(request)  # first, since a user's policy may raise
        self.live += 1
        self._left -= 1
        self.pressures.covered[request] = None
        if self._control is not None:
            self._control.note_added(request, self.live)

    def ended(self, batch: Batch, run_s: float, now: float, *, interrupted: bool) -> None:
        """Records that a batch has ended and was removed from `batches`, before its callers run."""
        if interrupted:
            self.model.interrupted(batch.load, run_s)
            return
        self.model.observe(batch.load, run_s)
        regathering = self.regathering
        # Nothing is learned from short batches and while one caller is alone.
        if regathering.rounds or (run_s >= WORTH_S and (batch.size > 1 or self.live)):
            regathering.ended(batch.members, run_s, now, self.calls, len(self.batches))

    def flush(self) -> None:
        self.pressures.flush(self._policy.waiting())

    @property
    def calls(self) -> int:
        return self.live + self._left

    @property
    def is_gathering(self) -> bool:
        return self.live > 0 and self.pressures.asleep_until != -math.inf

    @property
    def scheduling_capacity(self) -> float:
        return 0 if self.closed else max(0, self._at_once.cost - self.cost)

    @property
    def cost(self) -> float:
        return self._policy.cost_of_all()

    def cost_beside(self, asked: RequestOptions) -> float:
        return self._policy.cost_beside(asked)

    def parked_and_queued(self) -> list[Request]:
        """Returns parked requests first, so that none is admitted while the others are removed."""
        return [*self._parked, *self._policy.waiting()]

    def await_change(self, *, is_pending: bool) -> None:
        self.awaits_change = is_pending
        self.unchecked_below = self.bound if self.takes_anyone and not is_pending else -math.inf

    def change(
        self, options: BatchOptions, describe: Callable[[Request], object]
    ) -> list[tuple[Request, BaseException]]:
        """Applies new options; returns waiting requests that don't fit them, and their errors."""
        # The errors may be any that a user's function or policy raises. These requests have left.
        waiting = [*self._policy.by_arrival(), *self._parked]
        self._take_in(options)
        failed: list[tuple[Request, BaseException]] = []
        for request in waiting:
            self.live -= request.state is QUEUED  # it is counted again if it stays
            error = self._refiled(request, describe)
            if error is not None:
                failed.append((request, error))
                self.parked -= request.state is PARKED
                request.state = State.FAILED
                self.pressures.left(request)
            elif self._control is not None:
                self._control.note_added(request, self.live)
        self.reform()
        return failed

    def drain(self) -> None:
        self.pressures.draining = True

    def close(self) -> None:
        """Admits all parked requests, and refuses new ones from now on."""
        self.closed = self.pressures.draining = True
        self.bound = math.inf
        try:
            self.reform()
        finally:
            self.bound = self.unchecked_below = 0

    def clear(self) -> Iterator[Request]:
        """Empties the queue for good; yields parked requests last."""
        waiting = [*self._policy.waiting(), *self._parked]
        self._parked.clear()
        self.live = self.parked = 0
        self._control = None
        self._file_by(SizeOrWait(self.options))  # making a user's policy again might raise
        return iter(waiting)

    def _take_in(self, options: BatchOptions) -> None:
        adaptive = adaptive_of(options, self.model)
        self._file_by(policy_of(options, self.model, adaptive, self._members))
        self.adaptive = adaptive
        self.options = options
        self.limit = options.batch_limit
        self.overdue.change(options)
        self.pressures.change(options)
        self.regathering.change(options)
        self.limiter.change(options.limit)
        self._control = AdmissionControl.for_options(options, self.model)
        self.admits_freely = self._control is None
        self.takes_anyone = self.admits_freely and not distinguishes_requests(options)
        bound = options.max_queued_requests
        self.bound = 0 if self.closed else math.inf if bound is None else bound
        self.await_change(is_pending=self.awaits_change)

    def _file_by(self, policy: Rule) -> None:
        self._policy = policy
        self.append = policy.append
        if self._wakes_always:
            self.wake_always()

    def _append_and_wake(self, request: Request) -> bool:
        self._policy.add(request)
        self.wake_at = self.live + 1
        return True

    def _handed_out(self, taken: list[Request]) -> list[Request]:
        if self._control is not None:
            for request in taken:
                self._control.note_left(request)
        self.live -= len(taken)
        self._left += len(taken)
        pressures = self.pressures
        if pressures.covered or pressures.taken_because:
            pressures.taken(taken)
        return taken

    def _fits(self, requests: int, cost: float) -> bool:
        excess = self.live + requests - self.bound
        if excess <= 0 or self.closed:
            return excess <= 0
        # If items have costs, idle slots may take fewer of them at once than their number suggests.
        if self.options.batch_size_fn is not None:
            return self._start_at_once(requests, cost)
        return excess <= self._at_once.requests

    def _start_at_once(self, requests: int, cost: float) -> bool:
        return self._at_once.fits(self.live + requests, self.cost + cost)

    def _fullness(self) -> str:
        bound = f"max_queued_requests={self.options.max_queued_requests}"
        taken = min(self._at_once.requests, self.live - self.bound)
        how = f": {bound}, and free slots take {taken:g}" if taken > 0 else f", and {bound}"
        return f"{self.live} requests are waiting{how}"

    def _park(self, request: Request) -> None:
        request.state = PARKED
        self._parked.push(request)
        self.parked += 1
        if self._control is not None:
            self._control.note_added(request, self.live)

    def _refiled(
        self, request: Request, describe: Callable[[Request], object]
    ) -> BaseException | None:
        """Adds a waiting request again under new options; returns its error if that fails."""
        try:
            describe(request)
            if request.state is QUEUED:
                self.add(request)
        except BaseException as error:  # the requests after it must still be added
            return error
        return None

    def _drop(self, request: Request, state: State) -> None:
        was, request.state = request.state, state
        if self._control is not None:
            self._control.note_left(request)
        if was is QUEUED:
            self.live -= 1
            self._left += 1
            self.pressures.left(request)
            self._policy.remove(request)
        else:
            self.parked -= 1
            if not self.parked or is_worth_a_sweep(self._parked, self.parked):
                self._parked.sweep()
        if not self.live and not self.parked:
            self._tidy()  # the waiting slot may sleep until the next arrival

    def _tidy(self) -> None:
        pressures = self.pressures
        if pressures.has_times or pressures.unseen or pressures.taken_because:
            pressures.forget_times()
        if self._control is not None and not self.parked:
            self._control.tidy()
