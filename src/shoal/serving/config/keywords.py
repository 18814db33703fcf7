"""The options of a backend as keywords: their names, their old names, and what to say of others."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict

from shoal.batching.handlers.handler import Fill
from shoal.core.options.keywords import Order, Overload, Padding, PriorityMixing
from shoal.core.options.names import suggested
from shoal.core.options.records import LatencyTarget, QueuePolicy
from shoal.core.policy import BatchPolicy
from shoal.core.replicas.autoscaling import AutoscalingOptions
from shoal.replicas.contract import Placement


class BackendKeywords(TypedDict, total=False):
    """What `BackendConfig` takes; it says what they mean."""

    num_replicas: int
    placement: str | Placement
    max_ongoing_requests: int | None
    retries: int
    user_config: Any
    health_check_period_s: float
    health_check_timeout_s: float
    autoscaling: AutoscalingOptions | Mapping[str, Any] | None
    max_batches_per_replica: int | None
    fill: Fill
    streams: bool

    # ReplicaOptions
    start_timeout_s: float | None
    cancel_grace_s: float
    python: str | None
    env: Mapping[str, str]
    cpu_affinity: Sequence[Sequence[int]] | None
    max_memory_bytes: int | None
    shared_memory_bytes: int
    log_lines: int
    ray_options: Mapping[str, Any]

    # BatchOptions; its functions may be import paths here, and its records mappings
    max_batch_size: int
    batch_wait_timeout_s: float | None
    idle_timeout_s: float | None
    max_concurrent_batches: int | None
    max_queued_requests: int | None
    overload: Overload
    batch_size_fn: Callable[[Any], float] | str | None
    bucket_by: Callable[[Any], Hashable] | str | None
    allowed_batch_sizes: Sequence[int] | None
    padding: Padding
    pad: Callable[[list[Any], int], Sequence[Any]] | str | None
    preferred_batch_sizes: Sequence[int] | None
    priority_levels: int
    default_priority: int | None
    priority_aging_s: float | None
    priority_mixing: PriorityMixing
    queue_policies: Mapping[int, QueuePolicy] | Mapping[str, Mapping[str, Any]]
    default_queue_policy: QueuePolicy | Mapping[str, Any] | None
    order: Order
    use_scope_deadline: bool
    refuse_late: bool
    split: Callable[[Any, float], Sequence[Any]] | str | None
    join: Callable[[list[Any]], Any] | str | None
    adaptive: LatencyTarget | Mapping[str, Any] | None
    policy: Callable[[Any], BatchPolicy] | str | None
    stream_buffer: int
    slow_reader_timeout_s: float | None
    cancel_abandoned: bool
    handler_timeout_s: float | None
    request_timeout_s: float | None
    isolate_errors: bool
    graceful_shutdown_timeout_s: float
    drop_queued_on_shutdown: bool

    # names that Ray Serve has, or had
    max_concurrent_queries: int | None
    batch_wait_timeout: float | None
    ray_actor_options: Mapping[str, Any]


RENAMED: Final[Mapping[str, str]] = {
    "max_concurrent_queries": "max_ongoing_requests",
    "batch_wait_timeout": "batch_wait_timeout_s",
    "ray_actor_options": "ray_options",
}
"""Old names, and Ray's, by ours."""

NAMES: Final = tuple(name for name in BackendKeywords.__annotations__ if name not in RENAMED)
"""The names of all options."""


def renamed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options under the names that they have here.

    Raises:
        TypeError: A name is no option, or an option is given under two names with two values.
    """
    refuse_unknown(given)
    found: dict[str, Any] = {}
    for name, value in given.items():
        ours = RENAMED.get(name, name)
        if ours in found and found[ours] != value:
            raise TypeError(
                f"{ours} is given twice, as {found[ours]!r} and as {value!r}: "
                f"{_old_name(ours)} is another name for it; leave that out"
            )
        found[ours] = value
    return found


def refuse_unknown(given: Iterable[str], beside: Collection[str] = ()) -> None:
    """Checks that names are options.

    Args:
        given: The names.
        beside: What else can be given in the same place, and so may be meant.

    Raises:
        TypeError: One is none.
    """
    known = (*NAMES, *RENAMED)
    for name in given:
        if name not in known:
            hint = suggested(name, (*known, *beside)) or "shoal.BackendConfig says which there are"
            raise TypeError(f"{name!r} is not an option of a backend; {hint}")


def _old_name(ours: str) -> str:
    return next(old for old, new in RENAMED.items() if new == ours)
