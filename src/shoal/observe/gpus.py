"""The metrics of GPUs, from readings that were made before the scrape, since these may hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from shoal.serving.status import GpuStatus


class GpuCollector(Collector):
    def __init__(self) -> None:
        self.gpus: Mapping[str, GpuStatus] = {}  # by name; set before each scrape

    def collect(self) -> Iterator[Metric]:
        for name, help_, value in _OF_GPUS:
            known = {gpu: value(one) for gpu, one in self.gpus.items()}
            yield from _gauge(name, help_, ("gpu",), {(gpu,): one for gpu, one in known.items()})
        yield from _gauge(
            "replica_gpu_share",
            "Which part of a GPU a replica was given.",
            ("backend", "replica", "gpu"),
            {
                (replica.rpartition("#")[0], replica, gpu): part
                for gpu, one in self.gpus.items()
                for replica, part in one.replicas.items()
            },
        )


def _gauge(
    name: str,
    help_: str,
    labels: tuple[str, ...],
    samples: Mapping[tuple[str, ...], float | None],
) -> Iterator[Metric]:
    family = GaugeMetricFamily(f"shoal_{name}", help_, labels=labels)
    for where, value in samples.items():
        if value is not None:
            family.add_metric(where, value)
    if family.samples:
        yield family


_OF_GPUS: tuple[tuple[str, str, Callable[[GpuStatus], float | None]], ...] = (
    (
        "gpu_memory_used_bytes",
        "Memory of a GPU in use, by all programs.",
        lambda g: g.memory_used_bytes,
    ),
    ("gpu_memory_bytes", "Memory of a GPU.", lambda g: g.memory_total_bytes),
    (
        "gpu_utilization_ratio",
        "The share of the last moment in which a GPU ran anything.",
        lambda g: g.utilization,
    ),
)
