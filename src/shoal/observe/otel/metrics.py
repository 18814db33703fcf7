"""The metrics of ``/-/metrics``, exported over OpenTelemetry's protocol.

They are read from the same collector, with the same names and labels, when they are exported. So
there is one table of metrics, and nothing is counted twice.
"""

from __future__ import annotations

import logging
import math
import os
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import anyio.to_thread
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    DataT,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from shoal.core.histogram import StreamTimes
from shoal.observe.collector import ShoalCollector, Sources
from shoal.observe.otel.instrument import SCOPE
from shoal.observe.otel.providers import metric_exporter, resource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opentelemetry.sdk.resources import Resource
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector
    from prometheus_client.samples import Sample

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
_UNITS: Final = {"_seconds": "s", "_bytes": "By"}
_LAST_EXPORT_S: Final = 3.0

_log: Final = logging.getLogger("shoal.observe")


async def export_metrics(
    target: Any, *, exporter: MetricExporter | None = None, interval_s: float | None = None
) -> None:
    """Exports metrics over OTLP until it is cancelled; start it in a nursery or task group.

    ::

        tasks.start_soon(export_metrics, app)

    Args:
        target: A `shoal.App`, `shoal.Controller` or `shoal.Batcher`, or a collector of
            `prometheus_client`.
        exporter: Exports them; by default the exporter that the environment names, which is OTLP
            over HTTP to ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        interval_s: How long to wait between exports, in seconds; by default
            ``OTEL_METRIC_EXPORT_INTERVAL``, which is in milliseconds, or 60 s.

    Raises:
        TypeError: The target has no metrics.
        ValueError: The environment asks for an unknown exporter.

    Cancellation: the metrics are exported once more, which takes 3 s at most.
    """
    collector = _collector_of(target)
    exporter = metric_exporter() if exporter is None else exporter
    if exporter is None:
        return
    every_s = _interval_s() if interval_s is None else interval_s
    producer, started_at = resource(), time.time_ns()
    try:
        while True:
            await anyio.sleep(every_s)
            await _export(exporter, as_otlp(collector.collect(), producer, started_at))
    finally:
        with anyio.CancelScope(deadline=anyio.current_time() + _LAST_EXPORT_S, shield=True):
            await _export(exporter, as_otlp(collector.collect(), producer, started_at))
            await anyio.to_thread.run_sync(cast("Any", exporter).shutdown, abandon_on_cancel=True)


async def _export(exporter: Any, data: MetricsData) -> None:
    try:
        await anyio.to_thread.run_sync(exporter.export, data, abandon_on_cancel=True)
    except Exception as error:
        _log.error("the metrics were not exported: %s", type(error).__name__, exc_info=error)


def as_otlp(families: Iterable[Family], producer: Resource, started_at: int) -> MetricsData:
    """Converts metrics; `started_at` is in nanoseconds since the epoch."""
    now = time.time_ns()
    metrics = [
        Metric(one.name, one.documentation, _unit(one.name), data)
        for one in families
        if (data := _data_of(one, started_at, now)) is not None
    ]
    scope = ScopeMetrics(InstrumentationScope(SCOPE), metrics, "")
    return MetricsData([ResourceMetrics(producer, [scope], "")])


def _data_of(family: Family, started_at: int, now: int) -> DataT | None:
    if not family.samples:
        return None
    if family.type == "histogram":
        points = list(_histograms(family.samples, started_at, now))
        return Histogram(points, _CUMULATIVE)
    numbers = [
        NumberDataPoint(sample.labels, started_at, now, float(sample.value))
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    return Sum(numbers, _CUMULATIVE, True) if family.type == "counter" else Gauge(numbers)


def _histograms(
    samples: Iterable[Sample], started_at: int, now: int
) -> Iterator[HistogramDataPoint]:
    by_labels: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in samples:
        labels = tuple((k, v) for k, v in sample.labels.items() if k != "le")
        by_labels.setdefault(labels, []).append(sample)
    for labels, found in by_labels.items():
        buckets = [(float(one.labels["le"]), one.value) for one in found if "le" in one.labels]
        sums = [one.value for one in found if one.name.endswith("_sum")]
        counts = [0, *(int(count) for _, count in buckets)]
        yield HistogramDataPoint(
            dict(labels),
            started_at,
            now,
            counts[-1],
            float(sum(sums)),
            [after - before for before, after in pairwise(counts)],
            [bound for bound, _ in buckets if bound != math.inf],
            cast("float", None),  # neither is counted
            cast("float", None),
        )


def _unit(name: str) -> str:
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def _interval_s() -> float:
    given = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip() or "60000"
    try:
        found = float(given) / 1000
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise ValueError(
            f"OTEL_METRIC_EXPORT_INTERVAL must be a number of milliseconds, not {given!r}"
        )
    return found


def _collector_of(target: Any) -> Collector:
    found = getattr(target, "metrics", target)
    if callable(getattr(found, "collect", None)):
        return cast("Collector", found)
    if hasattr(target, "backends") and hasattr(target, "status_now"):
        return ShoalCollector(
            Sources(target.statistics, lambda: [target.times], StreamTimes(), target.status_now)
        )
    if hasattr(target, "statistics") and hasattr(target, "name"):
        return ShoalCollector(
            Sources(lambda: [(target.name, "__call__", target.statistics())], list, StreamTimes())
        )
    raise TypeError(
        "export_metrics() takes a shoal.App, shoal.Controller or shoal.Batcher, not "
        f"{type(target).__name__}"
    )
