"""Metrics for Prometheus, gathered from the engine's own counters when they are asked for.

The engine counts a batch at a time and keeps its figures in plain integers. Translating them
here, at scrape time, leaves nothing for the hot path to do; the rival, to update
prometheus_client's objects in place, takes a lock and a look-up for every one. Only answers are
counted one by one, in a dict.

Every label comes from the operator: names of backends and endpoints, fixed words, classes of
statuses. None comes from a caller, so what is kept here can't grow.
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
"""What answers that no endpoint gave are counted under."""


class AnswerCounts:
    """Counts answers by endpoint and class of status."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()

    def count(self, endpoint: str, status: int) -> None:
        """Counts one answer.

        Args:
            endpoint: The endpoint's name, or `NO_ENDPOINT`.
            status: The answer's HTTP status.
        """
        self._counts[endpoint, status // 100] += 1

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """Yields the endpoint, the class (``"2xx"``) and the count of each pair that was seen."""
        for (endpoint, hundreds), count in self._counts.items():
            yield endpoint, f"{hundreds}xx", count


class ShoalCollector(Collector):
    """Translates statistics into metrics; register it in a `prometheus_client.CollectorRegistry`.

    Args:
        batchers: Gives each batcher's name and statistics, when they are gathered. It is named for
            its backend; that of another method than ``__call__`` for that as well.
        answers: The answers that were counted.
        status: Gives what a controller says of itself; None where there is none.
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
        """Yields the metrics as they are now."""
        batchers = list(self._batchers())
        yield _gauge("queued_requests", "Requests in line.", batchers, lambda s: s.queued)
        yield _gauge(
            "parked_requests",
            "Requests that wait to be let into the line.",
            batchers,
            lambda s: s.parked,
        )
        yield _gauge("running_requests", "Requests in the handler.", batchers, lambda s: s.running)
        yield _gauge(
            "running_batches", "Batches in the handler.", batchers, lambda s: s.batches_running
        )
        yield _gauge(
            "batcher_up",
            "Whether the batcher takes calls: 1, or 0 where it broke or was closed.",
            batchers,
            lambda s: s.state in ("open", "draining"),
        )
        yield _requests(batchers)
        yield _batches(batchers)
        yield _histogram("batch_size", "Requests in a batch.", batchers, lambda s: s.batch_size)
        yield _histogram(
            "batch_wait_seconds",
            "How long the oldest request of a batch waited in line.",
            batchers,
            lambda s: s.wait_s,
        )
        yield _histogram(
            "batch_run_seconds", "How long the handler had a batch.", batchers, lambda s: s.run_s
        )
        yield self._responses()
        if (status := self._status()) is not None:
            yield from router_metrics(status)

    def _responses(self) -> Metric:
        family = CounterMetricFamily(
            "shoal_http_responses",
            "Answers by the class of their status.",
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
        "shoal_requests", "Requests by how they ended.", labels=["backend", "outcome"]
    )
    for backend, statistics in batchers:
        for outcome in ("finished", "failed", "cancelled", "expired", "rejected", "shed"):
            family.add_metric([backend, outcome], getattr(statistics, outcome))
    return family


def _batches(batchers: Named) -> Metric:
    family = CounterMetricFamily(
        "shoal_batches", "Batches by why they were cut.", labels=["backend", "reason"]
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
