"""The events of a batcher for its observers: a batch began, took more requests, and ended.

Detailed metrics, traces, logs, recordings and pages are made from these events. A batcher without
observers makes none. With observers it makes them for each batch, not for each request. Requests of
open batches have events of their own, since they join and end one by one; requests that end before
a batch has them do, too.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.core.request import Batch, DispatchReason, Request

_log: Final = logging.getLogger("shoal")

Unserved = Literal["cancelled", "expired", "rejected", "shed"]
"""Why a request has ended before a batch had it: its caller left, it ran out of time, the queue was
full, or it made room for another."""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch that has ended. Times are in seconds on the event loop's clock.

    Attributes:
        batcher: The batcher's name.
        id: The batch's number, unique within its batcher.
        reason: Why it was dispatched.
        is_open: Whether requests could join it while it ran.
        size: How many requests it had; of an open batch, how many joined it in total.
        limit: How many it could have had, or its greatest cost with a ``batch_size_fn``.
        load: The cost of its requests, with padding; of an open batch, of the first requests.
        arrived_at: When the oldest of the requests it began with arrived.
        began_at: When it was given to the handler.
        ended_at: When the handler had ended.
        finished: How many of its requests ended with a result.
        failed: How many failed.
        cancelled: How many were cancelled by their callers, or ran out of time.
        error: The first error that failed one of them, or the `RetryLater` that put some back; None
            if there is none, or if only the end of the batcher failed them.
        trace: The headers with which a call continues its trace; None if it is not traced.
        declined: How many the handler declined, with an ``HTTPException`` below 500.
        retried: How many went back into the queue, after a `RetryLater` or their replica's death.
    """

    batcher: str
    id: int
    reason: DispatchReason
    is_open: bool
    size: int
    limit: float
    load: float
    arrived_at: float
    began_at: float
    ended_at: float
    finished: int
    failed: int
    cancelled: int
    error: BaseException | None
    trace: Mapping[str, str] | None = None
    declined: int = 0
    retried: int = 0

    @property
    def wait_s(self) -> float:
        """How long the oldest of the requests it began with had waited, in seconds."""
        return self.began_at - self.arrived_at

    @property
    def run_s(self) -> float:
        """How long the handler had it, in seconds."""
        return self.ended_at - self.began_at


class BatchObserver:
    """Observes the batches of a batcher; override the methods that you need.

    They are called in the batcher's event loop, between two steps of the engine: they must be
    quick, and must not wait. Use requests only during the call: a reference to one keeps its item
    and its result alive. An observer that raises is logged and not called again.
    """

    def batch_began(self, batcher: str, batch: Batch, now: float) -> None:
        """Called when a handler is about to get a batch; ``batch.requests`` are its requests."""

    def requests_joined(
        self, batcher: str, batch: Batch, requests: Sequence[Request], now: float
    ) -> None:
        """Called when requests have joined an open batch that is running."""

    def request_ended(self, batcher: str, batch: Batch, request: Request, now: float) -> None:
        """Called when a request of an open batch has ended, in any state."""

    def batch_ended(self, record: BatchRecord, requests: Sequence[Request]) -> None:
        """Called when a batch has ended.

        Args:
            record: Its times, outcomes and error.
            requests: Its requests, in order; of an open batch, those that ended with it.
        """

    def request_left(self, batcher: str, request: Request, why: Unserved, now: float) -> None:
        """Called when a request has ended before it was in a batch."""


class Observers:
    """The observers of one batcher, or of several batchers that share them."""

    def __init__(self) -> None:
        self.all: tuple[BatchObserver, ...] = ()
        # Are notified only of batches with failed requests, and of failed requests of open batches.
        # If there are no other observers, batches without failures cost nothing extra.
        self.of_failures: tuple[BatchObserver, ...] = ()
        # The numbers of batches, by the name of their batcher: several batchers may have one name.
        self.batch_ids: defaultdict[str, count[int]] = defaultdict(partial(count, 1))

    def add(self, observer: BatchObserver, *, only_failures: bool = False) -> None:
        if only_failures:
            self.of_failures = (*self.of_failures, observer)
        else:
            self.all = (*self.all, observer)

    def remove(self, observer: BatchObserver) -> None:
        self.all = tuple(each for each in self.all if each is not observer)
        self.of_failures = tuple(each for each in self.of_failures if each is not observer)

    def notify(self, call: Callable[[BatchObserver], object], *, has_failed: bool = False) -> None:
        """Calls a function with each observer; logs and removes an observer that raises."""
        for observer in (*self.all, *self.of_failures) if has_failed else self.all:
            try:
                call(observer)
            except Exception:
                self.remove(observer)
                _log.exception("an observer failed and is not called again: %r", observer)
