"""Metrics for Prometheus, computed from the engine's own counters at scrape time.

The engine counts per batch, in plain integers. Converting these counters when they are scraped adds
no work to the hot path. Updating prometheus_client's objects in place would take a lock and a
look-up for every update. Only HTTP responses are counted one by one, in a dict.

Every label value is chosen by the operator or fixed: names of backends and endpoints, fixed words,
classes of statuses. None comes from a caller, so the number of time series is bounded.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from shoal.observe.router_metrics import router_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from shoal.core.counters import BatcherStatistics, HistogramSnapshot
    from shoal.serving.status import Status

    Named = Iterable[tuple[str, BatcherStatistics]]

NO_ENDPOINT = "-"
"""The endpoint label of responses that no endpoint gave."""


class AnswerCounts:
    """Counts HTTP responses by endpoint and class of status."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()

    def count(self, endpoint: str, status: int) -> None:
        """Counts one response.

        Args:
            endpoint: The endpoint's name, or `NO_ENDPOINT`.
            status: The response's HTTP status.
        """
        self._counts[endpoint, status // 100] += 1

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """Yields the endpoint, status class (``"2xx"``) and count of each pair counted so far."""
        for (endpoint, hundreds), count in self._counts.items():
            yield endpoint, f"{hundreds}xx", count


class ShoalCollector(Collector):
    """Converts statistics into metrics; register it in a `prometheus_client.CollectorRegistry`.

    Args:
        batchers: Returns each batcher's name and statistics; called on each scrape. The name is the
            tag of its backend, with the method appended if that is not ``__call__``.
        answers: The counted responses.
        status: Returns the status of the controller; None if there is no controller.
    """

    def __init__(
        self,
        batchers: Callable[[], Named],
        answers: AnswerCounts,
        status: Callable[[], Status | None] = lambda: None,
    ) -> None:
        self._batchers = batchers
        self._answers = answers
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yields the current metrics."""
        batchers = list(self._batchers())
        yield _gauge("queued_requests", "Requests in the queue.", batchers, lambda s: s.queued)
        yield _gauge(
            "parked_requests",
            "Requests that wait to be admitted to the queue.",
            batchers,
            lambda s: s.parked,
        )
        yield _gauge("running_requests", "Requests in the handler.", batchers, lambda s: s.running)
        yield _gauge(
            "running_batches", "Batches in the handler.", batchers, lambda s: s.batches_running
        )
        yield _gauge(
            "batcher_up",
            "Whether the batcher accepts calls: 1, or 0 if it failed or was closed.",
            batchers,
            lambda s: s.state in ("open", "draining"),
        )
        yield _requests(batchers)
        yield _batches(batchers)
        yield _histogram("batch_size", "Requests in a batch.", batchers, lambda s: s.batch_size)
        yield _histogram(
            "batch_wait_seconds",
            "How long the oldest request of a batch waited in the queue.",
            batchers,
            lambda s: s.wait_s,
        )
        yield _histogram(
            "batch_run_seconds",
            "Run time of the handler for a batch.",
            batchers,
            lambda s: s.run_s,
        )
        yield self._responses()
        if (status := self._status()) is not None:
            yield from router_metrics(status)

    def _responses(self) -> Metric:
        family = CounterMetricFamily(
            "shoal_http_responses",
            "Responses by class of status.",
            labels=["endpoint", "status"],
        )
        for endpoint, status, count in self._answers:
            family.add_metric([endpoint, status], count)
        return family


def _gauge(
    name: str, help_: str, batchers: Named, value: Callable[[BatcherStatistics], float]
) -> Metric:
    family = GaugeMetricFamily(f"shoal_{name}", help_, labels=["backend"])
    for backend, statistics in batchers:
        family.add_metric([backend], value(statistics))
    return family


def _requests(batchers: Named) -> Metric:
    family = CounterMetricFamily(
        "shoal_requests", "Requests by outcome.", labels=["backend", "outcome"]
    )
    for backend, statistics in batchers:
        for outcome in ("finished", "failed", "cancelled", "expired", "rejected", "shed"):
            family.add_metric([backend, outcome], getattr(statistics, outcome))
    return family


def _batches(batchers: Named) -> Metric:
    family = CounterMetricFamily(
        "shoal_batches", "Batches by dispatch reason.", labels=["backend", "reason"]
    )
    for backend, statistics in batchers:
        for reason, count in statistics.batches.items():
            family.add_metric([backend, reason.value], count)
    return family


def _histogram(
    name: str,
    help_: str,
    batchers: Named,
    snapshot: Callable[[BatcherStatistics], HistogramSnapshot],
) -> Metric:
    family = HistogramMetricFamily(f"shoal_{name}", help_, labels=["backend"])
    for backend, statistics in batchers:
        histogram = snapshot(statistics)
        bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        family.add_metric([backend], buckets, histogram.sum)
    return family
