"""Metrics of the machine: GPUs, and the worker processes of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from shoal.observe.collector import GAUGE, metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from shoal.observe.collector import Rows
    from shoal.serving.status import GpuStatus


class GpuCollector(Collector):
    def __init__(self) -> None:
        self.gpus: Mapping[str, GpuStatus] = {}  # by name; set before each scrape

    def collect(self) -> Iterator[Metric]:
        gpus = [((name,), one) for name, one in self.gpus.items()]
        shares = [
            ((replica.rpartition("#")[0], replica, name), part)
            for name, one in self.gpus.items()
            for replica, part in one.replicas.items()
        ]
        where = ("backend", "replica", "gpu")
        found = [*metrics(("gpu",), gpus, _OF_GPUS), *metrics(where, shares, _OF_SHARES)]
        yield from (family for family in found if family.samples)


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


class WorkerCollector(Collector):
    def __init__(self) -> None:
        self.pids: Mapping[int, int] = {}  # by worker number; set before each scrape

    def collect(self) -> Iterator[Metric]:
        found: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for number, pid in sorted(self.pids.items()):
            for one in _of_process(pid):
                if one.name not in _OF_PROCESS:
                    continue
                name, help_ = _OF_PROCESS[one.name]
                if name not in found:
                    made = CounterMetricFamily if one.type == "counter" else GaugeMetricFamily
                    found[name] = made(name, help_, labels=("worker",))
                found[name].add_metric((str(number),), one.samples[0].value)
        yield from found.values()


def _of_process(pid: int) -> Iterable[Metric]:
    """Returns none if the process has ended, or where there is no ``/proc``."""
    return ProcessCollector(pid=lambda: pid, registry=None).collect()
