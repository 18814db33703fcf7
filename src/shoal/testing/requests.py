"""Requests without a caller, for tests of rules that form batches."""

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
    """Makes a request as it is when it waits in line, but that no caller waits for.

    Args:
        item: What the caller passed.
        arrived_at: When it came, in seconds.
        deadline: When it must have ended, in seconds; None for never.
        metadata: What the caller said about it; nothing by default.
        priority: Its level; 1 is the highest.
        cost: How much of ``max_batch_size`` it takes up.
        key: What the requests of one batch must have in common.

    Returns:
        The request; give it to a policy's `add`.
    """
    request = Request()
    request.item = item
    request.arrived_at = arrived_at
    request.context = Context()
    request.options = RequestOptions(deadline, metadata or {}, priority, cost, key)
    request.state = State.QUEUED
    request.waiter = request.batch = request.value = request.error = None
    return request
