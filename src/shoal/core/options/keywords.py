"""The options of a batcher and of a call as typed keywords, for type checkers."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from shoal.core.options.records import LatencyTarget, QueuePolicy
from shoal.core.policy import BatchPolicy

Overload = Literal["reject", "wait", "shed_oldest", "shed_lowest"]
Order = Literal["arrival", "deadline"]
Padding = Literal["up", "down", "cost"]
PriorityMixing = Literal["merge", "isolate"]


class ValueKeywords(TypedDict, total=False):
    """The options in `BatchOptions` that are neither functions nor records."""

    max_batch_size: int
    batch_wait_timeout_s: float | None
    idle_timeout_s: float | None
    max_concurrent_batches: int | None
    max_queued_requests: int | None
    overload: Overload
    allowed_batch_sizes: Sequence[int] | None
    padding: Padding
    preferred_batch_sizes: Sequence[int] | None
    priority_levels: int
    default_priority: int | None
    priority_aging_s: float | None
    priority_mixing: PriorityMixing
    order: Order
    use_scope_deadline: bool
    refuse_late: bool
    stream_buffer: int
    slow_reader_timeout_s: float | None
    cancel_abandoned: bool
    handler_timeout_s: float | None
    request_timeout_s: float | None
    isolate_errors: bool
    graceful_shutdown_timeout_s: float
    drop_queued_on_shutdown: bool


class OptionKeywords(ValueKeywords, total=False):
    """The keywords of `BatchOptions`."""

    batch_size_fn: Callable[[Any], float] | None
    bucket_by: Callable[[Any], Hashable] | None
    pad: Callable[[list[Any], int], Sequence[Any]] | None
    queue_policies: Mapping[int, QueuePolicy]
    default_queue_policy: QueuePolicy | None
    split: Callable[[Any, float], Sequence[Any]] | None
    join: Callable[[list[Any]], Any] | None
    adaptive: LatencyTarget | None
    policy: Callable[[Any], BatchPolicy] | None


class CallKeywords(TypedDict, total=False):
    """The keywords of a call's ``options``; `UnaryCall.options` documents them."""

    deadline_s: float | None
    metadata: Mapping[str, Any] | None
    priority: int | None
    queue_timeout_s: float | None
