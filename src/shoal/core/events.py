"""What a batcher tells its observers: that a batch began, took more requests, and ended.

Metrics with more detail than counters, traces, logs, recordings and pages are made of these events.
A batcher that nobody observes makes none of them, and one that is observed makes them for each
batch, not for each request; requests of open batches alone are told of one by one, since they join
and end one by one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.core.batch import Batch, DispatchReason
    from shoal.core.request import Request

_log: Final = logging.getLogger("shoal")


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch that has ended. Times are in seconds on the event loop's clock.

    Attributes:
        batcher: The batcher's name.
        id: The batch's number, unique within its batcher.
        reason: Why it was dispatched.
        is_open: Whether requests could join it while it ran.
        size: How many requests it had; of an open batch, how many joined it in all.
        limit: How many it could have had, or its greatest cost with a ``batch_size_fn``.
        load: The cost of its requests, with padding; of an open batch, of those it began with.
        arrived_at: When the oldest of the requests it began with arrived.
        began_at: When it was given to the handler.
        ended_at: When the handler had ended.
        finished: How many of its requests ended with a result.
        failed: How many ended with an error.
        cancelled: How many were cancelled by their callers, or ran out of time.
        error: The first error that one of them ended with; None if none did, or if only the end of
            the batcher failed them.
        trace: The headers by which a call continues its trace; None where it is not traced.
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

    @property
    def wait_s(self) -> float:
        """How long the oldest of the requests it began with had waited, in seconds."""
        return self.began_at - self.arrived_at

    @property
    def run_s(self) -> float:
        """How long the handler had it, in seconds."""
        return self.ended_at - self.began_at


@dataclass(slots=True)
class Outcomes:
    """How requests of one batch have ended, so far.

    Attributes:
        finished: How many ended with a result.
        failed: How many ended with an error.
    """

    finished: int = 0
    failed: int = 0

    def count(self, request: Request) -> None:
        """Counts a request, which has ended."""
        if request.state is State.FINISHED:
            self.finished += 1
        elif request.state is State.FAILED:
            self.failed += 1


class BatchObserver:
    """Is told what becomes of the batches of a batcher; override the methods that you need.

    They are called in the batcher's event loop, between two steps of the engine: they must be
    quick, and must not wait. Requests are theirs for the call alone: who keeps one keeps its item
    and its result. One that raises is logged and not called again.
    """

    def batch_began(self, batcher: str, batch: Batch, now: float) -> None:
        """Tells that a handler is about to get a batch; ``batch.requests`` are its requests."""

    def requests_joined(
        self, batcher: str, batch: Batch, requests: Sequence[Request], now: float
    ) -> None:
        """Tells that requests have joined an open batch that is running."""

    def request_ended(self, batcher: str, batch: Batch, request: Request, now: float) -> None:
        """Tells that a request of an open batch has ended, in whatever state."""

    def batch_ended(self, record: BatchRecord, requests: Sequence[Request]) -> None:
        """Tells that a batch has ended.

        Args:
            record: What is known about it.
            requests: Its requests, in order; of an open batch, those that ended with it.
        """


class Observers:
    """The observers of one batcher, or of many that share it.

    Attributes:
        all: The observers.
        of_failed: Those that are told of the ends of failed batches, and of nothing else. Where
            there are no others, a batch that does not fail costs nothing.
    """

    __slots__ = ("all", "of_failed")

    def __init__(self) -> None:
        self.all: tuple[BatchObserver, ...] = ()
        self.of_failed: tuple[BatchObserver, ...] = ()

    def add(self, observer: BatchObserver) -> None:
        """Adds an observer, which is told of what happens from now on."""
        self.all = (*self.all, observer)

    def add_of_failed(self, observer: BatchObserver) -> None:
        """Adds an observer that is told of the ends of failed batches alone."""
        self.of_failed = (*self.of_failed, observer)

    def remove(self, observer: BatchObserver) -> None:
        """Removes an observer; nothing happens if it is not there."""
        self.all = tuple(each for each in self.all if each is not observer)
        self.of_failed = tuple(each for each in self.of_failed if each is not observer)

    def tell(self, call: Callable[[BatchObserver], object]) -> None:
        """Calls a function with each observer; one that raises is logged, and removed."""
        self._tell(self.all, call)

    def tell_ended(self, record: BatchRecord, requests: Sequence[Request]) -> None:
        """Tells that a batch has ended, as `BatchObserver.batch_ended` is told."""
        observers = self.all if record.error is None else (*self.all, *self.of_failed)
        self._tell(observers, lambda each: each.batch_ended(record, requests))

    def _tell(
        self, observers: Sequence[BatchObserver], call: Callable[[BatchObserver], object]
    ) -> None:
        for observer in observers:
            try:
                call(observer)
            except Exception:
                self.remove(observer)
                _log.exception("an observer failed and is not called again: %r", observer)
