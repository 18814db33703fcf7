"""The order of requests: ranks, the lowest first.

Ageing needs no reordering. A request's level improves by one for each ``priority_aging_s`` that it
has waited, so of two requests the one with the lower ``arrived_at + level * priority_aging_s`` is
ahead at any time. The order does not change while they wait, so a heap can keep it. A delayed
request is ranked as if it had arrived when it was delayed, one level lower.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.core.options.options import BatchOptions
    from shoal.core.request import Request

    Rank = Callable[[Request], Any]


def rank_of(options: BatchOptions) -> Rank | None:
    """Returns the function that ranks requests; None if they are in order of arrival."""
    by_deadline = options.order == "deadline"
    if options.priority_levels == 1 and not by_deadline and not _may_delay(options):
        return None
    aging_s = options.priority_aging_s
    if aging_s is None or aging_s == math.inf:
        return _by_level_then_deadline if by_deadline else _by_level
    return partial(_aged_deadline if by_deadline else _aged, aging_s)


def _may_delay(options: BatchOptions) -> bool:
    policies = [*options.queue_policies.values(), options.default_queue_policy]
    return any(policy is not None and policy.timeout_action == "delay" for policy in policies)


def _by_level(request: Request) -> tuple[int, bool]:
    asked = request.options
    assert asked is not None
    return asked.priority, asked.delayed_at is not None


def _by_level_then_deadline(request: Request) -> tuple[int, bool, float]:
    asked = request.options
    assert asked is not None
    due = math.inf if asked.due is None else asked.due
    return asked.priority, asked.delayed_at is not None, due


def _aged(aging_s: float, request: Request) -> float:
    asked = request.options
    assert asked is not None
    if asked.delayed_at is None:
        return request.arrived_at + asked.priority * aging_s
    return asked.delayed_at + (asked.priority + 1) * aging_s


def _aged_deadline(aging_s: float, request: Request) -> float:
    asked = request.options
    assert asked is not None
    due = request.arrived_at + aging_s if asked.due is None else asked.due
    if asked.delayed_at is None:
        return due + (asked.priority - 1) * aging_s
    return max(due, asked.delayed_at + aging_s) + asked.priority * aging_s
