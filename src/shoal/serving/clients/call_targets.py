"""What the calls of a handle ask for, and where that leads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio

from shoal.batching.current import running_batch
from shoal.core.forming.call_options import Wishes
from shoal.core.options.checks import seconds, whole
from shoal.serving.query import item_without_data

if TYPE_CHECKING:
    from shoal.batching.calls.entry import Entry
    from shoal.serving.backends.method_batcher import Line
    from shoal.serving.endpoints.endpoint import Endpoint


@dataclass(frozen=True)
class Asked:
    """What the calls of a handle ask for.

    Attributes:
        method_name: Which method of the backend's code to call.
        shard_key: Calls with equal keys go to the same backend.
        http_method: What the code finds in the request's metadata as ``"method"``.
        http_headers: What it finds there as ``"headers"``.
        timeout_s: How long a call may take, in seconds.
        priority: Its level.
    """

    method_name: str = "__call__"
    shard_key: str | None = None
    http_method: str | None = None
    http_headers: Mapping[str, str] | None = None
    timeout_s: float | None = None
    priority: int | None = None

    def with_changes(self, changes: Mapping[str, Any]) -> Asked:
        """Checks what is named, and lays it over this.

        Raises:
            TypeError: A value has the wrong type.
            ValueError: A value is out of its range.
        """
        given = dict(changes)
        for name in ("method_name", "shard_key", "http_method"):
            if name in given and not isinstance(given[name], str):
                raise TypeError(f"{name} must be text, not {given[name]!r}")
        if "http_headers" in given and not isinstance(given["http_headers"], Mapping):
            raise TypeError(f"http_headers must be a mapping, not {given['http_headers']!r}")
        if "timeout_s" in given:
            given["timeout_s"] = seconds("timeout_s", given["timeout_s"])
        if "priority" in given:
            given["priority"] = whole("priority", given["priority"], least=1)
        return replace(self, **given)

    def item_without_data(self, line: Line, entry: Entry) -> Any:
        """Returns the item of a call without arguments: an empty request, for code that takes one.

        Raises:
            TypeError: The code needs arguments.
        """
        item = item_without_data(line.batcher.signature, self.http_method, self.http_headers)
        return entry.item((), {}) if item is None else item

    def metadata(self, endpoint: str) -> Mapping[str, Any]:
        """Returns what the code finds in the request's metadata.

        Args:
            endpoint: The name of the endpoint that is called.
        """
        metadata: dict[str, Any] = {"context": "python", "endpoint": endpoint}
        if self.http_method is not None or self.http_headers is not None:
            metadata["method"] = self.http_method or ""
            metadata["headers"] = self.http_headers or {}
        return metadata

    def wishes(self, metadata: Mapping[str, Any], spent_s: float = 0.0) -> Wishes | None:
        """Returns what the engine is asked for beside the metadata; None for nothing.

        Args:
            metadata: What the code finds in the request's metadata.
            spent_s: How much of its time a call has used up, in seconds.
        """
        timeout_s = _time_left()
        if self.timeout_s is not None:
            own_s = max(0.0, self.timeout_s - spent_s)
            timeout_s = own_s if timeout_s is None else min(own_s, timeout_s)
        if timeout_s is None and self.priority is None:
            return None
        return Wishes(timeout_s, metadata, self.priority)


def _time_left() -> float | None:
    """Returns how long the batch that makes a call may take yet, in seconds; None for no limit.

    That is until the last of its deadlines: before it, somebody waits for what the call is for.
    """
    batch = running_batch.get(None)
    if batch is None:
        return None
    deadlines = [request.deadline for request in batch.members]
    limits = [deadline for deadline in deadlines if deadline is not None]
    if len(limits) < len(deadlines) or not limits:
        return None
    return max(0.0, max(limits) - anyio.current_time())


async def routed(endpoint: Endpoint, asked: Asked) -> tuple[Line, float]:
    """Chooses where a call goes; returns that, and how long it took, in seconds."""
    backend = endpoint.backend_for(asked.shard_key)
    if backend is not None and (line := backend.lines.get(asked.method_name)) is not None:
        return line, 0.0
    started = anyio.current_time()
    line = await endpoint.routed(asked.method_name, asked.shard_key, asked.timeout_s)
    return line, anyio.current_time() - started
