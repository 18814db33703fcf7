"""Structured-concurrency batching: turn a function that takes a list into one that takes one item.

A task in a nursery gathers the requests of concurrent callers into batches. Each caller gets its
own result, whole or as a stream::

    @shoal.batch(max_batch_size=64)
    def embed(texts: list[str]) -> list[Vector]: ...

    async with shoal.open_batchers(embed):
        vector = await embed("one text")
"""

from typing import TYPE_CHECKING, Final

from shoal.core.extras import lazy_names as _lazy_names

if TYPE_CHECKING:
    from shoal import errors, policies, replicas, statistics, status
    from shoal.asgi.http_options import HttpOptions
    from shoal.batching.batcher import Batcher
    from shoal.batching.calls.call import StreamCall, UnaryCall, retrying
    from shoal.batching.calls.stream import END, SKIP, Mark, ResultStream
    from shoal.batching.calls.threads import ThreadStream
    from shoal.batching.current import (
        current_backend_tag,
        current_batch,
        current_model,
        current_replica_tag,
    )
    from shoal.batching.decorator.batched import BatchedFunction, BatchedGenerator
    from shoal.batching.decorator.blocking import BlockingCall, BlockingStreamCall, blocking
    from shoal.batching.decorator.decorator import batch, open_batchers
    from shoal.batching.loader import Loader
    from shoal.batching.open_batch import OpenBatch, OpenRequest
    from shoal.batching.options import of_list
    from shoal.core.options.options import BatchOptions
    from shoal.core.options.records import Cache, LatencyTarget, Limit, Models, QueuePolicy
    from shoal.core.replicas.autoscaling import AutoscalingOptions
    from shoal.core.request import Batch, DispatchReason, Request
    from shoal.errors import RetryLater
    from shoal.failures.retry_after import raise_for_retry
    from shoal.http.app.app import App
    from shoal.replicas.code.definition import accept_batch
    from shoal.serving.backend_config import BackendConfig
    from shoal.serving.clients.handles import Handle
    from shoal.serving.clients.protocol import Client
    from shoal.starting import connect, serve, start

    __version__: str

__all__ = [
    "END",
    "SKIP",
    "App",
    "AutoscalingOptions",
    "BackendConfig",
    "Batch",
    "BatchOptions",
    "BatchedFunction",
    "BatchedGenerator",
    "Batcher",
    "BlockingCall",
    "BlockingStreamCall",
    "Cache",
    "Client",
    "DispatchReason",
    "Handle",
    "HttpOptions",
    "LatencyTarget",
    "Limit",
    "Loader",
    "Mark",
    "Models",
    "OpenBatch",
    "OpenRequest",
    "QueuePolicy",
    "Request",
    "ResultStream",
    "RetryLater",
    "StreamCall",
    "ThreadStream",
    "UnaryCall",
    "__version__",
    "accept_batch",
    "batch",
    "blocking",
    "connect",
    "current_backend_tag",
    "current_batch",
    "current_model",
    "current_replica_tag",
    "errors",
    "of_list",
    "open_batchers",
    "policies",
    "raise_for_retry",
    "replicas",
    "retrying",
    "serve",
    "start",
    "statistics",
    "status",
]

# Each name is loaded when it is first used. So a program that only batches does not load the
# server, and a replica's process, which should start fast, loads no event loop that it does not
# use.
_WHERE: Final = {
    "shoal": ("errors", "policies", "replicas", "statistics", "status"),
    "shoal.asgi.http_options": ("HttpOptions",),
    "shoal.batching.batcher": ("Batcher",),
    "shoal.batching.calls.call": ("retrying", "StreamCall", "UnaryCall"),
    "shoal.batching.calls.stream": ("END", "Mark", "ResultStream", "SKIP"),
    "shoal.batching.calls.threads": ("ThreadStream",),
    "shoal.batching.current": (
        "current_backend_tag",
        "current_batch",
        "current_model",
        "current_replica_tag",
    ),
    "shoal.batching.decorator.batched": ("BatchedFunction", "BatchedGenerator"),
    "shoal.batching.decorator.blocking": ("blocking", "BlockingCall", "BlockingStreamCall"),
    "shoal.batching.decorator.decorator": ("batch", "open_batchers"),
    "shoal.batching.loader": ("Loader",),
    "shoal.batching.open_batch": ("OpenBatch", "OpenRequest"),
    "shoal.batching.options": ("of_list",),
    "shoal.core.options.options": ("BatchOptions",),
    "shoal.core.options.records": ("Cache", "LatencyTarget", "Limit", "Models", "QueuePolicy"),
    "shoal.core.replicas.autoscaling": ("AutoscalingOptions",),
    "shoal.core.request": ("Batch", "DispatchReason", "Request"),
    "shoal.errors": ("RetryLater",),
    "shoal.failures.retry_after": ("raise_for_retry",),
    "shoal.http.app.app": ("App",),
    "shoal.replicas.code.definition": ("accept_batch",),
    "shoal.serving.backend_config": ("BackendConfig",),
    "shoal.serving.clients.handles": ("Handle",),
    "shoal.serving.clients.protocol": ("Client",),
    "shoal.starting": ("connect", "serve", "start"),
    "shoal.version": ("__version__",),
}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE)
