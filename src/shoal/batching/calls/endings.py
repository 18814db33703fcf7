"""How a request ends without an answer of the handler: left, out of time, or with the batcher."""

from __future__ import annotations

import os
from threading import get_ident
from typing import TYPE_CHECKING, Any

from shoal.batching.failures.held import shown
from shoal.batching.loops.event_loop import EventLoop
from shoal.batching.stream_buffer import StreamBuffer
from shoal.core.request import State
from shoal.errors import BatcherClosed, DeadlineExceeded, NotOpen, ShoalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.batching.loops.parking import Parking
    from shoal.core.batch import Batch
    from shoal.core.counters import Counters
    from shoal.core.forming.former import Former
    from shoal.core.request import Request

QUEUED = State.QUEUED
PARKED = State.PARKED
RUNNING = State.RUNNING


class Endings:
    """Ends the requests of one open batcher.

    Attributes:
        name: The batcher's name, for messages.
        former: The line, and the rule that cuts batches from it.
        ring: Wakes the slot that waits for requests; the slots set it.
        may_block: Whether a handler has the only slot, so that calls which it makes here may wait
            for itself; the slots set it.
        is_blocked_by: Says whether a batch's handler makes a call that waits for that handler; the
            slots set it.
        adopt: Takes in options that were changed, if no batch gathers; None where none were.
        loop: The event loop that the batcher belongs to.
        thread: Its thread.
        process: The process of that; one that was forked has no copy of it.
        home: The same in words.
        soon: See `Parking.soon`.
        find_here: Finds where a call enters of the function that this one serves, in the event loop
            that asks; None where this is the only place.
    """

    def __init__(self, name: str, former: Former, parking: Parking, counters: Counters) -> None:
        self.name = name
        self.former = former
        self.ring: Callable[[], None] = _nobody_listens
        self.may_block = False
        self.is_blocked_by: Callable[[Batch], bool] = lambda _batch: False
        self.adopt: Callable[[], None] | None = None
        self._parking = parking
        self._counters = counters
        self._closed = False
        self._failure: BaseException | None = None
        self.loop = EventLoop.here()
        self.thread = get_ident()
        self.process = os.getpid()
        self.home = self.loop.described()
        self.find_here: Callable[[], Any] | None = None
        self.soon = parking.soon

    def check_loop(self) -> None:
        """Checks that the caller is in the batcher's event loop.

        Raises:
            NotOpen: It is in another one, or in none.
            BatcherClosed: Likewise, and the batcher has been closed.
        """
        if not self.loop.is_here:
            raise self.foreigner()

    def foreigner(self) -> ShoalError:
        """Makes the error of a caller in another event loop, or in none."""
        if self._closed:
            return self._stopped()
        return not_open_here(self.name, [self.home], EventLoop.here())

    def leave_stream(self, request: Request) -> None:
        """Drops the request of a stream whose reader has left."""
        self.abandon(request)
        if request.options is not None:
            self.forget(request)
        buffer: StreamBuffer = request.cell
        buffer.watch = None
        buffer.items.clear()
        if buffer.hold is not None:
            buffer.release()
        if buffer.reader is not None:
            buffer.wake()

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
        if isinstance(request.cell, StreamBuffer):
            request.cell.release()
        self._parking.wake_all((request,))

    def forget(self, request: Request) -> None:
        """Watches the time of a request no more, because it has ended."""
        self.former.overdue.forget(request)

    def expire_overdue(self) -> None:
        """Drops all requests whose time is up."""
        overdue = self.former.overdue
        if overdue.timers.is_empty:
            return
        for request, what_it_did in overdue.pop(self._parking.now()):
            self.expire(request, what_it_did)

    def close(self) -> None:
        """Lets no further call in; what is in line stays."""
        self._closed = True
        self.former.close()
        self.ring()

    def drop_line(self) -> None:
        """Fails what is in line, because the batcher is about to stop; calls are still taken."""
        for request in self.former.in_line():
            if self.former.leave(request, State.FAILED):
                self.ring()
            self.fail_one(request, BatcherClosed(f"{self.name} is closing, and drops its line"))

    def fail(self, requests: Iterable[Request], failure: BaseException | None) -> None:
        """Fails requests, and every later call, because the batcher has stopped."""
        self._failure = failure
        self.stop(requests)

    def stop(self, requests: Iterable[Request]) -> None:
        """Fails requests whose task was stopped."""
        for request in requests:
            request.state = State.FAILED
            if (batch := request.batch) is not None:
                batch.active -= 1
                request.batch = None
            self.fail_one(request, self._stopped())

    def fail_one(self, request: Request, error: Exception) -> None:
        """Tells the caller of a request that has left the line that it has failed."""
        request.error = error
        self._counters.failed += 1
        self._parking.wake_all((request,))

    def _stopped(self) -> BatcherClosed:
        """Makes the error of one caller that the batcher could not answer."""
        if self._failure is None:
            return BatcherClosed(f"{self.name} is closed")
        error = BatcherClosed(f"{self.name} stopped: {shown(self._failure)}")
        error.__cause__ = self._failure
        return error


def not_open_here(name: str, homes: Sequence[str], here: EventLoop) -> NotOpen:
    """Makes the error of a caller in another event loop than those where something is open."""
    way_out = (
        "plain code calls it by:\n    with shoal.blocking(...) as call:\n        call(item)"
        if here.is_none
        else "an event loop of its own opens it for itself:\n"
        "    async with shoal.open_batchers(...):\n        ..."
    )
    return NotOpen(
        f"{name} is not open in this event loop: it is open in {' and '.join(homes)}, and was "
        f"called from {here.described()}; {way_out}"
    )


def _nobody_listens() -> None:
    """What an arrival rings before the slots have started."""
