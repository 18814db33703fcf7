"""The options of a backend as keywords: their names, their old names, and errors for others."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from shoal.batching.handlers.handler import Fill
from shoal.core.options.names import suggested
from shoal.core.options.options import Opens, ValueKeywords
from shoal.core.options.records import Cache, LatencyTarget, QueuePolicy
from shoal.core.policy import BatchPolicy
from shoal.core.replicas.autoscaling import AutoscalingOptions
from shoal.replicas.contract import Placement
from shoal.replicas.placements import PlacementKeywords


class BackendKeywords(ValueKeywords, PlacementKeywords, total=False):
    """The keywords of `BackendConfig`, which documents them."""

    num_replicas: int
    placement: str | Placement
    placement_options: Mapping[str, Any]
    max_ongoing_requests: int | None
    retries: int
    user_config: Any
    health_check_period_s: float
    health_check_timeout_s: float
    autoscaling: AutoscalingOptions | Mapping[str, Any] | None
    max_batches_per_replica: int | None
    fill: Fill
    streams: bool
    decode: Callable[[Any], Any] | str | None
    encode: Callable[..., Any] | str | None

    # ReplicaOptions
    start_timeout_s: float | None
    cancel_grace_s: float

    # BatchOptions; its functions may be import paths here, and its records mappings
    batch_size_fn: Callable[[Any], float] | str | None
    bucket_by: Callable[[Any], Hashable] | str | None
    pad: Callable[[list[Any], int], Sequence[Any]] | str | None
    queue_policies: Mapping[int, QueuePolicy] | Mapping[str, Mapping[str, Any]]
    default_queue_policy: QueuePolicy | Mapping[str, Any] | None
    split: Callable[[Any, float], Sequence[Any]] | str | None
    join: Callable[[list[Any]], Any] | str | None
    adaptive: LatencyTarget | Mapping[str, Any] | None
    policy: Callable[[Any], BatchPolicy] | str | None
    dedupe: bool | Callable[[Any], Hashable] | str
    cache: Cache | Mapping[str, Any] | None
    open: Opens | str | None

    # names from Ray Serve, of any version
    max_concurrent_queries: int | None
    batch_wait_timeout: float | None
    ray_actor_options: Mapping[str, Any]


RENAMED: Final[Mapping[str, str]] = {
    "max_concurrent_queries": "max_ongoing_requests",
    "batch_wait_timeout": "batch_wait_timeout_s",
    "ray_actor_options": "ray_options",
}
"""Shoal's names of options, by their old names and Ray Serve's."""

NAMES: Final = tuple(name for name in BackendKeywords.__annotations__ if name not in RENAMED)
"""The names of all options."""


def renamed(given: Mapping[str, Any]) -> dict[str, Any]:
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
    """Raises `TypeError` for other names; suggests those `beside` the options as well."""
    known = (*NAMES, *RENAMED)
    for name in given:
        if name not in known:
            hint = suggested(name, (*known, *beside)) or "shoal.BackendConfig lists the options"
            raise TypeError(f"{name!r} is not an option of a backend; {hint}")


def _old_name(ours: str) -> str:
    return next(old for old, new in RENAMED.items() if new == ours)
