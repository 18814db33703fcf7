"""From options to the rule that they ask for."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from shoal.core.policies.base import BatchPolicy
from shoal.core.policies.buckets import Buckets
from shoal.core.policies.ranked import Ranked
from shoal.core.policies.ranks import rank_of
from shoal.core.policies.size_or_wait import SizeOrWait
from shoal.core.policies.sizing import sizing_of
from shoal.core.policies.windows import window_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from shoal.core.latency_model import LatencyModel
    from shoal.core.options import BatchOptions
    from shoal.core.policies.adaptive import AdaptiveRule
    from shoal.core.request import CallOptions


def tells_requests_apart(options: BatchOptions) -> bool:
    """Says whether requests are not all alike to the rule, so that each needs its own record."""
    return options.policy is not None or not _is_plain(options)


def policy_of(
    options: BatchOptions, model: LatencyModel, adaptive: AdaptiveRule | None
) -> BatchPolicy:
    """Makes the rule that options ask for.

    Raises:
        TypeError: The user's own is no `BatchPolicy`.
    """
    if options.policy is not None:
        return users_own(options.policy, options)
    if _is_plain(options):
        return SizeOrWait(options)
    rank = rank_of(options)
    sizing = sizing_of(options, model, adaptive)
    window = window_of(options, adaptive)
    numbers = count(1)

    def one_bucket() -> Ranked:
        return Ranked(rank, sizing, window, adaptive, numbers)

    if options.bucket_by is None and options.priority_mixing == "merge":
        return one_bucket()
    isolates = options.priority_mixing == "isolate"
    return Buckets(one_bucket, _key_and_level if isolates else _key, rank)


def users_own(make: Callable[[BatchOptions], Any], options: BatchOptions) -> BatchPolicy:
    """Makes a user's own rule.

    Raises:
        TypeError: It is no `BatchPolicy`.
    """
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


def _key(asked: CallOptions) -> Hashable:
    return asked.key


def _key_and_level(asked: CallOptions) -> Hashable:
    return asked.key, asked.priority
