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
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from shoal.batching.buffer import StreamBuffer
from shoal.batching.deadlines import Deadlines
from shoal.batching.group import GroupCell
from shoal.core.forming import Former
from shoal.core.request import Request, State
from shoal.errors import BatcherClosed, DeadlineExceeded, Overloaded, ShoalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.batching.parking import Parking
    from shoal.core.counters import Counters
    from shoal.core.options import BatchOptions
    from shoal.core.request import CallOptions

QUEUED = State.QUEUED
PARKED = State.PARKED
RUNNING = State.RUNNING


class Intake:
    """The line of one open batcher, from its callers' side.

    Attributes:
        name: The batcher's name, for messages.
        former: The line and the rule that cuts batches from it.
        ring: Wakes the slot that waits for requests; the slots set it.
        deadlines: What ends streams that run out of time; it wants to be run.
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
        self.ring: Callable[[], None] = _nobody_listens
        self.deadlines = Deadlines(parking, self.expire)
        self._parking = parking
        self._counters = counters
        self._now = parking.now
        self._new_cell = parking.new_cell
        self._closed = False
        self._failure: BaseException | None = None

    async def call(self, item: Any, options: CallOptions | None) -> Any:
        """Puts one request in line and waits for its result.

        Returns:
            What the handler gave back for the item.

        Raises:
            Overloaded: The line is full.
            BatcherClosed: The batcher stopped before it could answer.
            Exception: What the handler raised, or put into this request's slot.

        Cancellation: the request is dropped, from the line or from its batch; no other is touched.
        """
        former = self.former
        request = Request()
        request.item = item
        request.cell = cell = self._new_cell()
        request.arrived_at = self._now()
        request.context = copy_context()
        request.options = options
        request.error = request.batch = None
        live = former.live
        if live < former.room:  # Former.arrive, without the call
            request.state = QUEUED
            former.queue.append(request)
            former.live = live = live + 1
            if live == former.wake_at:
                self.ring()
        else:
            refusal = self._overflow(request)
            if refusal is not None:
                await anyio.lowlevel.checkpoint()  # or a caller that tries again blocks the loop
                raise refusal
        try:
            await cell
        except BaseException:
            self.abandon(request)
            raise
        if request.error is not None:
            try:
                raise request.error
            finally:
                # The error's traceback holds this frame, so the frame lets go of the error.
                request.error = None
        return request.value

    def enter(self, item: Any, options: CallOptions | None) -> Request:
        """Puts one request in line; the caller waits on its cell, at once.

        Raises:
            Overloaded: The line is full.
            BatcherClosed: The batcher has stopped.
        """
        return self._enter(self._new_request(item, options, self._new_cell()))

    def enter_stream(self, item: Any, options: CallOptions | None) -> Request:
        """Puts the request of one stream in line; its cell is the stream's buffer.

        Raises:
            Overloaded: The line is full.
            BatcherClosed: The batcher has stopped.
        """
        buffer = StreamBuffer(self._parking, self.former.options.stream_buffer)
        request = self._enter(self._new_request(item, options, buffer))
        if request.deadline is None:
            return request
        if request.deadline > request.arrived_at:
            self.deadlines.add(request, request.deadline)
        else:
            self.expire(request)
        return request

    def enter_group(self, items: list[Any], options: CallOptions | None) -> list[Request]:
        """Puts many requests in line that share one cell; the caller waits on it, at once.

        Raises:
            Overloaded: The line has no room for all of them; then none is put in.
            BatcherClosed: The batcher has stopped.
        """
        former = self.former
        room = int(min(len(items), max(0, former.room - former.live)))
        refusal = self._refusal(len(items)) if room < len(items) else None
        if refusal is not None:
            raise refusal
        group = GroupCell(self._parking, len(items))
        now = self._now()
        context = copy_context()
        requests: list[Request] = []
        for item in items:  # _new_request, without the calls
            request = Request()
            request.item = item
            request.cell = group
            request.arrived_at = now
            request.context = context
            request.options = options
            request.error = request.batch = None
            request.state = QUEUED if len(requests) < room else PARKED
            requests.append(request)
        if former.arrive_all(requests[:room]):
            self.ring()
        for request in requests[room:]:
            former.park(request)
        return requests

    def abandon(self, request: Request) -> None:
        """Drops a request whose caller has left; does nothing if it has come to an end already."""
        state = request.state
        if state is RUNNING:
            batch, request.batch = request.batch, None
            assert batch is not None
            request.state = State.CANCELLED
            self._counters.cancelled += 1
            batch.active -= 1
            if batch.active == 0 and batch.on_abandoned is not None:
                batch.on_abandoned()
        elif state is QUEUED or state is PARKED:
            self._counters.cancelled += 1
            if self.former.leave(request):
                self.ring()
        else:
            request.error = None  # nobody will raise it, and it holds on to the request

    def expire(self, request: Request) -> None:
        """Drops a request that has run out of time, unless it has come to an end already."""
        if request.state in (PARKED, QUEUED, RUNNING):
            self.abandon(request)
        if request.state is State.CANCELLED:
            self._counters.cancelled -= 1
            self._counters.expired += 1
            request.error = DeadlineExceeded(f"{self.name} did not answer by the call's deadline")

    def close(self) -> None:
        """Lets no further call in; what is in line stays."""
        self._closed = True
        self.former.close()
        self.ring()

    def fail(self, requests: Iterable[Request], failure: BaseException | None) -> None:
        """Fails requests, and every later call, because the batcher has stopped."""
        self._failure = failure
        for request in requests:
            request.error = self._stopped()
            request.state = State.FAILED
            if (batch := request.batch) is not None:
                batch.active -= 1
                request.batch = None
            self._counters.failed += 1
            self._parking.wake_all((request,))

    def _new_request(self, item: Any, options: CallOptions | None, cell: Any) -> Request:
        request = Request()
        request.item = item
        request.cell = cell
        request.arrived_at = self._now()
        request.context = copy_context()
        request.options = options
        request.error = request.batch = None
        return request

    def _enter(self, request: Request) -> Request:
        if self.former.live < self.former.room:
            request.state = QUEUED
            if self.former.arrive(request):
                self.ring()
        else:
            refusal = self._overflow(request)
            if refusal is not None:
                raise refusal
        return request

    def _overflow(self, request: Request) -> ShoalError | None:
        """Parks a request that the line has no room for, or returns the error that refuses it."""
        refusal = self._refusal(1)
        if refusal is None:
            request.state = PARKED
            self.former.park(request)
        return refusal

    def _refusal(self, requests: int) -> ShoalError | None:
        """Returns the error that refuses requests; None if they may wait for room."""
        if self._closed:
            return self._stopped()
        if self.former.options.overload == "wait":
            return None
        self._counters.rejected += requests
        return Overloaded(
            f"{self.name} is overloaded: {self.former.live} requests are waiting, "
            f"and max_queued_requests={self.former.options.max_queued_requests}"
        )

    def _stopped(self) -> BatcherClosed:
        """Makes the error of one caller that the batcher could not answer."""
        if self._failure is None:
            return BatcherClosed(f"{self.name} is closed")
        error = BatcherClosed(f"{self.name} stopped: {self._failure!r}")
        error.__cause__ = self._failure
        return error


def _nobody_listens() -> None:
    """What an arrival rings before the slots have started."""
