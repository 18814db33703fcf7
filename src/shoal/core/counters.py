"""The statistics of a batcher: requests by outcome, batches by dispatch reason, and times.

Counters are updated once per batch, not once per request, and are read only on demand. So a call
costs the same whether its metrics are scraped or not.

An open batch has no one size: requests join and leave, and a continuous one lasts as long as its
batcher. So `Occupancy` integrates its requests over time, and counts them at each step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from shoal.core.events import Observers
from shoal.core.histogram import SIZE_BOUNDS, TIME_BOUNDS_S, Histogram
from shoal.core.queue import cost_of
from shoal.core.request import DispatchReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal.core.histogram import HistogramSnapshot
    from shoal.core.latency_model import LatencyModelSnapshot
    from shoal.core.options.options import BatchOptions
    from shoal.core.request import Batch, Request


REQUEST_OUTCOMES: Final = (
    *("finished", "failed", "declined", "cancelled", "expired", "rejected", "shed"),
)
"""How a request may have ended, as the statistics count it."""


@dataclass(frozen=True, slots=True)
class OccupancyStatistics:
    # Requests that have joined a batch, including those that it began with.
    joined: int
    # Requests that have left a batch, with any outcome.
    left: int
    # The sum of the times that requests were in a batch, in seconds. Divided by the elapsed time,
    # it is the mean number of requests.
    request_s: float
    # How long there was at least one request, in seconds.
    busy_s: float
    # Requests in a continuous batch, at each step of its handler that had any.
    steps: HistogramSnapshot
    # Continuous batches with a handler that waits for requests now.
    idle_batches: int


class Occupancy:
    """Counts the requests of a batcher's open or continuous batches."""

    # `note` looks at the batches themselves, so a missed event delays a sum and never falsifies it.

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = batches
        self._active = 0
        self._at = 0.0
        self._request_s = 0.0
        self._busy_s = 0.0
        self.joined = 0
        self.steps = Histogram(SIZE_BOUNDS)

    def note(self, now: float) -> None:
        active = self._active
        if active:
            took_s = now - self._at
            self._request_s += active * took_s
            self._busy_s += took_s
        self._at = now
        self._active = sum([batch.active for batch in self._batches])

    def statistics(self, now: float) -> OccupancyStatistics:
        self.note(now)
        return OccupancyStatistics(
            joined=self.joined,
            left=self.joined - self._active,
            request_s=self._request_s,
            busy_s=self._busy_s,
            steps=self.steps.snapshot(),
            idle_batches=sum([not batch.active for batch in self._batches]),
        )


NO_LEVELS: Final[Mapping[int, int]] = MappingProxyType({})
"""The counts by priority level of a batcher that has only one."""

BatcherState = Literal["new", "open", "draining", "closed", "broken"]


@dataclass(frozen=True, slots=True)
class ClosingCounts:
    """The outcomes of the requests that were in a batcher when it began to close.

    Attributes:
        finished: How many got their result.
        failed: How many failed.
        cancelled: How many were cancelled by their callers, or ran out of time.
        declined: How many the handler declined, with an ``HTTPException`` below 500.
    """

    finished: int
    failed: int
    cancelled: int
    declined: int = 0


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
        declined: Requests that the handler declined, with an ``HTTPException`` below 500.
        cancelled: Requests with callers that left.
        expired: Requests that ran out of time.
        rejected: Calls that were refused because the queue was full.
        shed: Requests that were failed to make room for others.
        shared: Calls that shared the request of an equal call; also counted above.
        cache_hits: Calls that were answered from the cache; also counted above.
        batches: Batches by dispatch reason.
        batch_size: Requests per batch; for an open batch, all that joined it. Continuous batches
            are not counted: see `occupancy`.
        wait_s: How long each request waited in the queue until a handler got it, in seconds.
        run_s: How long the handler took for each batch, in seconds; without
            continuous batches.
        padding: How much was added to batches by padding, in requests, or in cost with a
            `batch_size_fn`.
        load: The sum of the costs of all batches, with padding; None without a `batch_size_fn`.
        split_calls: Calls that were split into several requests.
        split_requests: The requests that these calls were split into.
        isolating_runs: Runs of the handler with a part of a batch that had failed.
        retried: How often a request went back into the queue, after a `RetryLater` or the death of
            its replica.
        occupancy: The occupancy of open and continuous batches; None for other handlers.
        max_batch_size: The option in force.
        batch_wait_timeout_s: The option in force, in seconds.
        latency_model: The measured run times of the handler.
        batch_size_limit: The current limit on the size of a batch; below `max_batch_size` if the
            size is chosen for a latency target.
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
    declined: int
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
    padding: float
    load: float | None
    split_calls: int
    split_requests: int
    isolating_runs: int
    retried: int
    occupancy: OccupancyStatistics | None
    max_batch_size: int
    batch_wait_timeout_s: float | None
    latency_model: LatencyModelSnapshot | None
    batch_size_limit: float
    scheduling_capacity: float
    queued_by_level: Mapping[int, int] = field(default_factory=lambda: NO_LEVELS)


_COUNTS: Final = (
    *REQUEST_OUTCOMES,
    *("shared", "cache_hits", "padding", "split_calls", "split_requests"),
    *("isolating_runs", "retried"),
)


class Counters:
    def __init__(self, observers: Observers | None = None) -> None:
        self.observers = Observers() if observers is None else observers
        self.finished = self.failed = self.declined = self.cancelled = self.expired = 0
        self.rejected = self.shed = self.shared = self.cache_hits = 0
        self.split_calls = self.split_requests = self.isolating_runs = 0
        self.retried = 0
        self.padding: float = 0
        self.load: float = 0
        self.batches = dict.fromkeys(DispatchReason, 0)
        self.batch_size = Histogram(SIZE_BOUNDS)
        self.wait_s = Histogram(TIME_BOUNDS_S)
        self.run_s = Histogram(TIME_BOUNDS_S)
        self.occupancy: Occupancy | None = None

    def note_load(self, requests: Sequence[Request], load: float) -> None:
        self.load += load
        self.padding += load - cost_of(requests)

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
        now: float = 0,
        queued_by_level: Mapping[int, int] = NO_LEVELS,
    ) -> BatcherStatistics:
        return BatcherStatistics(
            name=name,
            state=state,
            queued=queued,
            parked=parked,
            running=sum(batch.active for batch in batches),
            batches_running=len(batches),
            **{count: getattr(self, count) for count in _COUNTS},
            batches=MappingProxyType(dict(self.batches)),
            batch_size=self.batch_size.snapshot(),
            wait_s=self.wait_s.snapshot(),
            run_s=self.run_s.snapshot(),
            load=None if options.batch_size_fn is None else self.load,
            occupancy=None if self.occupancy is None else self.occupancy.statistics(now),
            max_batch_size=options.max_batch_size,
            batch_wait_timeout_s=options.batch_wait_timeout_s,
            latency_model=latency_model,
            batch_size_limit=(
                options.max_batch_size if batch_size_limit is None else batch_size_limit
            ),
            scheduling_capacity=scheduling_capacity,
            queued_by_level=queued_by_level,
        )
