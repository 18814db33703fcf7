"""The errors for calls that a batcher does not answer."""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING

from shoal.batching.current import running_batch
from shoal.errors import BatcherClosed, DeadlineExceeded, Overloaded, ShoalError, WouldDeadlock
from shoal.failures.held import shown
from shoal.loops.home import Home, not_open_here

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.core.batch import Batch
    from shoal.core.counters import Counters
    from shoal.core.events import Unserved
    from shoal.core.request import Request


class Refusals:
    """Makes the errors for one batcher's calls, and counts those that are never queued."""

    def __init__(
        self, name: str, counters: Counters, is_blocked_by: Callable[[Batch], bool]
    ) -> None:
        self.home = Home()
        self.closed = False
        # The error that broke the batcher.
        self.failure: BaseException | None = None
        self._name = name
        self._counters = counters
        self._is_blocked_by = is_blocked_by

    def elsewhere(self) -> ShoalError:
        """Returns the error for a caller in another event loop, or in none."""
        return self.stopped() if self.closed else not_open_here(self._name, [self.home])

    def stopped(self) -> BatcherClosed:
        """Returns the error for one caller that the batcher could not answer."""
        if self.failure is None:
            return BatcherClosed(f"{self._name} is closed")
        error = BatcherClosed(f"{self._name} stopped: {shown(self.failure)}")
        error.__cause__ = self.failure
        return error

    def not_admitted(self, why: str, requests: Sequence[Request]) -> ShoalError:
        if self.closed:
            return self.stopped()
        self._counters.rejected += len(requests)
        self.tell_left(requests, "rejected")
        return Overloaded(f"{self._name} is overloaded: {why}")

    def shed(self, request: Request, now: float) -> Overloaded:
        """Returns the error for a request that was shed from the queue for another."""
        self._counters.shed += 1
        self.tell_left((request,), "shed", now)
        return Overloaded(f"{self._name} is overloaded, and has shed this request for another one")

    def late(self, requests: Sequence[Request]) -> DeadlineExceeded:
        """Returns the error for requests with a deadline that passed before they are queued."""
        self._counters.expired += len(requests)
        self.tell_left(requests, "expired")
        return DeadlineExceeded(f"a call to {self._name} was made after its deadline")

    def tell_left(
        self, requests: Sequence[Request], why: Unserved, now: float | None = None
    ) -> None:
        """Notifies the observers of requests that end before they are in a batch."""
        # `now` is None for the time of their arrival.
        if not (observers := self._counters.observers).all:
            return
        for request in requests:
            at = request.arrived_at if now is None else now
            tell = methodcaller("request_left", self._name, request, why, at)
            observers.tell(tell)

    def refuse_blocked(self) -> None:
        """Raises `WouldDeadlock` for a call that would wait for the handler that makes it."""
        batch = running_batch.get(None)
        if batch is None or not self._is_blocked_by(batch):
            return
        raise WouldDeadlock(
            f"the handler of {self._name} calls its own batcher, and waits for a slot while its "
            "batch has the only one: it would wait for ever; allow more slots, "
            "max_concurrent_batches=2, or call the plain function that does the work"
        )
