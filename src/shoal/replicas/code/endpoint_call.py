"""A call to an endpoint from code that runs in a replica."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class CallOut:
    """A call that code in a process makes to an endpoint.

    Attributes:
        endpoint: The endpoint's name.
        args: The positional arguments.
        kwargs: The keyword arguments.
        stream: Whether to return a stream.
        method_name: The method of the backend to call.
        shard_key: Calls with equal keys go to the same backend.
        timeout_s: How long the call may take, in seconds.
        priority: The priority of the request.
        http_method: The value of ``"method"`` in the request's metadata.
        http_headers: The value of ``"headers"`` in the request's metadata.
    """

    endpoint: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    stream: bool = False
    method_name: str = "__call__"
    shard_key: str | None = None
    timeout_s: float | None = None
    priority: int | None = None
    http_method: str | None = None
    http_headers: Mapping[str, str] | None = None
