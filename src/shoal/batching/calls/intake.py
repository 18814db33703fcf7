"""Adds requests to the queue, waits for their results, and removes them: the callers' side.

This is the channel between callers and worker slots. Its buffer is the queue itself, so that a
caller that leaves removes its request at once, which no general-purpose channel allows. A `Bell`
wakes the slot that waits for requests. Each caller waits for its result on its request's waiter.
"""

from __future__ import annotations

from contextvars import copy_context
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NoReturn

import anyio.lowlevel

from shoal.batching.calls.groups import GroupWaiter
from shoal.batching.current import running_batch
from shoal.batching.stream_buffer import StreamBuffer
from shoal.core.forming.call_options import RequestOptionsFactory
from shoal.core.request import UNDER_WAY, Request, State
from shoal.core.timers import MADE_LATE
from shoal.errors import BatcherClosed, DeadlineExceeded, Overloaded, ShoalError, WouldDeadlock
from shoal.failures.held import shown
from shoal.loops.event_loop import Home, not_open_here
from shoal.loops.parking import Bell
from shoal.loops.timers import LoopTimers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.batching.calls.groups import Part
    from shoal.core.counters import Counters
    from shoal.core.events import Unserved
    from shoal.core.forming.admission import Admission
    from shoal.core.forming.former import Former
    from shoal.core.request import Batch, RequestOptions
    from shoal.loops.parking import Parking


QUEUED = State.QUEUED
PARKED = State.PARKED
RUNNING = State.RUNNING


class Intake:
    """The callers' side of an open batcher's queue: creates requests, and ends some."""

    def __init__(
        self,
        name: str,
        former: Former,
        parking: Parking,
        counters: Counters,
        *,
        is_blocked_by: Callable[[Batch], bool],
        adopt: Callable[[], None],
    ) -> None:
        self.name = name
        self.former = former
        self.options_factory = RequestOptionsFactory(name, former.options)
        # A cancel scope around the wait of each caller costs as much as the rest of a call, and the
        # reader of a stream may be anywhere when the stream's time is up.
        self.overdue = former.overdue
        self.timers = LoopTimers(parking, (self.overdue.timers, self._time_is_up))
        self.home = Home()
        # The error that broke the batcher.
        self.failure: BaseException | None = None
        # Wakes the slot that waits for the queue to change.
        self.bell = Bell(parking)
        self.ring = self.bell.ring
        self._adopt = adopt
        self._is_blocked_by = is_blocked_by
        self.parking = parking
        self.counters = counters
        self._batches = former.batches
        self.now = parking.now
        self.park = parking.park
        # Whether requests in the handler may be queued again; False once the queue was dropped.
        self.takes_back = True

    def adopt(self) -> None:
        """Applies pending options, if no batch is filling."""
        if self.former.awaits_change:
            self._adopt()

    def enter(
        self, item: Any, options: RequestOptions | None, now: float, waiter: Any = None
    ) -> Request:
        """Makes a request and adds it to the queue; the caller must `park` at once."""
        if self._batches and running_batch.get(None) is not None:
            self.refuse_blocked()
        request = Request()
        request.item = item
        request.waiter = waiter
        request.arrived_at = now
        request.context = copy_context()
        request.options = options
        request.error = request.batch = None
        former = self.former
        if former.live >= former.unchecked_below:
            self._check_and_renew(request)
            self._settle(former.admit(request), request)
        else:  # none is parked
            request.state = QUEUED
            if former.add(request):
                self.ring()
        if request.options is not None:
            until = self.overdue.watch(request)
            if until < self.timers.asleep_until:
                self.timers.wake_at(until)
        return request

    async def end_failed_call(self, request: Request | None, error: BaseException) -> bool:
        """Drops the request of a call that failed; returns whether another loop made the call."""
        # A refused call has no request; this executes a checkpoint for it.
        if request is not None:
            self.abandon(request)
            self.overdue.forget(request.options)
            # Another event loop raises these for a waiter of this one.
            return isinstance(error, (TypeError, RuntimeError)) and not self.home.loop.is_here
        if not isinstance(error, Exception):  # nothing may take its place, such as that of Ctrl-C
            return False
        if not self.home.loop.is_here:
            return True
        await anyio.lowlevel.checkpoint()  # or a caller that retries blocks the loop
        return False

    def enter_stream(
        self, item: Any, options: RequestOptions | None, now: float
    ) -> tuple[Intake, Request]:
        """Adds the request of a stream to the queue; its waiter is the stream's buffer."""
        if not self.parking.seems_here():
            raise self.elsewhere()
        buffer = StreamBuffer(self.parking, self.former.options.stream_buffer)
        return self, self.enter(item, options, now, buffer)

    def enter_group(
        self, items: list[Any], options: Sequence[RequestOptions] | None
    ) -> list[Request]:
        """Adds all requests or none; their common waiter must be awaited at once."""
        self.check_loop()
        self.refuse_blocked()
        former, waiter = self.former, GroupWaiter(self.parking, len(items))
        if options is None and former.live + len(items) <= former.unchecked_below:
            requests = self.requests_of(items, waiter, self.now())
            for request in requests:
                request.state = QUEUED
            if former.arrive_all(requests):
                self.ring()
            return requests
        self.adopt()
        requests = self.requests_of(items, waiter, self.now())
        for request, given in zip(requests, options or (), strict=False):
            request.options = given
        first = requests[0]
        if first.deadline is not None and first.deadline <= first.arrived_at:
            raise self.late(requests)
        for request in requests:
            asked = request.options
            if asked is None or asked.options_factory is not self.options_factory:
                self.options_factory.renew(request)
        self._admit_all(requests)
        for request in requests:
            self.timers.wake_at(self.overdue.watch(request))
        return requests

    def enter_parts(self, parts: Sequence[Part]) -> list[Request]:
        return self.enter_group([part.item for part in parts], [part.options for part in parts])

    @staticmethod
    def requests_of(items: Iterable[Any], waiter: Any, now: float) -> list[Request]:
        """Makes requests with a common waiter, which have no state until they are accepted."""
        context = copy_context()
        requests: list[Request] = []
        for item in items:  # as in `enter`, without a call for each: 23 % of `map`
            request = Request()
            request.item = item
            request.waiter = waiter
            request.arrived_at = now
            request.context = context
            request.options = request.error = request.batch = None
            requests.append(request)
        return requests

    def _check_and_renew(self, request: Request) -> None:
        """Checks a request's loop and deadline; computes its options under the current ones."""
        # A call from another loop fails when it waits, but must not shed or park another before.
        former = self.former
        is_free = former.admits_freely and former.live < former.bound
        if not is_free and not self.parking.seems_here():
            raise self.elsewhere()
        if former.awaits_change:
            self._adopt()
        options = request.options
        if options is None or options.options_factory is not self.options_factory:
            self.options_factory.renew(request)
            options = request.options
        deadline = None if options is None else options.deadline
        if deadline is not None and deadline <= request.arrived_at:
            raise self.late((request,))

    def _settle(self, admission: Admission, request: Request) -> None:
        """Handles the outcome of an admission; raises if the request was refused."""
        if admission.refusal is not None:
            raise self.not_admitted(admission.refusal, (request,))
        if admission.victim is not None:
            admission.victim.error = self.shed(admission.victim, request.arrived_at)
            self.parking.wake_all((admission.victim,))
        if admission.ring:
            self.ring()

    def _admit_all(self, requests: list[Request]) -> None:
        refusal = self.former.refusal_of(requests)
        if refusal is not None:
            raise self.not_admitted(refusal, requests)
        for index, request in enumerate(requests):
            try:
                self._settle(self.former.admit(request), request)
            except ShoalError:
                for other in requests[:index]:
                    if other.state in (QUEUED, PARKED):
                        self.former.leave(other, State.FAILED)
                self.count_rejected([one for one in requests if one is not request])
                raise

    def check_loop(self) -> None:
        """Raises `NotOpen` or `BatcherClosed` if the caller is not in the batcher's event loop."""
        if not self.home.loop.is_here:
            raise self.elsewhere()

    def abandon(self, request: Request, why: Unserved = "cancelled") -> None:
        """Drops a request that its caller has left; only its error if it has ended already."""
        if request.state not in UNDER_WAY:
            request.error = None  # it will not be raised, and its traceback keeps the request
            return
        if why == "expired":
            self.counters.expired += 1
        else:
            self.counters.cancelled += 1
        if request.state is RUNNING:
            batch, request.batch = request.batch, None
            assert batch is not None
            request.state = State.CANCELLED
            batch.active -= 1
            if batch.on_left is not None:
                batch.on_left(request)
        else:
            self.notify_left((request,), why, self.now())
            if self.former.leave(request):
                self.ring()

    def expire_due(self) -> None:
        for what in self.overdue.timers.due(self.now()):
            self._time_is_up(what)

    def _time_is_up(self, what: Any) -> None:
        if (expired := self.overdue.expired(what, self.now())) is not None:
            self.expire(*expired)

    def expire(self, request: Request, what_it_did: str) -> None:
        if request.state not in UNDER_WAY:
            return
        self.abandon(request, "expired")
        request.error = DeadlineExceeded(f"a call to {self.name} {what_it_did}")
        if isinstance(request.waiter, StreamBuffer):
            request.waiter.release()
        self.parking.wake_all((request,))

    def close(self) -> None:
        self.former.close()
        self.ring()

    def drop_queue(self) -> None:
        """Fails the queued requests because the batcher will stop; calls are still accepted."""
        self.takes_back = False
        for request in self.former.parked_and_queued():
            if self.former.leave(request, State.FAILED):
                self.ring()
            self.fail_one(request, BatcherClosed(f"{self.name} is closing, and drops its queue"))

    def fail(self, requests: Iterable[Request]) -> None:
        """Fails the last requests, because the batcher has stopped."""
        self.takes_back = False
        self.stop(requests)

    def stop(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if (batch := request.batch) is not None:
                batch.active -= 1
                request.batch = None
            request.state = State.FAILED
            self.fail_one(request, self.stopped())

    def fail_one(self, request: Request, error: Exception) -> None:
        """Counts a request whose state is FAILED already, and wakes its caller with the error."""
        request.error = error
        self.counters.failed += 1
        self.parking.wake_all((request,))

    # The errors for calls. Those that are never queued are counted with them.

    def elsewhere(self) -> ShoalError:
        return self.stopped() if self.former.closed else not_open_here(self.name, [self.home])

    def stopped(self) -> BatcherClosed:
        if self.failure is None:
            return BatcherClosed(f"{self.name} is closed")
        error = BatcherClosed(f"{self.name} stopped: {shown(self.failure)}")
        error.__cause__ = self.failure
        return error

    def not_admitted(self, why: str, requests: Sequence[Request]) -> ShoalError:
        self.count_rejected(requests)
        if self.former.closed:
            return self.stopped()
        return Overloaded(f"{self.name} is overloaded: {why}")

    def count_rejected(self, requests: Sequence[Request]) -> None:
        if not self.former.closed:
            self.counters.rejected += len(requests)
            self.notify_left(requests, "rejected")

    def shed(self, request: Request, now: float) -> Overloaded:
        self.counters.shed += 1
        self.notify_left((request,), "shed", now)
        return Overloaded(f"{self.name} is overloaded, and has shed this request for another one")

    def late(self, requests: Sequence[Request]) -> DeadlineExceeded:
        """Returns the error for requests with a deadline that passed before they are queued."""
        self.counters.expired += len(requests)
        self.notify_left(requests, "expired")
        return DeadlineExceeded(f"a call to {self.name} {MADE_LATE}")

    def notify_left(
        self, requests: Sequence[Request], why: Unserved, now: float | None = None
    ) -> None:
        # `now` is None for the time of their arrival.
        if not (observers := self.counters.observers).all:
            return
        for request in requests:
            at = request.arrived_at if now is None else now
            observers.notify(methodcaller("request_left", self.name, request, why, at))

    def refuse_blocked(self) -> None:
        """Raises `WouldDeadlock` for a call that would wait for the handler that makes it."""
        batch = running_batch.get(None)
        if batch is None or not self._is_blocked_by(batch):
            return
        raise WouldDeadlock(
            f"the handler of {self.name} calls its own batcher, and waits for a slot while its "
            "batch has the only one: it would wait for ever; allow more slots, "
            "max_concurrent_batches=2, or call the plain function that does the work"
        )


def raise_error_of(request: Request) -> NoReturn:
    try:
        raise request.error
    finally:
        request.error = None  # its traceback holds this frame
