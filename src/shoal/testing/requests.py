"""Requests without a caller, for tests of batch policies."""

from __future__ import annotations

from contextvars import Context
from typing import TYPE_CHECKING, Any

from shoal.core.request import Request, RequestOptions, State

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping


def make_request(
    item: Any = None,
    *,
    arrived_at: float = 0.0,
    deadline: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    priority: int = 1,
    cost: float = 1,
    key: Hashable = None,
) -> Request:
    """Makes a queued request without a caller.

    Args:
        item: The item of the call.
        arrived_at: When it arrived, in seconds.
        deadline: When it must have ended, in seconds; None for no limit.
        metadata: The metadata of the call; empty by default.
        priority: Its priority level; 1 is the highest.
        cost: How much of ``max_batch_size`` it takes up.
        key: Its bucket key; all requests of one batch have equal keys.

    Returns:
        The request, to be passed to a policy's `add`.
    """
    request = Request()
    request.item = item
    request.arrived_at = arrived_at
    request.context = Context()
    request.options = RequestOptions(deadline, metadata or {}, priority, cost, key)
    request.state = State.QUEUED
    request.waiter = request.batch = request.value = request.error = None
    return request
