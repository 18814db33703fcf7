"""Metrics for Prometheus, computed from the engine's own counters at scrape time.

The engine counts per batch, in plain integers. Converting these counters when they are scraped adds
no work to the hot path. Updating prometheus_client's objects in place would take a lock and a
look-up for every update. Only the times of requests are stored, and counted in bulk.

Every label value is chosen by the operator or fixed: names of backends, methods and endpoints, and
fixed words. None is sent by a caller, so the number of time series is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, get_args

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from shoal.core.counters import REQUEST_OUTCOMES, BatcherStatistics, OccupancyStatistics
from shoal.core.histogram import HistogramSnapshot
from shoal.status import (
    BackendStatus,
    EndpointStatus,
    GpuStatus,
    ModelServerStatus,
    ReplicaState,
    ReplicaStatus,
    ShadowStatus,
    Status,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shoal.asgi.extensions import ConnectionTotals, CountedConnections
    from shoal.core.histogram import ItemTimes, RequestTimes


T = TypeVar("T")

COUNTER: Final = CounterMetricFamily
GAUGE: Final = GaugeMetricFamily
HISTOGRAM: Final = HistogramMetricFamily
Kind: TypeAlias = type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily]
Value: TypeAlias = "float | Mapping[str, float] | HistogramSnapshot | None"
# The kind of a metric, its name without the prefix, its description, and a function that reads its
# value from an object. A mapping is a value for each of several words; the words' label is last.
Rows: TypeAlias = "Sequence[tuple[Kind, str, str, Callable[[T], Value], *tuple[str, ...]]]"


@dataclass(eq=False)
class ShoalCollector(Collector):
    """Converts statistics into metrics, for a `prometheus_client.CollectorRegistry`."""

    # Where the figures come from; each function is called on each scrape. First backend, method and
    # statistics of each batcher.
    batchers: Callable[[], Iterable[tuple[str, str, BatcherStatistics]]]
    times: Callable[[], Iterable[RequestTimes]]  # counted in several places
    streams: Mapping[str, ItemTimes]
    status: Callable[[], Status | None] = lambda: None  # None without a controller
    starts: Callable[[], Mapping[str, Any]] = dict  # by backend, its `ReplicaFailures`
    # Set before a scrape; listeners are empty with another server.
    listeners: Mapping[str, CountedConnections] = field(default_factory=dict[str, Any])
    gpus: Mapping[str, GpuStatus] = field(default_factory=dict[str, Any])  # by name

    def collect(self) -> Iterator[Metric]:
        times = [((*where,), snapshot) for one in self.times() for *where, snapshot in one]
        yield from _metrics(("endpoint", "protocol", "outcome"), times, _OF_REQUESTS)
        batchers = [((tag, method), one) for tag, method, one in self.batchers()]
        joined = [(where, s.occupancy) for where, s in batchers if s.occupancy is not None]
        yield from _metrics(("backend", "method"), batchers, _OF_BATCHERS)
        yield from _metrics(("backend", "method"), joined, _OF_JOINED)
        streams = [((name,), times) for name, times in self.streams.items()]
        yield from _metrics(("endpoint",), streams, _OF_STREAMS)
        if (status := self.status()) is not None:
            yield from _of_controller(status, self.starts())
        listeners = [((word,), counts.totals()) for word, counts in self.listeners.items()]
        yield from _metrics(("listener",), listeners, _OF_LISTENERS)
        gpus = [((name,), one) for name, one in self.gpus.items()]
        shares = [
            ((replica.rpartition("#")[0], replica, name), part)
            for name, one in self.gpus.items()
            for replica, part in one.replicas.items()
        ]
        pids = {n: pid for one in self.listeners.values() for n, pid in one.pids().items()}
        workers = [((str(number),), _of_process(pid)) for number, pid in sorted(pids.items())]
        for optional in (
            _metrics(("gpu",), gpus, _OF_GPUS),
            _metrics(("backend", "replica", "gpu"), shares, _OF_SHARES),
            _metrics(("worker",), workers, _OF_WORKERS),
        ):
            yield from (family for family in optional if family.samples)


def _of_controller(status: Status, starts: Mapping[str, Any]) -> Iterator[Metric]:
    endpoints = [((name,), one) for name, one in status.endpoints.items()]
    backends = [((tag,), one) for tag, one in status.backends.items()]
    started = [((tag,), one) for tag, one in starts.items()]
    replicas = [((*tag, one.tag), one) for tag, backend in backends for one in backend.replicas]
    shadows = [((*name, one.backend), one) for name, by in endpoints for one in by.shadows]
    yield from _metrics(("endpoint",), endpoints, _OF_ENDPOINTS)
    yield from _metrics(("backend",), backends, _OF_BACKENDS)
    yield from _metrics(("backend",), started, _OF_STARTS)
    yield from _metrics(("backend", "replica"), replicas, _OF_REPLICAS)
    yield from _metrics(("endpoint", "backend"), shadows, _OF_SHADOWS)
    if status.model_server is not None:
        yield from _metrics((), [((), status.model_server)], _OF_MODEL_SERVER)


def _metrics(
    labels: Sequence[str], found: Sequence[tuple[Sequence[str], T]], rows: Rows[T]
) -> Iterator[Metric]:
    """Yields a metric for each row of a table, with samples for each of the labelled objects."""
    for kind, name, help_, read, *label_of_words in rows:
        family: Any = kind(f"shoal_{name}", help_, labels=(*labels, *label_of_words))
        for where, one in found:
            value = read(one)
            if isinstance(value, HistogramSnapshot):
                bounds = [*map(str, value.bounds), "+Inf"]
                buckets = [*zip(bounds, accumulate(value.counts), strict=True)]
                family.add_metric(where, buckets, value.sum)
            elif isinstance(value, Mapping):
                for word, number in value.items():
                    family.add_metric((*where, word), number)
            elif value is not None:
                family.add_metric(where, value)
        yield family


_OF_REQUESTS: Final[Rows[HistogramSnapshot]] = (
    (HISTOGRAM, "request_seconds", "From a request to the end of its answer.", lambda times: times),
)

_OF_BATCHERS: Final[Rows[BatcherStatistics]] = (
    (GAUGE, "queued_requests", "Requests in the queue.", lambda s: s.queued),
    (GAUGE, "parked_requests", "Requests that wait for room in the queue.", lambda s: s.parked),
    (GAUGE, "running_requests", "Requests in the handler.", lambda s: s.running),
    (
        GAUGE,
        "running_batches",
        "Batches in the handler, without continuous ones that wait for requests.",
        lambda s: s.batches_running - (0 if s.occupancy is None else s.occupancy.idle_batches),
    ),
    (GAUGE, "batch_size_limit", "Current limit of requests or cost.", lambda s: s.batch_size_limit),
    (COUNTER, "shared_requests", "Requests answered with an equal one.", lambda s: s.shared),
    (COUNTER, "cache_hits", "Requests that were answered from the cache.", lambda s: s.cache_hits),
    (COUNTER, "split_calls", "Calls split into several requests.", lambda s: s.split_calls),
    (COUNTER, "split_requests", "Requests that calls were split into.", lambda s: s.split_requests),
    (COUNTER, "isolating_runs", "Runs with a part of a failed batch.", lambda s: s.isolating_runs),
    (COUNTER, "retried_requests", "Requests that were queued again.", lambda s: s.retried),
    (COUNTER, "batch_padding", "Requests or cost that padding has added.", lambda s: s.padding),
    (COUNTER, "batch_cost", "The cost of batches, with padding.", lambda s: s.load),
    (
        GAUGE,
        "batcher_up",
        "Whether the batcher accepts calls: 1, or 0 if it failed or was closed.",
        lambda s: s.state in ("open", "draining"),
    ),
    (
        COUNTER,
        "requests",
        "Requests by outcome.",
        lambda s: {outcome: getattr(s, outcome) for outcome in REQUEST_OUTCOMES},
        "outcome",
    ),
    (
        COUNTER,
        "batches",
        "Batches by dispatch reason.",
        lambda s: {reason.value: count for reason, count in s.batches.items()},
        "reason",
    ),
    (HISTOGRAM, "batch_size", "Requests in a batch.", lambda s: s.batch_size),
    (HISTOGRAM, "queue_seconds", "How long a request waited in the queue.", lambda s: s.wait_s),
    (HISTOGRAM, "batch_run_seconds", "Run time of the handler for a batch.", lambda s: s.run_s),
)

_OF_JOINED: Final[Rows[OccupancyStatistics]] = (
    (COUNTER, "batch_joins", "Requests that joined a batch.", lambda o: o.joined),
    (COUNTER, "batch_leaves", "Requests that left a batch.", lambda o: o.left),
    (COUNTER, "batch_occupancy_seconds", "Time of requests in a batch.", lambda o: o.request_s),
    (COUNTER, "batch_busy_seconds", "Time with a request in a batch.", lambda o: o.busy_s),
    (
        HISTOGRAM,
        "batch_step_size",
        "Requests in a continuous batch at each step of its handler.",
        lambda o: o.steps,
    ),
)

_OF_STREAMS: Final[Rows[ItemTimes]] = (
    (
        HISTOGRAM,
        "stream_first_item_seconds",
        "From a request to its stream's first item.",
        lambda t: t.first.snapshot(),
    ),
    (
        HISTOGRAM,
        "stream_item_gap_seconds",
        "From an item of a stream to the next one.",
        lambda t: t.between.snapshot(),
    ),
)

_OF_ENDPOINTS: Final[Rows[EndpointStatus]] = (
    (GAUGE, "endpoint_held_requests", "Requests held until traffic is set.", lambda e: e.held),
)

_OF_BACKENDS: Final[Rows[BackendStatus]] = (
    (GAUGE, "wanted_replicas", "Target number of replicas.", lambda b: b.wanted),
    (COUNTER, "replica_starts", "Started replicas.", lambda b: b.starts),
    (COUNTER, "replica_deaths", "Replicas that died or were killed.", lambda b: b.deaths),
    (COUNTER, "replica_restarts", "Replicas started to replace a dead one.", lambda b: b.restarts),
    (COUNTER, "model_loads", "Loads of a model.", lambda b: b.model_loads),
    (COUNTER, "model_load_failures", "Failed loads of a model.", lambda b: b.model_load_failures),
    (COUNTER, "model_unloads", "Models unloaded for another one.", lambda b: b.model_unloads),
    (COUNTER, "model_load_seconds", "Total time of loads of models.", lambda b: b.model_load_s),
    (
        GAUGE,
        "replicas",
        "Replicas by their state.",
        lambda b: {s: [r.state for r in b.replicas].count(s) for s in get_args(ReplicaState)},
        "state",
    ),
)

_OF_STARTS: Final[Rows[Any]] = (
    (COUNTER, "replica_start_failures", "Failed starts of replicas.", lambda s: s.start_failures),
    (
        HISTOGRAM,
        "replica_start_seconds",
        "Start time of a replica.",
        lambda s: s.start_s.snapshot(),
    ),
)

_OF_LISTENERS: Final[Rows[ConnectionTotals]] = (
    (GAUGE, "connections", "Open connections.", lambda c: c.open),
    (GAUGE, "connection_limit", "How many connections may be open.", lambda c: c.limit),
    (COUNTER, "accepted_connections", "Accepted connections.", lambda c: c.accepted),
    (COUNTER, "received_bytes", "Received bytes.", lambda c: c.received),
    (COUNTER, "sent_bytes", "Bytes that went out.", lambda c: c.sent),
)

_OF_MODEL_SERVER: Final[Rows[ModelServerStatus]] = (
    (GAUGE, "model_server_connections", "Connected ingresses.", lambda m: m.connections),
    (COUNTER, "model_server_accepted_connections", "Accepted connections.", lambda m: m.accepted),
    (COUNTER, "model_server_messages", "Messages with requests.", lambda m: m.messages),
    (COUNTER, "model_server_requests", "Requests in messages.", lambda m: m.requests),
    (
        COUNTER,
        "model_server_refused_connections",
        "Connections that are not of an ingress, by reason.",
        lambda m: m.refused,
        "reason",
    ),
)

_OF_REPLICAS: Final[Rows[ReplicaStatus]] = (
    (GAUGE, "replica_running_requests", "Requests a replica runs.", lambda r: r.ongoing),
    (COUNTER, "replica_batches", "Batches a replica was given.", lambda r: r.batches),
    (GAUGE, "replica_memory_bytes", "Resident memory of a replica.", lambda r: r.memory_bytes),
    (
        GAUGE,
        "replica_loaded_models",
        "Models a replica has loaded.",
        lambda r: [*r.models.values()].count("loaded"),
    ),
    (
        GAUGE,
        "replica_loading_models",
        "Models a replica is loading.",
        lambda r: [*r.models.values()].count("loading"),
    ),
)

_OF_SHADOWS: Final[Rows[ShadowStatus]] = (
    (COUNTER, "shadow_requests", "Copied requests.", lambda s: s.sent),
    (COUNTER, "shadow_dropped", "Requests not copied: too many copies ran.", lambda s: s.dropped),
    (COUNTER, "shadow_errors", "Failed copies.", lambda s: s.failed),
    (COUNTER, "shadow_agreements", "Answers that compare found equal.", lambda s: s.agreed),
    (COUNTER, "shadow_disagreements", "Answers that compare rejected.", lambda s: s.disagreed),
    (COUNTER, "shadow_latency_seconds", "Total time of copies.", lambda s: s.latency_s),
)


_OF_GPUS: Final[Rows[GpuStatus]] = (
    (
        GAUGE,
        "gpu_memory_used_bytes",
        "Memory of a GPU in use, by all programs.",
        lambda g: g.memory_used_bytes,
    ),
    (GAUGE, "gpu_memory_bytes", "Memory of a GPU.", lambda g: g.memory_total_bytes),
    (
        GAUGE,
        "gpu_utilization_ratio",
        "The share of the last moment in which a GPU ran anything.",
        lambda g: g.utilization,
    ),
)

_OF_SHARES: Final[Rows[float]] = (
    (GAUGE, "replica_gpu_share", "Which part of a GPU a replica was given.", lambda part: part),
)

# Of the metrics of a process, by their names.
_OF_WORKERS: Final[Rows[Mapping[str, float]]] = [
    (kind, f"worker_{name}", help_, methodcaller("get", f"process_{name}"))
    for kind, name, help_ in (
        (COUNTER, "cpu_seconds", "Processor time of a worker."),
        (GAUGE, "resident_memory_bytes", "Resident memory of a worker."),
        (GAUGE, "open_fds", "Open file descriptors of a worker."),
        (GAUGE, "max_fds", "How many file descriptors a worker may open."),
    )
]


def _of_process(pid: int) -> dict[str, float]:
    """Returns nothing if the process has ended, or where there is no ``/proc``."""
    found = ProcessCollector(pid=lambda: pid, registry=None).collect()
    return {one.name: one.samples[0].value for one in found}
