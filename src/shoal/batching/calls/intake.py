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
from shoal.batching.calls.endings import Endings
from shoal.batching.current import running_batch
from shoal.batching.stream_buffer import StreamBuffer
from shoal.core.forming.call_options import Terms
from shoal.core.forming.former import Former
from shoal.core.request import SHARED, Request, State
from shoal.errors import DeadlineExceeded, NotOpen, Overloaded, ShoalError, WouldDeadlock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.batching.loops.parking import Parking
    from shoal.core.counters import Counters
    from shoal.core.options.options import BatchOptions
    from shoal.core.request import CallOptions

QUEUED = State.QUEUED
PARKED = State.PARKED
RUNNING = State.RUNNING


class Intake(Endings):
    """The line of one open batcher, from its callers' side.

    Attributes:
        terms: What makes the records of requests under the options in force.
        deadlines: What ends requests that run out of time; it wants to be run.
    """

    def __init__(
        self,
        name: str,
        options: BatchOptions,
        parking: Parking,
        counters: Counters,
    ) -> None:
        super().__init__(name, Former(options), parking, counters)
        self.deadlines = Deadlines(parking, self.former.overdue, self.expire)
        self.terms = Terms(name, options)
        self._timers = self.former.overdue.timers
        self._now = parking.now
        self._new_cell = parking.new_cell

    async def call(self, item: Any, options: CallOptions | None) -> Any:
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
            await self._check_not_blocked()
        former = self.former
        request = Request()
        request.item = item
        request.cell = cell = self._new_cell()
        request.arrived_at = self._now()
        request.context = copy_context()
        request.options = options
        request.error = request.batch = None
        live = former.live
        if live < former.free_room and (options is None or options.terms is SHARED):
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
                if not self.loop.is_here:
                    return await self._entry_here().call(item, options)
                await anyio.lowlevel.checkpoint()  # or a caller that tries again blocks the loop
                raise
        try:
            await cell
        except BaseException as error:
            self.abandon(request)
            # That is what other loops say of a cell.
            if not isinstance(error, (TypeError, RuntimeError)) or self.loop.is_here:
                raise
            request.error = self.foreigner()
        finally:
            if (asked := request.options) is not None:
                if asked.queue_timer is not None:
                    self.forget(request)
                elif asked.timer is not None:  # Overdue.forget, for the usual case
                    if asked.timer[2] is not None:
                        asked.timer[2] = None
                        self._timers.forgotten += 1
                    asked.timer = None
        if request.error is not None:
            if type(request.error) is NotOpen and not self.loop.is_here:
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
            raise self.foreigner()
        return self.find_here()

    def enter(self, item: Any, options: CallOptions | None) -> Request:
        """Puts one request in line; the caller waits on its cell, at once.

        Raises:
            Overloaded: The line is full.
            DeadlineExceeded: Its time is up before it has begun.
            BatcherClosed: The batcher has stopped.
            NotOpen: It is called in another event loop than the batcher's.
        """
        self.check_loop()
        request = self._new_request(item, options, self._new_cell())
        self._enter(request)
        return request

    def enter_stream(self, item: Any, options: CallOptions | None) -> tuple[Intake, Request]:
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
        options: Sequence[CallOptions] | None,
        new_cell: Callable[[Parking, int], Any],
    ) -> list[Request]:
        """Puts many requests in line that share one cell; the caller waits on it, at once.

        Args:
            items: What the requests are about; at least one.
            options: The record of each; None where there are none.
            new_cell: Makes the cell that they share.

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
        cell = new_cell(self._parking, len(items))
        former = self.former
        if options is None and former.live + len(items) <= former.free_room:
            return self._enter_alike(items, cell)
        if self.adopt is not None:
            self.adopt()
        requests = [
            self._new_request(item, asked, cell)
            for item, asked in zip(items, options or repeat(None), strict=False)
        ]
        first = requests[0]
        if first.deadline is not None and first.deadline <= first.arrived_at:
            raise self._late(len(requests))
        for request in requests:
            if request.options is None or request.options.terms is not self.terms:
                self._renew(request)
        self._let_all_in(requests)
        for request in requests:
            self._watch(request)
        return requests

    def _enter_alike(self, items: list[Any], cell: Any) -> list[Request]:
        """Puts requests in line that have nothing but an item, and for which there is room."""
        now = self._now()
        context = copy_context()
        requests: list[Request] = []
        for item in items:  # _new_request, without the calls
            request = Request()
            request.item = item
            request.cell = cell
            request.arrived_at = now
            request.context = context
            request.options = request.error = request.batch = None
            request.state = QUEUED
            requests.append(request)
        if self.former.arrive_all(requests):
            self.ring()
        return requests

    def _new_request(self, item: Any, options: CallOptions | None, cell: Any) -> Request:
        request = Request()
        request.item = item
        request.cell = cell
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
        if options is None or options.terms is not self.terms:
            self._renew(request)
            options = request.options
        deadline = None if options is None else options.deadline
        if deadline is not None and deadline <= request.arrived_at:
            raise self._late(1)
        former = self.former
        if former.is_ungated and not former.parked and former.live < former.room:
            request.state = QUEUED
            if former.arrive(request):
                self.ring()
        else:
            self._let_in(request)
        if options is None:
            return
        if former.overdue.limits_line or options.queue_timeout_s is not None:
            self._watch(request)
        elif deadline is not None:  # Overdue.watch, for the usual case
            options.timer = self._timers.add(deadline, request)
            if deadline < self.deadlines.asleep_until:
                self.deadlines.look()

    def _renew(self, request: Request) -> None:
        """Makes a record anew; the batcher was configured since the call was made."""
        error = self.terms.renew(request)
        if error is not None:
            raise error

    def _let_in(self, request: Request) -> None:
        """Puts a request in line, or parks it.

        Raises:
            Overloaded: There is no room for it.
            BatcherClosed: The batcher has stopped.
        """
        if not self._parking.seems_here():
            raise self.foreigner()  # others would suffer for a caller that can't be answered
        admission = self.former.admit(request)
        if admission.refusal is not None:
            raise self._refused(admission.refusal, 1)
        if admission.victim is not None:
            self._counters.shed += 1
            admission.victim.error = Overloaded(
                f"{self.name} is overloaded, and has shed this request for another one"
            )
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
            raise self._refused(refusal, len(requests))
        for place, request in enumerate(requests):
            try:
                self._let_in(request)
            except ShoalError:
                for other in requests[:place]:
                    if other.state in (QUEUED, PARKED):
                        self.former.leave(other, State.FAILED)
                if not self._closed:
                    self._counters.rejected += len(requests) - 1
                raise

    async def _check_not_blocked(self) -> None:
        """Refuses a call that would wait for the handler that makes it, at a checkpoint."""
        try:
            self.refuse_blocked()
        except WouldDeadlock:
            await anyio.lowlevel.checkpoint()
            raise

    def refuse_blocked(self) -> None:
        """Refuses a call that would wait for the handler that makes it.

        Raises:
            WouldDeadlock: The call is one.
        """
        batch = running_batch.get(None)
        if batch is not None and self.is_blocked_by(batch):
            raise WouldDeadlock(
                f"the handler of {self.name} calls its own batcher, and waits for a slot while its "
                "batch has the only one: it would wait for ever; give it more slots, "
                "max_concurrent_batches=2, or call the plain function that does the work"
            )

    def _refused(self, why: str, requests: int) -> ShoalError:
        """Makes the error of requests that are not let in."""
        if self._closed:
            return self._stopped()
        self._counters.rejected += requests
        return Overloaded(f"{self.name} is overloaded: {why}")

    def _late(self, requests: int) -> DeadlineExceeded:
        """Makes the error of requests whose time is up before they have begun."""
        self._counters.expired += requests
        return DeadlineExceeded(f"a call to {self.name} was made when its time was up")

    def _watch(self, request: Request) -> None:
        if self.former.overdue.watch(request) < self.deadlines.asleep_until:
            self.deadlines.look()
