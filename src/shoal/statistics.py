"""Statistics of batchers, and observers of their batches."""

from shoal.core.counters import BatcherStatistics, ClosingCounts
from shoal.core.events import BatchObserver, BatchRecord
from shoal.core.histogram import HistogramSnapshot
from shoal.core.latency_model import LatencyModelSnapshot

__all__ = [
    "BatchObserver",
    "BatchRecord",
    "BatcherStatistics",
    "ClosingCounts",
    "HistogramSnapshot",
    "LatencyModelSnapshot",
]
