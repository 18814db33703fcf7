"""The common parts of all handles: their options, and how these become options of each call.

Methods as Ray Serve spells them (``handle.method``, ``result()``) raise errors that show what to
write instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import anyio

from shoal.batching.current import running_batch
from shoal.core.forming.call_options import CallOptions
from shoal.core.options.checks import seconds, whole
from shoal.serving.query import item_without_data

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from shoal.batching.calls.entry import Entry
    from shoal.serving.backends.method_batcher import MethodBatcher
    from shoal.serving.endpoints.endpoint import Endpoint


class RemoteCall(Coroutine[Any, Any, Any]):
    """The result of `remote`: a wrapper of the call's coroutine, with hints for users of Ray.

    ``result()`` raises an error that shows what to write instead. So does the repr, which appears
    in the error of ``ray.get``.

    Args:
        coroutine: The wrapped coroutine.
        endpoint: The name of the endpoint that it calls.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], endpoint: str) -> None:
        self._coroutine = coroutine
        self._endpoint = endpoint

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        """See `Coroutine.send`."""
        return self._coroutine.send(value)

    def throw(
        self,
        kind: Any,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
        /,
    ) -> Any:
        """See `Coroutine.throw`."""
        if value is None and traceback is None:
            return self._coroutine.throw(kind)
        return self._coroutine.throw(kind, value, traceback)

    def close(self) -> None:
        """See `Coroutine.close`."""
        self._coroutine.close()

    def result(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises an error that shows what to write instead.

        Raises:
            TypeError: Always.
        """
        self._coroutine.close()
        raise TypeError(
            f"a call of the endpoint {self._endpoint!r} has no result() to wait for; write\n"
            f"    {_INSTEAD}"
        )

    def __getattr__(self, name: str) -> Any:
        # For attributes that event loops read, such as whether the coroutine runs.
        return getattr(self._coroutine, name)

    def __repr__(self) -> str:
        return f"<a call of the endpoint {self._endpoint!r}, to be awaited: {_INSTEAD}>"


SYNC_CALL: Final = "handle.options(method_name={name!r}).call(...)"
"""How a blocking handle calls a method."""

_INSTEAD: Final = (
    "result = await handle.remote(...), or in code without await handle.sync.call(...)"
)


def no_such_attribute(name: str, call: str) -> AttributeError:
    """Makes the error for ``handle.method``, which is how Ray Serve calls methods.

    Args:
        name: The attribute.
        call: How this kind of handle calls a method, for the message.
    """
    if name.startswith("_"):
        return AttributeError(f"a handle has no attribute {name!r}")
    return AttributeError(
        f"a handle has no attribute {name!r}; to call the method of that name write\n"
        f"    {call.format(name=name)}",
        name=name,
    )


class Optioned(ABC):
    """The base of handles: `options` and `remote`."""

    def options(
        self,
        *,
        method_name: str | None = None,
        shard_key: str | None = None,
        http_method: str | None = None,
        http_headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        priority: int | None = None,
    ) -> Self:
        """Returns a copy of the handle with other options; see `Handle.options`."""
        given = {
            "method_name": method_name,
            "shard_key": shard_key,
            "http_method": http_method,
            "http_headers": http_headers,
            "timeout_s": timeout_s,
            "priority": priority,
        }
        return self._optioned({name: value for name, value in given.items() if value is not None})

    def remote(self, *args: Any, **kwargs: Any) -> RemoteCall:
        """Does the same as `call`; Ray Serve's name for it."""
        return RemoteCall(self.call(*args, **kwargs), self.endpoint)

    if TYPE_CHECKING:

        @property
        def endpoint(self) -> str:
            """The endpoint's name."""
            ...

    else:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_such_attribute(name, "await handle.options(method_name={name!r}).call(...)")

    @abstractmethod
    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """See `Handle.call`."""

    @abstractmethod
    def _optioned(self, given: dict[str, Any]) -> Self:
        """Returns a copy of the handle with some options changed."""


@dataclass(frozen=True)
class HandleOptions:
    """The options of a handle, for each of its calls.

    Attributes:
        method_name: The method of the backend's code to call.
        shard_key: Calls with equal keys go to the same backend.
        http_method: The value of ``"method"`` in the request's metadata.
        http_headers: The value of ``"headers"`` there.
        timeout_s: How long a call may take, in seconds.
        priority: The priority level of the request.
    """

    method_name: str = "__call__"
    shard_key: str | None = None
    http_method: str | None = None
    http_headers: Mapping[str, str] | None = None
    timeout_s: float | None = None
    priority: int | None = None

    def with_changes(self, changes: Mapping[str, Any]) -> HandleOptions:
        """Checks changes of the options, and returns the changed options.

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

    def item_without_data(self, method_batcher: MethodBatcher, entry: Entry) -> Any:
        """Returns the item of a call without arguments: an empty request, if the code takes one.

        Raises:
            TypeError: The code needs arguments.
        """
        item = item_without_data(
            method_batcher.batcher.signature, self.http_method, self.http_headers
        )
        return entry.item((), {}) if item is None else item

    def metadata(self, endpoint: str) -> Mapping[str, Any]:
        """Returns the metadata of a request.

        Args:
            endpoint: The name of the endpoint that is called.
        """
        metadata: dict[str, Any] = {"context": "python", "endpoint": endpoint}
        if self.http_method is not None or self.http_headers is not None:
            metadata["method"] = self.http_method or ""
            metadata["headers"] = self.http_headers or {}
        return metadata

    def call_options(self, metadata: Mapping[str, Any], spent_s: float = 0.0) -> CallOptions | None:
        """Returns the call's options for the batcher; None if it has none but the metadata.

        Args:
            metadata: The metadata of the request.
            spent_s: How much of its time limit the call has used up, in seconds.
        """
        timeout_s = _time_left()
        if self.timeout_s is not None:
            own_s = max(0.0, self.timeout_s - spent_s)
            timeout_s = own_s if timeout_s is None else min(own_s, timeout_s)
        if timeout_s is None and self.priority is None:
            return None
        return CallOptions(timeout_s, metadata, self.priority)


def _time_left() -> float | None:
    """Returns the time left to the running batch that makes a call, in seconds; None for no limit.

    This is the time until the last deadline of its requests: before it, a caller still waits.
    """
    batch = running_batch.get(None)
    if batch is None:
        return None
    deadlines = [request.deadline for request in batch.members]
    limits = [deadline for deadline in deadlines if deadline is not None]
    if len(limits) < len(deadlines) or not limits:
        return None
    return max(0.0, max(limits) - anyio.current_time())


async def routed(endpoint: Endpoint, handle_options: HandleOptions) -> tuple[MethodBatcher, float]:
    """Chooses the batcher for a call; returns it, and the time that took, in seconds."""
    backend = endpoint.backend_for(handle_options.shard_key)
    if (
        backend is not None
        and (method_batcher := backend.method_batchers.get(handle_options.method_name)) is not None
    ):
        return method_batcher, 0.0
    started = anyio.current_time()
    method_batcher = await endpoint.routed(
        handle_options.method_name, handle_options.shard_key, handle_options.timeout_s
    )
    return method_batcher, anyio.current_time() - started
