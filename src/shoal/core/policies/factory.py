"""Makes the rule that forms batches from a batcher's options."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from shoal.core.options.records import SAME
from shoal.core.policies.adaptive import AdaptiveRule
from shoal.core.policies.buckets import Buckets
from shoal.core.policies.ranked import Ranked, rank_of
from shoal.core.policies.rule import Guarded, SizeOrWait
from shoal.core.policies.sizing import Window, sizing_of
from shoal.core.policy import BatchPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.core.latency_model import LatencyModel
    from shoal.core.options.options import BatchOptions
    from shoal.core.policies.rule import Rule


def distinguishes_requests(options: BatchOptions) -> bool:
    """Returns whether the rule distinguishes requests, so that each needs its own record."""
    return options.policy is not None or not _is_plain(options)


def may_wait(options: BatchOptions) -> bool:
    """Returns whether a request may wait for a batch to fill while a slot is free."""
    policies = [*options.queue_policies.values(), options.default_queue_policy]
    return (
        options.batch_wait_timeout_s != 0
        or (regathers(options) and options.use_scope_deadline)
        or options.idle_timeout_s is not None
        or options.adaptive is not None
        or options.policy is not None
        or any(p is not None and p.batch_wait_timeout_s is not SAME for p in policies)
    )


def regathers(options: BatchOptions) -> bool:
    return (
        options.regather
        and options.adaptive is None
        and options.policy is None
        and options.bucket_by is None
        and options.priority_mixing == "merge"
    )


def adaptive_of(options: BatchOptions, model: LatencyModel) -> AdaptiveRule | None:
    """Returns None if the options fix sizes and waits."""
    if options.adaptive is None:
        return None
    return AdaptiveRule(options.adaptive, model, options.batch_limit.cost, options.slots)


def policy_of(options: BatchOptions, model: LatencyModel, adaptive: AdaptiveRule | None) -> Rule:
    if options.policy is not None:
        return Guarded(custom_policy(options.policy, options))
    if _is_plain(options):
        return SizeOrWait(options)
    rank = rank_of(options)
    sizing = sizing_of(options, model, adaptive)
    window = Window(options, adaptive)
    numbers = count(1)

    def one_bucket() -> Ranked:
        return Ranked(rank, sizing, window, adaptive, numbers)

    if options.bucket_by is None and options.priority_mixing == "merge":
        return one_bucket()
    return Buckets(one_bucket, rank, isolates=options.priority_mixing == "isolate")


def custom_policy(make: Callable[[BatchOptions], Any], options: BatchOptions) -> BatchPolicy:
    """Raises a `TypeError` if it is not a `BatchPolicy`."""
    made = make(options)
    if not isinstance(made, BatchPolicy):
        raise TypeError(
            f"policy must make a BatchPolicy from the options, not {made!r}; write "
            "policy=MyPolicy, a class or a function of one argument"
        )
    return made


def _is_plain(options: BatchOptions) -> bool:
    return (
        options.idle_timeout_s is None
        and options.batch_size_fn is None
        and options.bucket_by is None
        and options.allowed_batch_sizes is None
        and options.preferred_batch_sizes is None
        and options.priority_levels == 1
        and not options.queue_policies
        and options.default_queue_policy is None
        and options.order == "arrival"
        and options.adaptive is None
    )
