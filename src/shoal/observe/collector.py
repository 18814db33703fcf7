"""Metrics for Prometheus, computed from the engine's own counters at scrape time.

The engine counts per batch, in plain integers. Converting these counters when they are scraped adds
no work to the hot path. Updating prometheus_client's objects in place would take a lock and a
look-up for every update. Only HTTP responses are counted one by one, in a dict.

Every label value is chosen by the operator or fixed: names of backends and endpoints, fixed words,
classes of statuses. None comes from a caller, so the number of time series is bounded.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, get_args

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from shoal.serving.status import ReplicaState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from shoal.core.counters import BatcherStatistics, Histogram, HistogramSnapshot
    from shoal.observe.metrics import AnswerCounts, ItemTimes, StreamTimes
    from shoal.serving.status import (
        BackendStatus,
        EndpointStatus,
        ReplicaStatus,
        ShadowStatus,
        Status,
    )

    Named = Iterable[tuple[str, BatcherStatistics]]

T = TypeVar("T")

COUNTER: Final = CounterMetricFamily
GAUGE: Final = GaugeMetricFamily
Kind: TypeAlias = type[CounterMetricFamily] | type[GaugeMetricFamily]


class ShoalCollector(Collector):
    """Converts statistics into metrics; register it in a `prometheus_client.CollectorRegistry`.

    Args:
        batchers: Returns each batcher's name and statistics; called on each scrape. The name is the
            tag of its backend, with the method appended if that is not ``__call__``.
        answers: The counted responses.
        streams: The times of streams.
        status: Returns the status of the controller; None if there is no controller.
    """

    def __init__(
        self,
        batchers: Callable[[], Named],
        answers: AnswerCounts,
        streams: StreamTimes,
        status: Callable[[], Status | None] = lambda: None,
    ) -> None:
        self._batchers = batchers
        self._answers = answers
        self._streams = streams
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yields the current metrics."""
        batchers = [((name,), statistics) for name, statistics in self._batchers()]
        yield from _metrics(("backend",), batchers, _OF_BATCHERS)
        yield _family(
            COUNTER,
            "requests",
            "Requests by outcome.",
            ("backend", "outcome"),
            (
                ((*where, outcome), getattr(statistics, outcome))
                for where, statistics in batchers
                for outcome in _OUTCOMES
            ),
        )
        yield _family(
            COUNTER,
            "batches",
            "Batches by dispatch reason.",
            ("backend", "reason"),
            (
                ((*where, reason.value), count)
                for where, statistics in batchers
                for reason, count in statistics.batches.items()
            ),
        )
        for name, help_, snapshot in _HISTOGRAMS:
            found = [(where, snapshot(one)) for where, one in batchers]
            yield _histogram(name, help_, "backend", found)
        streams = [((name,), times) for name, times in self._streams]
        for name, help_, of_stream in _STREAM_HISTOGRAMS:
            found = [(where, of_stream(times).snapshot()) for where, times in streams]
            yield _histogram(name, help_, "endpoint", found)
        yield _family(
            COUNTER,
            "http_responses",
            "Responses by class of status.",
            ("endpoint", "status"),
            (((endpoint, status), count) for endpoint, status, count in self._answers),
        )
        if (status := self._status()) is not None:
            yield from _of_controller(status)


def _of_controller(status: Status) -> Iterator[Metric]:
    """Yields the metrics of a controller: those of Ray Serve 1.x's router, and of replicas."""
    endpoints = status.endpoints.items()
    backends = status.backends.items()
    replicas = [((tag, one.tag), one) for tag, backend in backends for one in backend.replicas]
    shadows = [((name, one.backend), one) for name, by in endpoints for one in by.shadows]
    yield from _metrics(("endpoint",), [((name,), one) for name, one in endpoints], _OF_ENDPOINTS)
    yield from _metrics(("backend",), [((tag,), one) for tag, one in backends], _OF_BACKENDS)
    yield _family(
        GAUGE,
        "replicas",
        "Replicas by their state.",
        ("backend", "state"),
        (
            ((tag, state), sum(replica.state == state for replica in backend.replicas))
            for tag, backend in backends
            for state in get_args(ReplicaState)
        ),
    )
    yield from _metrics(("backend", "replica"), replicas, _OF_REPLICAS)
    yield from _metrics(("endpoint", "backend"), shadows, _OF_SHADOWS)


def _metrics(
    labels: Sequence[str],
    found: Sequence[tuple[Sequence[str], T]],
    rows: Sequence[tuple[Kind, str, str, Callable[[T], float | None]]],
) -> Iterator[Metric]:
    """Yields a metric for each row of a table, with a sample for each of the labelled objects."""
    for kind, name, help_, value in rows:
        yield _family(kind, name, help_, labels, ((where, value(one)) for where, one in found))


def _family(
    kind: Kind,
    name: str,
    help_: str,
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], float | None]],
) -> Metric:
    family = kind(f"shoal_{name}", help_, labels=labels)
    for where, value in samples:
        if value is not None:
            family.add_metric(where, value)
    return family


def _histogram(
    name: str, help_: str, label: str, found: Iterable[tuple[Sequence[str], HistogramSnapshot]]
) -> Metric:
    family = HistogramMetricFamily(f"shoal_{name}", help_, labels=[label])
    for where, histogram in found:
        bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        family.add_metric(where, buckets, histogram.sum)
    return family


_OUTCOMES: Final = ("finished", "failed", "cancelled", "expired", "rejected", "shed")

_OF_BATCHERS: Final[Sequence[tuple[Kind, str, str, Callable[[BatcherStatistics], float]]]] = (
    (GAUGE, "queued_requests", "Requests in the queue.", lambda s: s.queued),
    (
        GAUGE,
        "parked_requests",
        "Requests that wait to be admitted to the queue.",
        lambda s: s.parked,
    ),
    (GAUGE, "running_requests", "Requests in the handler.", lambda s: s.running),
    (GAUGE, "running_batches", "Batches in the handler.", lambda s: s.batches_running),
    (
        COUNTER,
        "shared_requests",
        "Requests that shared the work of an equal one.",
        lambda s: s.shared,
    ),
    (COUNTER, "cache_hits", "Requests that were answered from the cache.", lambda s: s.cache_hits),
    (
        GAUGE,
        "batcher_up",
        "Whether the batcher accepts calls: 1, or 0 if it failed or was closed.",
        lambda s: s.state in ("open", "draining"),
    ),
)

_HISTOGRAMS: Final[Sequence[tuple[str, str, Callable[[BatcherStatistics], HistogramSnapshot]]]] = (
    ("batch_size", "Requests in a batch.", lambda s: s.batch_size),
    (
        "batch_wait_seconds",
        "How long the oldest request of a batch waited in the queue.",
        lambda s: s.wait_s,
    ),
    ("batch_run_seconds", "Run time of the handler for a batch.", lambda s: s.run_s),
)

_STREAM_HISTOGRAMS: Final[Sequence[tuple[str, str, Callable[[ItemTimes], Histogram]]]] = (
    (
        "stream_first_item_seconds",
        "From a request for a stream to its first item.",
        lambda t: t.first,
    ),
    ("stream_item_gap_seconds", "From an item of a stream to the next one.", lambda t: t.between),
)

_OF_ENDPOINTS: Final[Sequence[tuple[Kind, str, str, Callable[[EndpointStatus], float]]]] = (
    (COUNTER, "endpoint_requests", "Requests to an endpoint.", lambda e: e.requests),
    (COUNTER, "endpoint_errors", "Failed requests to an endpoint.", lambda e: e.errors),
    (GAUGE, "endpoint_held_requests", "Requests held until traffic is set.", lambda e: e.held),
)

_OF_BACKENDS: Final[Sequence[tuple[Kind, str, str, Callable[[BackendStatus], float]]]] = (
    (COUNTER, "backend_requests", "Requests that have ended.", lambda b: b.requests),
    (COUNTER, "backend_errors", "Failed requests.", lambda b: b.errors),
    (
        GAUGE,
        "backend_queued_requests",
        "Requests in the queues of all methods.",
        lambda b: b.queued,
    ),
    (GAUGE, "backend_wanted_replicas", "Target number of replicas.", lambda b: b.wanted),
    (COUNTER, "replica_starts", "Started replicas.", lambda b: b.starts),
    (COUNTER, "replica_deaths", "Replicas that died or were killed.", lambda b: b.deaths),
    (COUNTER, "replica_restarts", "Replicas started to replace a dead one.", lambda b: b.restarts),
)

_OF_REPLICAS: Final[Sequence[tuple[Kind, str, str, Callable[[ReplicaStatus], float | None]]]] = (
    (GAUGE, "replica_ongoing_requests", "Requests a replica runs.", lambda r: r.ongoing),
    (GAUGE, "replica_memory_bytes", "Resident memory of a replica.", lambda r: r.memory_bytes),
)

_OF_SHADOWS: Final[Sequence[tuple[Kind, str, str, Callable[[ShadowStatus], float]]]] = (
    (COUNTER, "shadow_requests", "Copied requests.", lambda s: s.sent),
    (COUNTER, "shadow_dropped", "Requests not copied: too many copies ran.", lambda s: s.dropped),
    (COUNTER, "shadow_errors", "Failed copies.", lambda s: s.failed),
    (COUNTER, "shadow_agreements", "Answers that compare found equal.", lambda s: s.agreed),
    (
        COUNTER,
        "shadow_disagreements",
        "Answers that compare found different.",
        lambda s: s.disagreed,
    ),
    (COUNTER, "shadow_latency_seconds", "Total time of copies.", lambda s: s.latency_s),
)
