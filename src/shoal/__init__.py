"""Structured-concurrency batching: turn a function that takes a list into one that takes one item.

Concurrent callers are gathered into batches by a task in a nursery; each gets its own result back,
whole or as a stream::

    @shoal.batch(max_batch_size=64)
    def embed(texts: list[str]) -> list[Vector]: ...

    async with shoal.open_batchers(embed):
        vector = await embed("one text")
"""

from typing import TYPE_CHECKING, Any

from shoal.batching.batcher import Batcher
from shoal.batching.blocking import blocking
from shoal.batching.calls import StreamCall, UnaryCall
from shoal.batching.current import current_batch
from shoal.batching.decorated import BatchedFunction, BatchedGenerator
from shoal.batching.decorator import batch, open_batchers
from shoal.batching.list_cost import of_list
from shoal.batching.open_batch import OpenBatch, OpenRequest
from shoal.batching.retrying import retrying
from shoal.batching.stream import END, SKIP, Mark, ResultStream
from shoal.batching.threads import ThreadStream
from shoal.core.batch import Batch, CutReason
from shoal.core.counters import BatcherStatistics, ClosingCounts, HistogramSnapshot
from shoal.core.latency_model import LatencyModelSnapshot
from shoal.core.latency_target import LatencyTarget
from shoal.core.options import BatchOptions
from shoal.core.policies.base import BatchPolicy, Cut, Hurry, LinePolicy, Wait
from shoal.core.queue_policy import QueuePolicy
from shoal.core.request import Request
from shoal.errors import (
    BatcherClosed,
    DeadlineExceeded,
    HandlerFailed,
    HandlerTimeout,
    ItemTooLarge,
    NotOpen,
    Overloaded,
    ShoalError,
    SlowReader,
    Unfinished,
    WrongBatchSize,
    WrongResultType,
)

if TYPE_CHECKING:
    from shoal.http.app import App

__all__ = [
    "END",
    "SKIP",
    "App",
    "Batch",
    "BatchOptions",
    "BatchPolicy",
    "BatchedFunction",
    "BatchedGenerator",
    "Batcher",
    "BatcherClosed",
    "BatcherStatistics",
    "ClosingCounts",
    "Cut",
    "CutReason",
    "DeadlineExceeded",
    "HandlerFailed",
    "HandlerTimeout",
    "HistogramSnapshot",
    "Hurry",
    "ItemTooLarge",
    "LatencyModelSnapshot",
    "LatencyTarget",
    "LinePolicy",
    "Mark",
    "NotOpen",
    "OpenBatch",
    "OpenRequest",
    "Overloaded",
    "QueuePolicy",
    "Request",
    "ResultStream",
    "ShoalError",
    "SlowReader",
    "StreamCall",
    "ThreadStream",
    "UnaryCall",
    "Unfinished",
    "Wait",
    "WrongBatchSize",
    "WrongResultType",
    "__version__",
    "batch",
    "blocking",
    "current_batch",
    "of_list",
    "open_batchers",
    "retrying",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Loads what needs the extra ``shoal[serve]`` when it is first asked for."""
    if name != "App":
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    try:
        from shoal.http.app import App
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "shoal":
            raise
        raise ImportError(
            f"shoal.App needs {error.name!r}: pip install 'shoal[serve]'", name=error.name
        ) from error
    return App
