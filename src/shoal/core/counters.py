"""The statistics of a batcher: requests by outcome, batches by dispatch reason, and times.

Counters are updated once per batch, not once per request, and are read only on demand. So a call
costs the same whether its metrics are scraped or not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from shoal.core.batch import DispatchReason
from shoal.core.events import Observers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal.core.batch import Batch
    from shoal.core.latency_model import LatencyModelSnapshot
    from shoal.core.options.options import BatchOptions

SIZE_BOUNDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""Upper bounds of the batch size histogram, in requests."""

TIME_BOUNDS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
)  # fmt: skip
"""Upper bounds of the wait and run time histograms, in seconds."""

NO_LEVELS: Final[Mapping[int, int]] = MappingProxyType({})
"""The counts by priority level of a batcher that has only one."""

BatcherState = Literal["new", "open", "draining", "closed", "broken"]


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """A histogram at one moment.

    Attributes:
        bounds: The inclusive upper bound of each bucket but the last, which has none.
        counts: The number of observations in each bucket; there is one bucket more than bounds.
        total: The number of observations.
        sum: Their sum.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: int
    sum: float


class Histogram:
    """A histogram with fixed bounds."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Adds one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe_all(self, values: Iterable[float]) -> None:
        """Adds many observations, which costs little more than to add one."""
        values = tuple(values)
        for bucket, count in Counter(map(partial(bisect_left, self._bounds), values)).items():
            self._counts[bucket] += count
        self._sum += sum(values)

    def snapshot(self) -> HistogramSnapshot:
        """Returns a copy of the current counts."""
        return HistogramSnapshot(self._bounds, tuple(self._counts), sum(self._counts), self._sum)


@dataclass(frozen=True, slots=True)
class ClosingCounts:
    """The outcomes of the requests that were in a batcher when it began to close.

    Attributes:
        finished: How many got their result.
        failed: How many got an error.
        cancelled: How many were cancelled by their callers, or ran out of time.
    """

    finished: int
    failed: int
    cancelled: int


@dataclass(frozen=True, slots=True)
class BatcherStatistics:
    """The statistics of a batcher at one moment.

    Attributes:
        name: The batcher's name.
        state: ``"new"``, ``"open"``, ``"draining"``, ``"closed"`` or ``"broken"``.
        queued: Requests in the queue.
        parked: Requests that wait to be admitted to the queue.
        running: Requests in the handler.
        batches_running: Batches in the handler.
        finished: Requests that ended with a result.
        failed: Requests that ended with an error of the handler or of the batcher.
        cancelled: Requests whose callers left.
        expired: Requests that ran out of time.
        rejected: Calls that were refused because the queue was full.
        shed: Requests that were failed to make room for others.
        shared: Calls that shared the request of an equal call; they are counted above as well.
        cache_hits: Calls that were answered from the cache; likewise.
        batches: Batches by dispatch reason.
        batch_size: Requests per batch; for an open batch, all that joined it.
        wait_s: How long the oldest request of each batch waited in the queue, in seconds.
        run_s: How long the handler took for each batch, in seconds.
        max_batch_size: The option in force.
        batch_wait_timeout_s: The option in force, in seconds.
        latency_model: The measured run times of the handler.
        batch_size_limit: The current limit on the size of a batch; below `max_batch_size` where the
            size is chosen against a latency target.
        scheduling_capacity: How much more could start at once: the capacity of idle worker slots
            and open batches, less what is queued. In requests, or in cost with a `batch_size_fn`. 0
            while the batcher is closing or not open; infinity if batches are not limited in number.
        queued_by_level: Queued and parked requests by priority level. Empty if there is only one
            level, and while more than 10,000 requests wait, which would take long to count.
    """

    name: str
    state: BatcherState
    queued: int
    parked: int
    running: int
    batches_running: int
    finished: int
    failed: int
    cancelled: int
    expired: int
    rejected: int
    shed: int
    shared: int
    cache_hits: int
    batches: Mapping[DispatchReason, int]
    batch_size: HistogramSnapshot
    wait_s: HistogramSnapshot
    run_s: HistogramSnapshot
    max_batch_size: int
    batch_wait_timeout_s: float | None
    latency_model: LatencyModelSnapshot | None
    batch_size_limit: float
    scheduling_capacity: float
    queued_by_level: Mapping[int, int] = field(default_factory=lambda: NO_LEVELS)


class Counters:
    """The running totals of one batcher, and its observers."""

    __slots__ = (
        "batch_size",
        "batches",
        "cache_hits",
        "cancelled",
        "expired",
        "failed",
        "finished",
        "observers",
        "rejected",
        "run_s",
        "shared",
        "shed",
        "wait_s",
    )

    def __init__(self, observers: Observers | None = None) -> None:
        self.observers = Observers() if observers is None else observers
        self.finished = 0
        self.failed = 0
        self.cancelled = 0
        self.expired = 0
        self.rejected = 0
        self.shed = 0
        self.shared = 0
        self.cache_hits = 0
        self.batches = dict.fromkeys(DispatchReason, 0)
        self.batch_size = Histogram(SIZE_BOUNDS)
        self.wait_s = Histogram(TIME_BOUNDS_S)
        self.run_s = Histogram(TIME_BOUNDS_S)

    def statistics(
        self,
        name: str,
        state: BatcherState,
        options: BatchOptions,
        queued: int,
        parked: int,
        batches: Sequence[Batch],
        latency_model: LatencyModelSnapshot | None = None,
        batch_size_limit: float | None = None,
        scheduling_capacity: float = 0,
        queued_by_level: Mapping[int, int] = NO_LEVELS,
    ) -> BatcherStatistics:
        """Returns the totals together with the current state of the batcher.

        Args:
            name: The batcher's name.
            state: The batcher's state.
            options: The options in force.
            queued: The number of requests in the queue.
            parked: The number of requests that wait to be admitted.
            batches: The batches in the handler.
            latency_model: The measured run times; None before the batcher was first opened.
            batch_size_limit: The current limit on a batch's size; None for `max_batch_size`.
            scheduling_capacity: How much more could start at once.
            queued_by_level: The requests that wait, by priority level.
        """
        return BatcherStatistics(
            name=name,
            state=state,
            queued=queued,
            parked=parked,
            running=sum(batch.active for batch in batches),
            batches_running=len(batches),
            finished=self.finished,
            failed=self.failed,
            cancelled=self.cancelled,
            expired=self.expired,
            rejected=self.rejected,
            shed=self.shed,
            shared=self.shared,
            cache_hits=self.cache_hits,
            batches=MappingProxyType(dict(self.batches)),
            batch_size=self.batch_size.snapshot(),
            wait_s=self.wait_s.snapshot(),
            run_s=self.run_s.snapshot(),
            max_batch_size=options.max_batch_size,
            batch_wait_timeout_s=options.batch_wait_timeout_s,
            latency_model=latency_model,
            batch_size_limit=(
                options.max_batch_size if batch_size_limit is None else batch_size_limit
            ),
            scheduling_capacity=scheduling_capacity,
            queued_by_level=queued_by_level,
        )
