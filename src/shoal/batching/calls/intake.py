"""How a call enters the line, waits, and leaves: the callers' half of a batcher.

This is the memory channel between callers and slots. Its buffer is the line itself, so that a
caller that leaves takes its request out of the buffer at once, which no general channel allows; its
receiving end is the doorbell of the slot that waits. What a caller gets back comes over its
request's own cell.

`call` is the hot path. It is one coroutine, does nothing twice, and allocates the request, its cell
and a copy of the caller's context, and no more.
"""

from __future__ import annotations

from contextvars import copy_context
from itertools import repeat
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from shoal.batching.calls.deadlines import Deadlines
from shoal.batching.calls.groups import GroupWaiter
from shoal.batching.calls.refusals import Refusals
from shoal.batching.current import running_batch
from shoal.batching.stream_buffer import StreamBuffer
from shoal.core.forming.call_options import RequestOptionsFactory
from shoal.core.forming.former import Former
from shoal.core.request import SHARED, Request, State
from shoal.errors import BatcherClosed, DeadlineExceeded, NotOpen, ShoalError, WouldDeadlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.batching.loops.parking import Parking
    from shoal.core.batch import Batch
    from shoal.core.counters import Counters
    from shoal.core.options.options import BatchOptions
    from shoal.core.request import RequestOptions

QUEUED = State.QUEUED
PARKED = State.PARKED
RUNNING = State.RUNNING


class Intake:
    """The queue of one open batcher, from its callers' side.

    A request enters here, and ends here if it ends without an answer of the handler.

    Attributes:
        name: The batcher's name, for messages.
        former: The line, and the rule that cuts batches from it.
        options_factory: What makes the records of requests under the options in force.
        deadlines: What ends requests that run out of time; it wants to be run.
        ring: Wakes the slot that waits for requests; the slots set it.
        may_block: Whether a handler has the only slot, so that calls which it makes here may wait
            for itself; the slots set it.
        is_blocked_by: Says whether a batch's handler makes a call that waits for that handler; the
            slots set it.
        adopt: Takes in options that were changed, if no batch gathers; None where none were.
        refusals: Makes the errors of calls that are not answered.
        home: The event loop that the batcher belongs to.
        find_here: Finds where a call enters of the function that this one serves, in the event loop
            that asks; None where this is the only place.
        soon: See `Parking.soon`.
    """

    def __init__(
        self,
        name: str,
        options: BatchOptions,
        parking: Parking,
        counters: Counters,
    ) -> None:
        self.name = name
        self.former = Former(options)
        self.options_factory = RequestOptionsFactory(name, options)
        self.deadlines = Deadlines(parking, self.former.overdue, self.expire)
        self.ring: Callable[[], None] = lambda: None
        self.may_block = False
        self.is_blocked_by: Callable[[Batch], bool] = lambda _batch: False
        self.adopt: Callable[[], None] | None = None
        self.refusals = Refusals(name, counters)
        self.home = self.refusals.home
        self.find_here: Callable[[], Any] | None = None
        self.soon = parking.soon
        self._parking = parking
        self._counters = counters
        self._timers = self.former.overdue.timers
        self._now = parking.now
        self._new_waiter = parking.new_waiter

    async def call(self, item: Any, options: RequestOptions | None) -> Any:
        """Puts one request in line and waits for its result.

        Returns:
            What the handler gave back for the item.

        Raises:
            Overloaded: The line is full.
            DeadlineExceeded: The call's time was up.
            BatcherClosed: The batcher stopped before it could answer.
            NotOpen: It is awaited in another event loop than the batcher's.
            WouldDeadlock: The handler that makes it would wait for itself.
            Exception: What the handler raised, or put into this request's slot.

        Cancellation: the request is dropped, from the line or from its batch; no other is touched.
        """
        if self.may_block and running_batch.get(None) is not None:
            try:
                self.refuse_blocked()
            except WouldDeadlock:
                await anyio.lowlevel.checkpoint()
                raise
        former = self.former
        request = Request()
        request.item = item
        request.waiter = waiter = self._new_waiter()
        request.arrived_at = self._now()
        request.context = copy_context()
        request.options = options
        request.error = request.batch = None
        live = former.live
        if live < former.free_room and (options is None or options.options_factory is SHARED):
            # Former.arrive, without the call
            request.state = QUEUED
            former.append(request)
            former.live = live = live + 1
            if live == former.wake_at:
                self.ring()
        else:
            try:
                self._enter(request)
            except Exception:
                if not self.home.loop.is_here:
                    return await self._entry_here().call(item, options)
                await anyio.lowlevel.checkpoint()  # or a caller that tries again blocks the loop
                raise
        try:
            await waiter
        except BaseException as error:
            self.abandon(request)
            # That is what other loops say of a cell.
            if not isinstance(error, (TypeError, RuntimeError)) or self.home.loop.is_here:
                raise
            request.error = self.refusals.elsewhere()
        finally:
            if (asked := request.options) is not None:
                if asked.queue_timer is not None:
                    former.overdue.forget(request)
                elif asked.timer is not None:  # Overdue.forget, for the usual case
                    if asked.timer[2] is not None:
                        asked.timer[2] = None
                        self._timers.forgotten += 1
                    asked.timer = None
        if request.error is not None:
            if type(request.error) is NotOpen and not self.home.loop.is_here:
                return await self._entry_here().call(item, options)
            try:
                raise request.error
            finally:
                # The error's traceback holds this frame, so the frame lets go of the error.
                request.error = None
        return request.value

    def _entry_here(self) -> Any:
        """Returns where calls enter of the event loop that asks, which is another one.

        Raises:
            NotOpen: The function is not open there.
            BatcherClosed: Nor is it here any more.
        """
        if self.find_here is None:
            raise self.refusals.elsewhere()
        return self.find_here()

    def enter(self, item: Any, options: RequestOptions | None) -> Request:
        """Puts one request in line; the caller waits on its cell, at once.

        Raises:
            Overloaded: The line is full.
            DeadlineExceeded: Its time is up before it has begun.
            BatcherClosed: The batcher has stopped.
            NotOpen: It is called in another event loop than the batcher's.
        """
        self.check_loop()
        request = self._new_request(item, options, self._new_waiter())
        self._enter(request)
        return request

    def enter_stream(self, item: Any, options: RequestOptions | None) -> tuple[Intake, Request]:
        """Puts the request of one stream in line; its cell is the stream's buffer.

        Returns:
            The line that it is in, which is another one in another event loop; and the request.

        Raises:
            Overloaded: The line is full.
            BatcherClosed: The batcher has stopped.
            NotOpen: It is called in another event loop than the batcher's, and not open there.
            WouldDeadlock: The handler that makes it would wait for itself.
        """
        if not self._parking.seems_here():
            there: Intake = self._entry_here().intake
            return there.enter_stream(item, options)
        if self.may_block:
            self.refuse_blocked()
        buffer = StreamBuffer(self._parking, self.former.options.stream_buffer)
        request = self._new_request(item, options, buffer)
        self._enter(request)
        return self, request

    def enter_group(
        self,
        items: list[Any],
        options: Sequence[RequestOptions] | None,
    ) -> list[Request]:
        """Puts many requests in line that share one cell; the caller waits on it, at once.

        Args:
            items: What the requests are about; at least one.
            options: The record of each; None where there are none.

        Raises:
            Overloaded: The line has no room for all of them; then none is put in.
            DeadlineExceeded: Their time is up before it has begun.
            BatcherClosed: The batcher has stopped.
            NotOpen: It is called in another event loop than the batcher's.
            WouldDeadlock: The handler that makes it would wait for itself.
        """
        self.check_loop()
        if self.may_block:
            self.refuse_blocked()
        waiter = GroupWaiter(self._parking, len(items))
        former = self.former
        if options is None and former.live + len(items) <= former.free_room:
            return self._enter_alike(items, waiter)
        if self.adopt is not None:
            self.adopt()
        requests = [
            self._new_request(item, asked, waiter)
            for item, asked in zip(items, options or repeat(None), strict=False)
        ]
        first = requests[0]
        if first.deadline is not None and first.deadline <= first.arrived_at:
            raise self.refusals.late(len(requests))
        for request in requests:
            if (
                request.options is None
                or request.options.options_factory is not self.options_factory
            ):
                self._renew(request)
        self._let_all_in(requests)
        for request in requests:
            self.deadlines.watch(request)
        return requests

    def _enter_alike(self, items: list[Any], waiter: Any) -> list[Request]:
        """Puts requests in line that have nothing but an item, and for which there is room."""
        now = self._now()
        context = copy_context()
        requests: list[Request] = []
        for item in items:  # _new_request, without the calls
            request = Request()
            request.item = item
            request.waiter = waiter
            request.arrived_at = now
            request.context = context
            request.options = request.error = request.batch = None
            request.state = QUEUED
            requests.append(request)
        if self.former.arrive_all(requests):
            self.ring()
        return requests

    def _new_request(self, item: Any, options: RequestOptions | None, waiter: Any) -> Request:
        request = Request()
        request.item = item
        request.waiter = waiter
        request.arrived_at = self._now()
        request.context = copy_context()
        request.options = options
        request.error = request.batch = None
        return request

    def _enter(self, request: Request) -> None:
        """Puts a request in line, or parks it, and watches its time.

        Raises:
            Overloaded: There is no room for it.
            DeadlineExceeded: Its time is up before it has begun.
            BatcherClosed: The batcher has stopped.
        """
        if self.adopt is not None:
            self.adopt()
        options = request.options
        if options is None or options.options_factory is not self.options_factory:
            self._renew(request)
            options = request.options
        deadline = None if options is None else options.deadline
        if deadline is not None and deadline <= request.arrived_at:
            raise self.refusals.late(1)
        former = self.former
        if former.admits_freely and not former.parked and former.live < former.room.most:
            request.state = QUEUED
            if former.arrive(request):
                self.ring()
        else:
            self._admit(request)
        if options is None:
            return
        if former.overdue.limits_queue or options.queue_timeout_s is not None:
            self.deadlines.watch(request)
        elif deadline is not None:  # Overdue.watch, for the usual case
            options.timer = self._timers.add(deadline, request)
            if deadline < self.deadlines.asleep_until:
                self.deadlines.look()

    def _renew(self, request: Request) -> None:
        """Makes a record anew; the batcher was configured since the call was made."""
        error = self.options_factory.renew(request)
        if error is not None:
            raise error

    def _admit(self, request: Request) -> None:
        """Puts a request in line, or parks it.

        Raises:
            Overloaded: There is no room for it.
            BatcherClosed: The batcher has stopped.
        """
        if not self._parking.seems_here():
            # Others would suffer for a caller that can't be answered.
            raise self.refusals.elsewhere()
        admission = self.former.admit(request)
        if admission.refusal is not None:
            raise self.refusals.not_admitted(admission.refusal, 1)
        if admission.victim is not None:
            admission.victim.error = self.refusals.shed()
            self._parking.wake_all((admission.victim,))
        if admission.ring:
            self.ring()

    def _let_all_in(self, requests: list[Request]) -> None:
        """Lets all requests of a group in, or none of them.

        Raises:
            Overloaded: There is no room for one of them.
            BatcherClosed: The batcher has stopped.
        """
        refusal = self.former.refusal_of(requests)
        if refusal is not None:
            raise self.refusals.not_admitted(refusal, len(requests))
        for place, request in enumerate(requests):
            try:
                self._admit(request)
            except ShoalError:
                for other in requests[:place]:
                    if other.state in (QUEUED, PARKED):
                        self.former.leave(other, State.FAILED)
                if not self.refusals.closed:
                    self._counters.rejected += len(requests) - 1
                raise

    def refuse_blocked(self) -> None:
        """Refuses a call that would wait for the handler that makes it.

        Raises:
            WouldDeadlock: The call is one.
        """
        batch = running_batch.get(None)
        if batch is not None and self.is_blocked_by(batch):
            raise self.refusals.would_deadlock()

    def check_loop(self) -> None:
        """Checks that the caller is in the batcher's event loop.

        Raises:
            NotOpen: It is in another one, or in none.
            BatcherClosed: Likewise, and the batcher has been closed.
        """
        if not self.home.loop.is_here:
            raise self.refusals.elsewhere()

    def abandon(self, request: Request) -> None:
        """Drops a request whose caller has left; does nothing if it has come to an end already."""
        state = request.state
        if state is RUNNING:
            batch, request.batch = request.batch, None
            assert batch is not None
            request.state = State.CANCELLED
            self._counters.cancelled += 1
            batch.active -= 1
            if batch.on_left is not None:
                batch.on_left(request)
        elif state is QUEUED or state is PARKED:
            self._counters.cancelled += 1
            if self.former.leave(request):
                self.ring()
        else:
            request.error = None  # nobody will raise it, and it holds on to the request

    def expire(self, request: Request, what_it_did: str) -> None:
        """Drops a request that has run out of time, unless it has come to an end already.

        Args:
            request: The request.
            what_it_did: How it used up its time, for its error.
        """
        if request.state not in (PARKED, QUEUED, RUNNING):
            return
        self.abandon(request)
        self._counters.cancelled -= 1
        self._counters.expired += 1
        request.error = DeadlineExceeded(f"a call to {self.name} {what_it_did}")
        if isinstance(request.waiter, StreamBuffer):
            request.waiter.release()
        self._parking.wake_all((request,))

    def close(self) -> None:
        """Lets no further call in; what is in line stays."""
        self.refusals.closed = True
        self.former.close()
        self.ring()

    def drop_queue(self) -> None:
        """Fails what is in line, because the batcher is about to stop; calls are still taken."""
        for request in self.former.in_line():
            if self.former.leave(request, State.FAILED):
                self.ring()
            self.fail_one(request, BatcherClosed(f"{self.name} is closing, and drops its line"))

    def fail(self, requests: Iterable[Request], failure: BaseException | None) -> None:
        """Fails requests, and every later call, because the batcher has stopped."""
        self.refusals.failure = failure
        self.stop(requests)

    def stop(self, requests: Iterable[Request]) -> None:
        """Fails requests whose task was stopped."""
        for request in requests:
            request.state = State.FAILED
            if (batch := request.batch) is not None:
                batch.active -= 1
                request.batch = None
            self.fail_one(request, self.refusals.stopped())

    def fail_one(self, request: Request, error: Exception) -> None:
        """Tells the caller of a request that has left the line that it has failed."""
        request.error = error
        self._counters.failed += 1
        self._parking.wake_all((request,))
