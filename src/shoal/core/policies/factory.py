"""Makes the rule that forms batches from a batcher's options."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

from shoal.core.options.mixes import is_set, sets_windows
from shoal.core.policies.adaptive import AdaptiveRule
from shoal.core.policies.buckets import Buckets
from shoal.core.policies.homes import preferences_of
from shoal.core.policies.ranked import Ranked, rank_of
from shoal.core.policies.rule import Guarded, SizeOrWait
from shoal.core.policies.sizing import filling_of
from shoal.core.policy import BatchPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.core.latency_model import LatencyModel
    from shoal.core.options.options import BatchOptions
    from shoal.core.policies.rule import Rule
    from shoal.core.replicas.members import Members


_DISTINGUISHING: Final = (
    *("idle_timeout_s", "batch_size_fn", "bucket_by", "allowed_batch_sizes", "adaptive"),
    *("preferred_batch_sizes", "priority_levels", "queue_policies", "default_queue_policy"),
    *("order", "policy", "sticky_load_factor", "models"),
)
_WAITING: Final = ("batch_wait_timeout_s", "idle_timeout_s", "adaptive", "policy")
_NOT_REGATHERED: Final = (
    "adaptive",
    "policy",
    "bucket_by",
    "priority_mixing",
    "sticky_load_factor",
    "models",
)


def distinguishes_requests(options: BatchOptions) -> bool:
    """Returns whether the rule distinguishes requests, so that each needs its own record."""
    return any(is_set(options, name) for name in _DISTINGUISHING)


def may_wait(options: BatchOptions) -> bool:
    """Returns whether a request may wait for a batch to fill while a slot is free."""
    return (
        any(is_set(options, name) for name in _WAITING)
        or (regathers(options) and options.use_scope_deadline)
        or sets_windows(options)
    )


def regathers(options: BatchOptions) -> bool:
    return options.regather and not any(is_set(options, name) for name in _NOT_REGATHERED)


def adaptive_of(options: BatchOptions, model: LatencyModel) -> AdaptiveRule | None:
    """Returns None if the options fix sizes and waits."""
    if options.adaptive is None:
        return None
    return AdaptiveRule(options.adaptive, model, options.batch_limit.cost, options.slots)


def policy_of(
    options: BatchOptions,
    model: LatencyModel,
    adaptive: AdaptiveRule | None,
    members: Members[Any],
) -> Rule:
    if options.policy is not None:
        return Guarded(custom_policy(options.policy, options))
    if not distinguishes_requests(options):
        return SizeOrWait(options)
    rank = rank_of(options)
    filling = filling_of(options, model, adaptive)
    numbers = count(1)

    def one_bucket() -> Ranked:
        return Ranked(rank, filling, numbers)

    isolates = options.priority_mixing == "isolate"
    homes = preferences_of(options, members)
    if options.bucket_by is None and not isolates and homes is None:
        return one_bucket()
    return Buckets(one_bucket, rank, homes, isolates=isolates)


def custom_policy(make: Callable[[BatchOptions], Any], options: BatchOptions) -> BatchPolicy:
    made = make(options)
    if not isinstance(made, BatchPolicy):
        raise TypeError(
            f"policy must make a BatchPolicy from the options, not {made!r}; write "
            "policy=MyPolicy, a class or a function of one argument"
        )
    return made
