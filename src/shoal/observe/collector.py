"""Metrics for Prometheus, computed from the engine's own counters at scrape time.

The engine counts per batch, in plain integers. Converting these counters when they are scraped adds
no work to the hot path. Updating prometheus_client's objects in place would take a lock and a
look-up for every update. Only the times of requests are stored, and counted in bulk.

Every label value is chosen by the operator or fixed: names of backends, methods and endpoints, and
fixed words. None is sent by a caller, so the number of time series is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
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
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from shoal.asgi.extensions import ConnectionTotals, CountedConnections
    from shoal.core.histogram import (
        Histogram,
        HistogramSnapshot,
        ItemTimes,
        RequestTimes,
    )


T = TypeVar("T")

COUNTER: Final = CounterMetricFamily
GAUGE: Final = GaugeMetricFamily
Kind: TypeAlias = type[CounterMetricFamily] | type[GaugeMetricFamily]
if TYPE_CHECKING:
    Rows: TypeAlias = Sequence[tuple[Kind, str, str, Callable[[T], float | None]]]


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
        help_ = "From a request to the end of its answer."
        yield _histogram("request_seconds", help_, ("endpoint", "protocol", "outcome"), times)
        yield from self._of_batchers()
        streams = [((name,), times) for name, times in self.streams.items()]
        for name, help_, of_stream in _STREAM_HISTOGRAMS:
            found = [(where, of_stream(times).snapshot()) for where, times in streams]
            yield _histogram(name, help_, ("endpoint",), found)
        if (status := self.status()) is not None:
            yield from _of_controller(status, self.starts())
        listeners = [((word,), counts.totals()) for word, counts in self.listeners.items()]
        yield from metrics(("listener",), listeners, _OF_LISTENERS)
        yield from _of_gpus(self.gpus)
        pids = [one.pids() for one in self.listeners.values()]
        yield from _of_workers({number: pid for one in pids for number, pid in one.items()})

    def _of_batchers(self) -> Iterator[Metric]:
        labels = ("backend", "method")
        batchers = [((tag, method), one) for tag, method, one in self.batchers()]
        yield from metrics(labels, batchers, _OF_BATCHERS)
        yield _family(
            COUNTER,
            "requests",
            "Requests by outcome.",
            (*labels, "outcome"),
            (
                ((*where, outcome), getattr(statistics, outcome))
                for where, statistics in batchers
                for outcome in REQUEST_OUTCOMES
            ),
        )
        yield _family(
            COUNTER,
            "batches",
            "Batches by dispatch reason.",
            (*labels, "reason"),
            (
                ((*where, reason.value), count)
                for where, statistics in batchers
                for reason, count in statistics.batches.items()
            ),
        )
        for name, help_, snapshot in _HISTOGRAMS:
            found = [(where, snapshot(one)) for where, one in batchers]
            yield _histogram(name, help_, labels, found)
        joined = [(where, s.occupancy) for where, s in batchers if s.occupancy is not None]
        yield from metrics(labels, joined, _OF_JOINED)
        steps = [(where, one.steps) for where, one in joined]
        help_ = "Requests in a continuous batch at each step of its handler."
        yield _histogram("batch_step_size", help_, labels, steps)


def _of_controller(status: Status, starts: Mapping[str, Any]) -> Iterator[Metric]:
    endpoints = status.endpoints.items()
    backends = status.backends.items()
    replicas = [((tag, one.tag), one) for tag, backend in backends for one in backend.replicas]
    shadows = [((name, one.backend), one) for name, by in endpoints for one in by.shadows]
    yield from metrics(("endpoint",), [((name,), one) for name, one in endpoints], _OF_ENDPOINTS)
    yield from metrics(("backend",), [((tag,), one) for tag, one in backends], _OF_BACKENDS)
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
    started = [((tag,), one) for tag, one in starts.items()]
    yield from metrics(("backend",), started, _OF_STARTS)
    times = [(where, one.start_s.snapshot()) for where, one in started]
    yield _histogram("replica_start_seconds", "Start time of a replica.", ("backend",), times)
    yield from metrics(("backend", "replica"), replicas, _OF_REPLICAS)
    yield from metrics(("endpoint", "backend"), shadows, _OF_SHADOWS)
    if (model_server := status.model_server) is not None:
        yield from metrics((), [((), model_server)], _OF_MODEL_SERVER)
        yield _family(
            COUNTER,
            "model_server_refused_connections",
            "Connections that are not of an ingress, by reason.",
            ("reason",),
            (((reason,), count) for reason, count in model_server.refused.items()),
        )


def metrics(
    labels: Sequence[str], found: Sequence[tuple[Sequence[str], T]], rows: Rows[T]
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
    name: str,
    help_: str,
    labels: Sequence[str],
    found: Iterable[tuple[Sequence[str], HistogramSnapshot]],
) -> Metric:
    family = HistogramMetricFamily(f"shoal_{name}", help_, labels=labels)
    for where, histogram in found:
        bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
        buckets = zip(bounds, accumulate(histogram.counts), strict=True)
        family.add_metric(where, [*buckets], histogram.sum)
    return family


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
)

_HISTOGRAMS: Final[Sequence[tuple[str, str, Callable[[BatcherStatistics], HistogramSnapshot]]]] = (
    ("batch_size", "Requests in a batch.", lambda s: s.batch_size),
    ("queue_seconds", "How long a request waited in the queue.", lambda s: s.wait_s),
    ("batch_run_seconds", "Run time of the handler for a batch.", lambda s: s.run_s),
)

_OF_JOINED: Final[Rows[OccupancyStatistics]] = (
    (COUNTER, "batch_joins", "Requests that joined a batch.", lambda o: o.joined),
    (COUNTER, "batch_leaves", "Requests that left a batch.", lambda o: o.left),
    (COUNTER, "batch_occupancy_seconds", "Time of requests in a batch.", lambda o: o.request_s),
    (COUNTER, "batch_busy_seconds", "Time with a request in a batch.", lambda o: o.busy_s),
)

_STREAM_HISTOGRAMS: Final[Sequence[tuple[str, str, Callable[[ItemTimes], Histogram]]]] = (
    ("stream_first_item_seconds", "From a request to its stream's first item.", lambda t: t.first),
    ("stream_item_gap_seconds", "From an item of a stream to the next one.", lambda t: t.between),
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
)

_OF_STARTS: Final[Rows[Any]] = (
    (COUNTER, "replica_start_failures", "Failed starts of replicas.", lambda s: s.start_failures),
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


def _of_gpus(found: Mapping[str, GpuStatus]) -> Iterator[Metric]:
    gpus = [((name,), one) for name, one in found.items()]
    shares = [
        ((replica.rpartition("#")[0], replica, name), part)
        for name, one in found.items()
        for replica, part in one.replicas.items()
    ]
    where = ("backend", "replica", "gpu")
    families = [*metrics(("gpu",), gpus, _OF_GPUS), *metrics(where, shares, _OF_SHARES)]
    yield from (family for family in families if family.samples)


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

_OF_PROCESS: Final = {
    "process_cpu_seconds": ("shoal_worker_cpu_seconds", "Processor time of a worker."),
    "process_resident_memory_bytes": (
        "shoal_worker_resident_memory_bytes",
        "Resident memory of a worker.",
    ),
    "process_open_fds": ("shoal_worker_open_fds", "Open file descriptors of a worker."),
    "process_max_fds": ("shoal_worker_max_fds", "How many file descriptors a worker may open."),
}
"""Of the metrics of a process the name and the description of that of a worker."""


def _of_workers(pids: Mapping[int, int]) -> Iterable[Metric]:
    found: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for number, pid in sorted(pids.items()):
        for one in _of_process(pid):
            if one.name not in _OF_PROCESS:
                continue
            name, help_ = _OF_PROCESS[one.name]
            if name not in found:
                made = CounterMetricFamily if one.type == "counter" else GaugeMetricFamily
                found[name] = made(name, help_, labels=("worker",))
            found[name].add_metric((str(number),), one.samples[0].value)
    return found.values()


def _of_process(pid: int) -> Iterable[Metric]:
    """Returns none if the process has ended, or where there is no ``/proc``."""
    return ProcessCollector(pid=lambda: pid, registry=None).collect()
