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
    from shoal.asgi.http_options import HttpOptions
    from shoal.batching.batcher import Batcher
    from shoal.batching.calls.call import StreamCall, UnaryCall, retrying
    from shoal.batching.calls.stream import END, SKIP, Mark, ResultStream
    from shoal.batching.calls.threads import ThreadStream
    from shoal.batching.current import current_batch
    from shoal.batching.decorator.batched import BatchedFunction, BatchedGenerator
    from shoal.batching.decorator.blocking import BlockingCall, BlockingStreamCall, blocking
    from shoal.batching.decorator.decorator import batch, open_batchers
    from shoal.batching.open.batch import OpenBatch, OpenRequest
    from shoal.batching.options import of_list
    from shoal.core.batch import Batch, DispatchReason
    from shoal.core.counters import BatcherStatistics, ClosingCounts
    from shoal.core.events import BatchObserver, BatchRecord
    from shoal.core.histogram import HistogramSnapshot
    from shoal.core.latency_model import LatencyModelSnapshot
    from shoal.core.options.options import BatchOptions
    from shoal.core.options.records import Cache, LatencyTarget, QueuePolicy
    from shoal.core.policy import BatchPolicy, Dispatch, Pressure, Wait, WholeQueuePolicy
    from shoal.core.replicas.autoscaling import AutoscalingOptions
    from shoal.core.request import Request
    from shoal.errors import (
        BackendUnavailable,
        BatcherClosed,
        DeadlineExceeded,
        HandlerFailed,
        HandlerTimeout,
        HttpProblem,
        InUse,
        ItemTooLarge,
        LifespanFailed,
        NameTaken,
        NoSuchName,
        NotAllowed,
        NotDurable,
        NotEnoughGpus,
        NotOpen,
        Overloaded,
        ReplicaDied,
        ReplicaNotStarted,
        ShoalError,
        ShutDown,
        SlowReader,
        StateRefused,
        Unfinished,
        WouldDeadlock,
        WrongBatchSize,
        WrongResultType,
    )
    from shoal.http.app.app import App
    from shoal.replicas.code.current import Identity, current_backend_tag, current_replica_tag
    from shoal.replicas.code.definition import Definition, accept_batch
    from shoal.replicas.code.description import Description, Method
    from shoal.replicas.contract import Blueprint, Replica, ReplicaOptions
    from shoal.serving.clients.protocol import Client, Handle
    from shoal.serving.config.config import BackendConfig
    from shoal.serving.status import (
        BackendStatus,
        EndpointStatus,
        GpuStatus,
        ReplicaStatus,
        ShadowStatus,
        Status,
    )
    from shoal.starting import connect, serve, start

    __version__: str

__all__ = [
    "END",
    "SKIP",
    "App",
    "AutoscalingOptions",
    "BackendConfig",
    "BackendStatus",
    "BackendUnavailable",
    "Batch",
    "BatchObserver",
    "BatchOptions",
    "BatchPolicy",
    "BatchRecord",
    "BatchedFunction",
    "BatchedGenerator",
    "Batcher",
    "BatcherClosed",
    "BatcherStatistics",
    "BlockingCall",
    "BlockingStreamCall",
    "Blueprint",
    "Cache",
    "Client",
    "ClosingCounts",
    "DeadlineExceeded",
    "Definition",
    "Description",
    "Dispatch",
    "DispatchReason",
    "EndpointStatus",
    "GpuStatus",
    "Handle",
    "HandlerFailed",
    "HandlerTimeout",
    "HistogramSnapshot",
    "HttpOptions",
    "HttpProblem",
    "Identity",
    "InUse",
    "ItemTooLarge",
    "LatencyModelSnapshot",
    "LatencyTarget",
    "LifespanFailed",
    "Mark",
    "Method",
    "NameTaken",
    "NoSuchName",
    "NotAllowed",
    "NotDurable",
    "NotEnoughGpus",
    "NotOpen",
    "OpenBatch",
    "OpenRequest",
    "Overloaded",
    "Pressure",
    "QueuePolicy",
    "Replica",
    "ReplicaDied",
    "ReplicaNotStarted",
    "ReplicaOptions",
    "ReplicaStatus",
    "Request",
    "ResultStream",
    "ShadowStatus",
    "ShoalError",
    "ShutDown",
    "SlowReader",
    "StateRefused",
    "Status",
    "StreamCall",
    "ThreadStream",
    "UnaryCall",
    "Unfinished",
    "Wait",
    "WholeQueuePolicy",
    "WouldDeadlock",
    "WrongBatchSize",
    "WrongResultType",
    "__version__",
    "accept_batch",
    "batch",
    "blocking",
    "connect",
    "current_backend_tag",
    "current_batch",
    "current_replica_tag",
    "of_list",
    "open_batchers",
    "retrying",
    "serve",
    "start",
]

# Each name is loaded when it is first used. So a program that only batches does not load the
# server, and a replica's process, which should start fast, loads no event loop that it does not
# use.
_WHERE: Final = {
    "__version__": "shoal.version",
    "App": "shoal.http.app.app",
    "AutoscalingOptions": "shoal.core.replicas.autoscaling",
    "BackendConfig": "shoal.serving.config.config",
    "BackendStatus": "shoal.serving.status",
    "BackendUnavailable": "shoal.errors",
    "Batch": "shoal.core.batch",
    "BatchObserver": "shoal.core.events",
    "BatchOptions": "shoal.core.options.options",
    "BatchPolicy": "shoal.core.policy",
    "BatchRecord": "shoal.core.events",
    "BatchedFunction": "shoal.batching.decorator.batched",
    "BatchedGenerator": "shoal.batching.decorator.batched",
    "Batcher": "shoal.batching.batcher",
    "BatcherClosed": "shoal.errors",
    "BlockingCall": "shoal.batching.decorator.blocking",
    "BlockingStreamCall": "shoal.batching.decorator.blocking",
    "BatcherStatistics": "shoal.core.counters",
    "Blueprint": "shoal.replicas.contract",
    "Client": "shoal.serving.clients.protocol",
    "ClosingCounts": "shoal.core.counters",
    "Dispatch": "shoal.core.policy",
    "DispatchReason": "shoal.core.batch",
    "DeadlineExceeded": "shoal.errors",
    "Definition": "shoal.replicas.code.definition",
    "Description": "shoal.replicas.code.description",
    "END": "shoal.batching.calls.stream",
    "EndpointStatus": "shoal.serving.status",
    "GpuStatus": "shoal.serving.status",
    "Handle": "shoal.serving.clients.protocol",
    "HandlerFailed": "shoal.errors",
    "HandlerTimeout": "shoal.errors",
    "HistogramSnapshot": "shoal.core.histogram",
    "HttpOptions": "shoal.asgi.http_options",
    "HttpProblem": "shoal.errors",
    "Pressure": "shoal.core.policy",
    "Identity": "shoal.replicas.code.current",
    "InUse": "shoal.errors",
    "ItemTooLarge": "shoal.errors",
    "LifespanFailed": "shoal.errors",
    "LatencyModelSnapshot": "shoal.core.latency_model",
    "Cache": "shoal.core.options.records",
    "LatencyTarget": "shoal.core.options.records",
    "WholeQueuePolicy": "shoal.core.policy",
    "Mark": "shoal.batching.calls.stream",
    "Method": "shoal.replicas.code.description",
    "NameTaken": "shoal.errors",
    "NoSuchName": "shoal.errors",
    "NotAllowed": "shoal.errors",
    "NotDurable": "shoal.errors",
    "NotEnoughGpus": "shoal.errors",
    "NotOpen": "shoal.errors",
    "OpenBatch": "shoal.batching.open.batch",
    "OpenRequest": "shoal.batching.open.batch",
    "Overloaded": "shoal.errors",
    "QueuePolicy": "shoal.core.options.records",
    "Replica": "shoal.replicas.contract",
    "ReplicaDied": "shoal.errors",
    "ReplicaNotStarted": "shoal.errors",
    "ReplicaOptions": "shoal.replicas.contract",
    "ReplicaStatus": "shoal.serving.status",
    "Request": "shoal.core.request",
    "ResultStream": "shoal.batching.calls.stream",
    "SKIP": "shoal.batching.calls.stream",
    "ShadowStatus": "shoal.serving.status",
    "ShoalError": "shoal.errors",
    "ShutDown": "shoal.errors",
    "SlowReader": "shoal.errors",
    "StateRefused": "shoal.errors",
    "Status": "shoal.serving.status",
    "StreamCall": "shoal.batching.calls.call",
    "ThreadStream": "shoal.batching.calls.threads",
    "UnaryCall": "shoal.batching.calls.call",
    "Unfinished": "shoal.errors",
    "Wait": "shoal.core.policy",
    "WouldDeadlock": "shoal.errors",
    "WrongBatchSize": "shoal.errors",
    "WrongResultType": "shoal.errors",
    "accept_batch": "shoal.replicas.code.definition",
    "batch": "shoal.batching.decorator.decorator",
    "blocking": "shoal.batching.decorator.blocking",
    "connect": "shoal.starting",
    "current_backend_tag": "shoal.replicas.code.current",
    "current_batch": "shoal.batching.current",
    "current_replica_tag": "shoal.replicas.code.current",
    "of_list": "shoal.batching.options",
    "open_batchers": "shoal.batching.decorator.decorator",
    "retrying": "shoal.batching.calls.call",
    "serve": "shoal.starting",
    "start": "shoal.starting",
}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE)
