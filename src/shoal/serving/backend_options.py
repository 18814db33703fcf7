"""The options of a backend: their names, and the batch options among them.

A function among the batch options may be an import path, which stays a path in the config: a
process that only passes the config on need not have the module. So the options are checked with a
callable stand-in for the function when the config is made. The function itself is checked when it
is loaded, with the batcher. So are `Converters`, the functions between HTTP and the code.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from shoal.batching.handlers.annotations import read_signature
from shoal.batching.handlers.handler import Fill
from shoal.core.options.mixes import refused_fill
from shoal.core.options.names import suggested
from shoal.core.options.option import function
from shoal.core.options.options import OPTIONS, BatchOptions, Opens, ValueKeywords
from shoal.core.options.records import Cache, LatencyTarget, Limit, Models, QueuePolicy
from shoal.core.policy import BatchPolicy
from shoal.core.replicas.autoscaling import AutoscalingOptions
from shoal.replicas.code.definition import imported, split_import_path
from shoal.replicas.code.instance import is_async
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
    models: Models | Mapping[str, Any] | None
    limit: Limit | Mapping[str, Any] | None
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
            old_name = next(old for old, new in RENAMED.items() if new == ours)
            raise TypeError(
                f"{ours} is given twice, as {found[ours]!r} and as {value!r}: "
                f"{old_name} is another name for it; leave that out"
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


SERVED_DEFAULTS: Final[Mapping[str, Any]] = {"max_queued_requests": 1024, "overload": "reject"}
"""The defaults of a served batcher's options that differ from a plain batcher's.

Nothing in this process limits the number of remote callers, so the queue has a bound.
"""

DEFAULTS: Final = BatchOptions(**SERVED_DEFAULTS)
"""The batch options of a backend that is given none."""


def unset_batch_options() -> dict[str, Any]:
    """Returns the default of every batch option, to reset a batcher's options with."""
    return {name: getattr(DEFAULTS, name) for name in OPTIONS}


@dataclass(frozen=True)
class _Unloaded:
    """A stand-in for a function that is given by its import path."""

    path: str

    def __call__(self, *_: Any) -> Any:
        raise AssertionError(f"{self.path} is not loaded yet")

    def __repr__(self) -> str:
        return repr(self.path)


def checked_batching(given: Mapping[str, Any], fill: str) -> dict[str, Any]:
    """Checks the batch options among a backend's options; does not load import paths."""
    plain = {
        name: option.from_plain(name, given[name])
        for name, option in OPTIONS.items()
        if name in given
    }
    paths = {
        name: value
        for name, value in plain.items()
        if OPTIONS[name].is_function and isinstance(value, str)
    }
    for name, path in paths.items():
        _check_path(name, path)
    stand_ins = {name: _Unloaded(path) for name, path in paths.items()}
    options = BatchOptions.of({**SERVED_DEFAULTS, **plain, **stand_ins})
    if (refusal := refused_fill(fill, options)) is not None:
        raise ValueError(refusal)
    return {name: getattr(options, name) for name in plain} | paths


def _check_path(name: str, path: str) -> None:
    try:
        split_import_path(path)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def loaded(batching: Mapping[str, Any]) -> dict[str, Any]:
    """Imports the functions of checked batch options."""
    found = dict(batching)
    for name, path in batching.items():
        if OPTIONS[name].is_function and isinstance(path, str):
            found[name] = function(name, imported(path), f'{name}="package.module:a_function"')
    return found


def fitted(batching: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Returns the batch options, changed so that a batch has at most `most` requests."""
    found = dict(batching)
    if found.get("batch_size_fn") is not None and found.get("max_batch_cost") is None:
        raise ValueError(
            f"max_ongoing_requests={most} counts requests, and with batch_size_fn a batch is "
            "bounded by their costs; pass max_batch_cost, or leave max_ongoing_requests out"
        )
    if batch_size(found) <= most:
        return found
    found["max_batch_size"] = most
    for name in ("allowed_batch_sizes", "preferred_batch_sizes"):
        sizes = found.get(name)
        if sizes is None:
            continue
        fitting = tuple(size for size in sizes if size <= most)
        if not fitting:
            raise ValueError(
                f"max_ongoing_requests={most} leaves none of {name}={tuple(sizes)!r}: "
                "a batch must fit into what a replica may have at once"
            )
        found[name] = fitting
        if name == "allowed_batch_sizes":
            found["max_batch_size"] = fitting[-1]
    return found


def concurrency(batching: Mapping[str, Any]) -> float:
    """Returns ``max_concurrent_batches``, or infinity if it is None (no limit)."""
    bound: int | None = batching.get("max_concurrent_batches", DEFAULTS.max_concurrent_batches)
    return math.inf if bound is None else bound


def batch_size(batching: Mapping[str, Any]) -> int:
    return cast("int", batching.get("max_batch_size", DEFAULTS.max_batch_size))


def one_at_a_time(batching: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the batch options for code that takes one item at a time."""
    for name, value in batching.items():
        if not OPTIONS[name].for_lists:
            continue
        has_no_effect = value in (0, None) if name.endswith("_s") else value in (1, None)
        if name == "batch_wait_timeout_s" and value is None:
            has_no_effect = False  # it waits until the batch is full
        if not has_no_effect:
            raise ValueError(
                f"{name}={value!r} is for code that takes lists, and this takes one item at a "
                "time; mark it with @shoal.accept_batch, annotate its parameter with list[T], or "
                f"leave {name} out"
            )
    return {**batching, "max_batch_size": 1}


MOST_REMOTE: Final = 64
"""The most items in one message to a model server, which forms the batches."""

MOST_REMOTE_CALLS: Final = 4000
"""The most messages under way to one model server, which takes 4,096, with health checks."""

_OF_MODEL_SERVERS: Final = frozenset(
    {
        *("num_replicas", "autoscaling", "max_ongoing_requests", "max_concurrent_batches"),
        *("max_batches_per_replica", "models", "sticky_load_factor", "isolate_errors", "limit"),
        *("user_config", "open", "bucket_by", "policy", "adaptive", "fill", "streams"),
        "handler_timeout_s",  # here it would also limit the queue over there
    }
)
"""Options that the server has which runs the code, beside those that shape batches."""


def check_remote(given: Mapping[str, Any]) -> None:
    # Those that differ from their defaults: a change can't take an option away.
    if not given.get("model_servers"):
        raise ValueError('placement="remote" needs model_servers, such as ["tls://models:9000"]')
    for name in given:
        shapes = name in OPTIONS and OPTIONS[name].for_lists
        if shapes or name in _OF_MODEL_SERVERS:
            raise ValueError(
                f'{name} has no effect with placement="remote": the model server decides it; set '
                "it there, and leave it out here, or set it to its default"
            )


class Converters(NamedTuple):
    decode: Callable[[Any], Any] | None
    encode: Callable[[Any, Any], Any] | None


def checked_converter(name: str, value: Any) -> Any:
    """Checks a function or an import path, which is not imported yet."""
    if isinstance(value, str):
        _check_path(name, value)
        return value
    if not callable(value):
        raise TypeError(
            f"{name} must be a function or its import path, not {value!r}; write {name}=a_function"
        )
    if name == "encode" and is_async(value):
        raise TypeError(f"encode must be a plain function, and {value!r} is async")
    takes = (1,) if name == "decode" else (1, 2)
    if not any(_takes(value, count) for count in takes):
        wanted = "a Request" if name == "decode" else "a result, or a result and its Request"
        raise TypeError(f"{name} must take {wanted}, and {value!r} does not")
    return value


def loaded_converters(decode: Any, encode: Any) -> Converters | None:
    if decode is None and encode is None:
        return None
    decode, encode = _loaded("decode", decode), _loaded("encode", encode)
    return Converters(decode, None if encode is None else _of_both(encode))


def _loaded(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = imported(value)
    if not callable(found):
        raise TypeError(f"{name}={value!r} must name a function, not {found!r}")
    return checked_converter(name, found)


def _of_both(encode: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    if _takes(encode, 2):
        return lambda request, result: encode(result, request)
    return lambda _request, result: encode(result)


def _takes(function: Any, count: int) -> bool:
    try:
        read_signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # some functions that are written in C have no signature
        return True
    return True
