"""Which options can't be combined, and why: one table, checked when a batcher is made.

All other combinations are valid, and tested.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING
from typing import Any, Final, TypeAlias

from shoal.core.options.option import SAME

Options: TypeAlias = Any
"""A `BatchOptions`, whose module imports this one."""

Mix: TypeAlias = tuple[str, str, str, Callable[[Options], bool]]


def _with(first: str, second: str, why: str, *, unless: str = "") -> Mix:
    def meets(options: Options) -> bool:
        both = is_set(options, first) and is_set(options, second)
        return both and not (unless and is_set(options, unless))

    return first, second, why, meets


def _without(first: str, second: str, why: str) -> Mix:
    return first, second, why, lambda o: is_set(o, first) and not is_set(o, second)


def _with_no_places(name: str, why: str) -> Mix:
    def meets(options: Options) -> bool:
        return options.max_queued_requests == 0 and is_set(options, name)

    return "max_queued_requests", name, why, meets


def is_set(options: Options, name: str) -> bool:
    field, value = options.__dataclass_fields__[name], getattr(options, name)
    if field.default is MISSING:  # a table
        return bool(value)
    return value is not None if field.default is None else bool(value != field.default)


def sets_windows(options: Options) -> bool:
    return any(one.batch_wait_timeout_s is not SAME for one in queue_policies_of(options))


def queue_policies_of(options: Options) -> list[Any]:
    policies = [*options.queue_policies.values(), options.default_queue_policy]
    return [one for one in policies if one is not None]


def sheds(options: Options) -> bool:
    return options.overload in ("shed_oldest", "shed_lowest")


_PADS: Final = "there is nothing to pad to; pass allowed_batch_sizes=(8, 16, 32)"
_SUMS: Final = "the sizes are sums of costs, and the largest is max_batch_size"
_BOTH: Final = "what is split must be joined again; pass both"
_COST: Final = "without it each item costs 1; pass batch_size_fn=(item) -> cost"
_SHARED: Final = "a large item has several requests, which equal calls can't share"
_WAIT: Final = "the wait is chosen against the target; leave batch_wait_timeout_s out"
_SOME: Final = "an idle slot takes only some of the requests, so what can start now depends on them"

_REFUSED: Final[tuple[Mix, ...]] = (
    _with("allowed_batch_sizes", "preferred_batch_sizes", "pass the allowed sizes only"),
    _with("adaptive", "allowed_batch_sizes", "the run times of padded batches rise in steps"),
    _with("adaptive", "preferred_batch_sizes", "both choose the size of a batch"),
    _with("adaptive", "idle_timeout_s", "both choose how long a batch waits"),
    _with("adaptive", "batch_wait_timeout_s", _WAIT),
    ("adaptive", "queue_policies", _WAIT, lambda o: is_set(o, "adaptive") and sets_windows(o)),
    _with(
        "allowed_batch_sizes",
        "batch_size_fn",
        "padding must have a certain cost, so you have to make it: pass pad=(items, n) -> items",
        unless="pad",
    ),
    _without("max_batch_cost", "batch_size_fn", _COST),
    _with("max_batch_cost", "allowed_batch_sizes", _SUMS),
    _with("max_batch_cost", "preferred_batch_sizes", _SUMS),
    _without("pad", "allowed_batch_sizes", _PADS),
    _without("padding", "allowed_batch_sizes", _PADS),
    _without("split", "join", _BOTH),
    _without("join", "split", _BOTH),
    _without("split", "batch_size_fn", _COST),
    _with("dedupe", "split", _SHARED),
    _with("cache", "split", _SHARED),
    _without("priority_mixing", "priority_levels", "there is only one level"),
    (
        "overload",
        "max_queued_requests",
        "an unbounded queue and one without places shed nothing; pass max_queued_requests=1000",
        lambda o: sheds(o) and not o.max_queued_requests,
    ),
    _with("models", "sticky_load_factor", "both choose the replica of a request"),
    _with_no_places("bucket_by", _SOME),
    _with_no_places("priority_mixing", _SOME),
    _with_no_places("models", _SOME),
    _with_no_places("sticky_load_factor", _SOME),
    _with_no_places("limit", "a batch that waits for the limit waits in the queue"),
    _with("isolate_errors", "limit", "parts of a failed batch run again at once, beyond any limit"),
    *(
        _with("policy", other, "the policy alone decides how batches are formed")
        for other in (
            *("idle_timeout_s", "batch_size_fn", "bucket_by", "allowed_batch_sizes"),
            *("preferred_batch_sizes", "queue_policies", "default_queue_policy", "adaptive"),
            *("order", "priority_mixing", "sticky_load_factor", "models"),
        )
    ),
)


_REFUSED_FOR_OPEN: Final = {
    "allowed_batch_sizes": "a batch that still grows has no size to be padded to",
    "preferred_batch_sizes": "the handler starts with the first request, at any size",
    "bucket_by": "one key's batch would keep the other keys waiting for as long as it is open",
    "models": "a batch has requests of one model, which would keep the others waiting",
    "sticky_load_factor": "requests join a batch that runs already, on whichever replica",
    "split": "all parts could join the same open batch, so no size limits them",
    "adaptive": "the run time of a batch that grows while it runs can't be predicted",
    "policy": "an open batch takes the next request that fits, so no policy forms it",
    "limit": "requests join the batch while it runs, and no start of one could be put off",
    "refuse_late": "how long a batch is open does not tell how long a request takes",
    "isolate_errors": "the handler answers each request by itself, so errors are isolated already",
    "priority_mixing": (
        "one level's batch would keep the others waiting for as long as it is open"
    ),
}
_REFUSED_FOR_CONTINUOUS: Final = {
    "batch_wait_timeout_s": "its batch never closes, so there is no wait to end",
    "idle_timeout_s": "its batch never closes, so there is no wait to end",
    "handler_timeout_s": "its handler runs for as long as the batcher is open",
}


def refused_fill(fill: str, options: Options) -> str | None:
    """Returns which option can't be combined with `fill`, and why; None if all can."""
    if fill == "closed":
        return None
    refused = dict(_REFUSED_FOR_OPEN)
    if fill == "continuous":
        refused |= _REFUSED_FOR_CONTINUOUS
    for name, why in refused.items():
        value = getattr(options, name)
        if value is not None and is_set(options, name):
            return f"fill={fill!r} and {name}={value!r} do not go together: {why}"
    if sets_windows(options):
        return f"fill={fill!r} has one window for all levels; leave it out of the queue policies"
    return None


def refused_mix(options: Options) -> str | None:
    """Returns which two options can't be combined, and why; None if all can."""
    for first, second, why, meets in _REFUSED:
        if meets(options):
            values = (
                f"{first}={getattr(options, first)!r} and {second}={getattr(options, second)!r}"
            )
            return f"{values} do not go together: {why}"
    return None
