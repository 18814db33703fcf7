"""How a request ends without an answer of the handler: left, out of time, or with the batcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.batching.buffer import StreamBuffer
from shoal.core.request import State
from shoal.errors import BatcherClosed, DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.batching.parking import Parking
    from shoal.core.counters import Counters
    from shoal.core.forming import Former
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
    """

    def __init__(self, name: str, former: Former, parking: Parking, counters: Counters) -> None:
        self.name = name
        self.former = former
        self.ring: Callable[[], None] = _nobody_listens
        self._parking = parking
        self._counters = counters
        self._closed = False
        self._failure: BaseException | None = None

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

    def fail(self, requests: Iterable[Request], failure: BaseException | None) -> None:
        """Fails requests, and every later call, because the batcher has stopped."""
        self._failure = failure
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
        error = BatcherClosed(f"{self.name} stopped: {self._failure!r}")
        error.__cause__ = self._failure
        return error


def _nobody_listens() -> None:
    """What an arrival rings before the slots have started."""
