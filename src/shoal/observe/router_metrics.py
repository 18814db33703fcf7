"""Metrics of a controller: those of Ray Serve 1.x's router, and of replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from shoal.serving.status import Status

_REPLICA_STATES = ("starting", "ready", "draining", "stopping")


def router_metrics(status: Status) -> Iterator[Metric]:
    """Yields the metrics of endpoints, backends, replicas and shadows."""
    yield from _endpoints(status)
    yield from _backends(status)
    yield from _replicas(status)
    yield from _shadows(status)


def _endpoints(status: Status) -> Iterator[Metric]:
    requests = _counter("endpoint_requests", "Requests to an endpoint.", "endpoint")
    errors = _counter("endpoint_errors", "Failed requests to an endpoint.", "endpoint")
    held = _gauge("endpoint_held_requests", "Requests held until traffic is set.", "endpoint")
    for name, endpoint in status.endpoints.items():
        requests.add_metric([name], endpoint.requests)
        errors.add_metric([name], endpoint.errors)
        held.add_metric([name], endpoint.held)
    yield from (requests, errors, held)


def _backends(status: Status) -> Iterator[Metric]:
    requests = _counter("backend_requests", "Requests that have ended.", "backend")
    errors = _counter("backend_errors", "Failed requests.", "backend")
    queued = _gauge("backend_queued_requests", "Requests in the queues of all methods.", "backend")
    wanted = _gauge("backend_wanted_replicas", "Target number of replicas.", "backend")
    starts = _counter("replica_starts", "Started replicas.", "backend")
    deaths = _counter("replica_deaths", "Replicas that died or were killed.", "backend")
    restarts = _counter("replica_restarts", "Replicas started to replace a dead one.", "backend")
    for tag, backend in status.backends.items():
        requests.add_metric([tag], backend.requests)
        errors.add_metric([tag], backend.errors)
        queued.add_metric([tag], backend.queued)
        wanted.add_metric([tag], backend.wanted)
        starts.add_metric([tag], backend.starts)
        deaths.add_metric([tag], backend.deaths)
        restarts.add_metric([tag], backend.restarts)
    yield from (requests, errors, queued, wanted, starts, deaths, restarts)


def _replicas(status: Status) -> Iterator[Metric]:
    replicas = _gauge("replicas", "Replicas by their state.", "backend", "state")
    ongoing = _gauge("replica_ongoing_requests", "Requests a replica runs.", "backend", "replica")
    memory = _gauge("replica_memory_bytes", "Resident memory of a replica.", "backend", "replica")
    for tag, backend in status.backends.items():
        for state in _REPLICA_STATES:
            count = sum(replica.state == state for replica in backend.replicas)
            replicas.add_metric([tag, state], count)
        for replica in backend.replicas:
            ongoing.add_metric([tag, replica.tag], replica.ongoing)
            if replica.memory_bytes is not None:
                memory.add_metric([tag, replica.tag], replica.memory_bytes)
    yield from (replicas, ongoing, memory)


def _shadows(status: Status) -> Iterator[Metric]:
    labels = ("endpoint", "backend")
    sent = _counter("shadow_requests", "Copied requests.", *labels)
    dropped = _counter("shadow_dropped", "Requests not copied: too many copies ran.", *labels)
    failed = _counter("shadow_errors", "Failed copies.", *labels)
    agreed = _counter("shadow_agreements", "Answers that compare found equal.", *labels)
    disagreed = _counter("shadow_disagreements", "Answers that compare found different.", *labels)
    latency = _counter("shadow_latency_seconds", "Total time of copies.", *labels)
    for name, endpoint in status.endpoints.items():
        for shadow in endpoint.shadows:
            where = [name, shadow.backend]
            sent.add_metric(where, shadow.sent)
            dropped.add_metric(where, shadow.dropped)
            failed.add_metric(where, shadow.failed)
            agreed.add_metric(where, shadow.agreed)
            disagreed.add_metric(where, shadow.disagreed)
            latency.add_metric(where, shadow.latency_s)
    yield from (sent, dropped, failed, agreed, disagreed, latency)


def _counter(name: str, help_: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"shoal_{name}", help_, labels=labels)


def _gauge(name: str, help_: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"shoal_{name}", help_, labels=labels)
