"""A handle in a replica's process: its calls are made by the process that the endpoint is in.

It is what a handle becomes that is given to a replica, as an init arg or in an item.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from shoal.replicas.calling_out import CallOut, WayOut, way_out
from shoal.serving.asking import Asked

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping


def handle_in_child(endpoint: str, asked: dict[str, Any]) -> ChildHandle:
    """Makes the handle again where it was sent to.

    Raises:
        RuntimeError: This is no replica's process, so nobody could make the calls.
    """
    way = way_out.get(None)
    if way is None:
        raise RuntimeError(
            f"a handle of the endpoint {endpoint!r} was unpickled outside of a replica's process; "
            "a program of its own connects by shoal.connect(url)"
        )
    return ChildHandle(way, endpoint, Asked(**asked))


@dataclass(frozen=True)
class ChildHandle:
    """Calls an endpoint from a replica's process; see `Handle`."""

    _way: WayOut
    endpoint: str
    _asked: Asked

    @property
    def sync(self) -> ChildSyncHandle:
        """The same for plain code."""
        return ChildSyncHandle(self)

    def options(
        self,
        *,
        method_name: str | None = None,
        shard_key: str | None = None,
        http_method: str | None = None,
        http_headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        priority: int | None = None,
    ) -> ChildHandle:
        """See `Handle.options`."""
        changes = {
            "method_name": method_name,
            "shard_key": shard_key,
            "http_method": http_method,
            "http_headers": http_headers,
            "timeout_s": timeout_s,
            "priority": priority,
        }
        return replace(self, _asked=self._asked.with_changes(changes))

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """See `Handle.call`."""
        return await self._way.call_async(self.call_out(args, kwargs, stream=False))

    def remote(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """See `Handle.remote`."""
        return self.call(*args, **kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> ChildStream:
        """See `Handle.stream`."""
        return ChildStream(self._way.stream_async(self.call_out(args, kwargs, stream=True)))

    def call_out(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, stream: bool) -> CallOut:
        """Returns what is asked of the process that the endpoint is in."""
        asked = vars(self._asked)
        return CallOut(endpoint=self.endpoint, args=args, kwargs=kwargs, stream=stream, **asked)

    def __reduce__(self) -> tuple[Any, ...]:
        return handle_in_child, (self.endpoint, vars(self._asked))


class ChildStream:
    """The results of a stream, in a replica's process."""

    def __init__(self, results: AsyncGenerator[Any, None]) -> None:
        self._results = results

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._results)

    async def aclose(self) -> None:
        """Leaves the stream. Idempotent."""
        await self._results.aclose()


class ChildSyncHandle:
    """The handle for plain code in a replica's process; see `SyncHandle`."""

    def __init__(self, handle: ChildHandle) -> None:
        self._handle = handle
        self._way = handle._way

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Makes a call, and blocks until it is answered."""
        return self._way.call(self._handle.call_out(args, kwargs, stream=False))

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Does what `call` does; Ray Serve's spelling."""
        return self.call(*args, **kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> ChildSyncStream:
        """Makes a call that is answered by a stream: ``with ... as stream: for r in stream``."""
        return ChildSyncStream(self._way.stream(self._handle.call_out(args, kwargs, stream=True)))


class ChildSyncStream:
    """The results of a stream for plain code in a replica's process."""

    def __init__(self, results: Generator[Any]) -> None:
        self._results = results

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._results.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._results)
