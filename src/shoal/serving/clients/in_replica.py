"""The client for code that runs in a backend, of the controller that the backend belongs to.

In a replica's process it makes handles whose calls the controller's process makes. A handle that is
given to a replica, as an init arg or in an item, is unpickled as one of these.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, Self

from shoal.batching.current import time_left
from shoal.errors import NoSuchName
from shoal.replicas.code.endpoint_call import IS_THERE, CallOut
from shoal.replicas.process.child.endpoints import ParentChannel, parent_channel
from shoal.replicas.threads import check_may_block
from shoal.serving.clients.given_handles import GivenHandle
from shoal.serving.clients.handles import AsyncHandle, BlockingHandle
from shoal.serving.clients.running import running_controller
from shoal.serving.names import checked_tag

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterable

    from shoal.replicas.code.endpoint_call import HandleOptions


def handle_again(endpoint: str, handle_options: HandleOptions) -> Any:
    """Makes an unpickled handle, in a replica's process or in the controller's.

    Elsewhere it looks for one of them when it is used: Ray unpickles the arguments of an actor's
    method before that can say where it runs.
    """
    is_known = parent_channel.get(None) or running_controller.get(None)
    return (handle_here if is_known else GivenHandle)(endpoint, handle_options=handle_options)


def handle_here(endpoint: str, handle_options: HandleOptions) -> Any:
    """Makes a handle for the running code, in a replica's process or in the controller's.

    Raises:
        RuntimeError: This is neither, so calls could not be made.
    """
    channel = parent_channel.get(None)
    if channel is None:
        owner = running_controller.get(None)
        if owner is not None:
            return owner.handle(endpoint, handle_options)
        raise RuntimeError(
            f"a handle of the endpoint {endpoint!r} was used outside of a replica's process; "
            "a separate program connects with shoal.connect(url)"
        )
    return ChildHandle(endpoint, channel, handle_options=handle_options)


@dataclass(frozen=True, eq=False, repr=False)
class ChildHandle(AsyncHandle):
    """Calls an endpoint from a replica's process; see `Handle`."""

    channel: ParentChannel

    @property
    def sync(self) -> ChildSyncHandle:
        """A handle with blocking calls, for plain code."""
        return ChildSyncHandle(self)

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """See `Handle.call`."""
        return await self.channel.call_async(self.call_out(args, kwargs, stream=False))

    def stream(self, *args: Any, **kwargs: Any) -> ChildStream:
        """See `Handle.stream`."""
        return ChildStream(self.channel.stream_async(self.call_out(args, kwargs, stream=True)))

    def call_out(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, stream: bool) -> CallOut:
        """Returns the call as it is sent to the controller's process."""
        options = self.handle_options
        left_s = time_left(lambda: time.monotonic() + self.channel.clock_offset)
        if left_s is not None and (options.timeout_s is None or options.timeout_s > left_s):
            options = replace(options, timeout_s=left_s)
        return CallOut(self.endpoint, args, kwargs, stream, options)

    def __reduce__(self) -> tuple[Any, ...]:
        return handle_again, (self.endpoint, self.handle_options)


class _OnlyHandles:
    """Its missing verbs raise an error that says where they are."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(f"a client has no attribute {name!r}")
            raise AttributeError(
                f"the client in a replica's process only has get_handle(), not {name!r}; to "
                "operate the server, connect to it:\n"
                "    async with shoal.connect(url) as client: ...",
                name=name,
            )


class ChildClient(_OnlyHandles):
    """The client for code in a replica's process; it only gives handles of endpoints."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    def __enter__(self) -> ChildSyncClient:
        return self.sync

    def __exit__(self, *exc_info: object) -> None:
        return None

    @property
    def sync(self) -> ChildSyncClient:
        """A client with blocking verbs, for plain code."""
        return ChildSyncClient()

    async def get_handle(self, endpoint: str, missing_ok: bool = False) -> ChildHandle:
        """Returns a handle of an endpoint; see `Client.get_handle`."""
        channel = parent_channel.get()
        is_there = await channel.call_async(CallOut(endpoint, options=IS_THERE))
        return _handle_of(channel, endpoint, is_there=is_there, missing_ok=missing_ok)


class ChildSyncClient(_OnlyHandles):
    """The client for plain code in a replica's process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None

    def get_handle(self, endpoint: str, missing_ok: bool = False) -> ChildSyncHandle:
        """Returns a handle of an endpoint; see `Client.get_handle`."""
        channel = parent_channel.get()
        is_there = channel.call(CallOut(endpoint, options=IS_THERE))
        return _handle_of(channel, endpoint, is_there=is_there, missing_ok=missing_ok).sync


def _handle_of(
    channel: ParentChannel, endpoint: str, *, is_there: bool, missing_ok: bool
) -> ChildHandle:
    if missing_ok:
        checked_tag("an endpoint's name", endpoint)
    elif not is_there:
        raise NoSuchName(f"there is no endpoint {endpoint!r}")
    return ChildHandle(endpoint, channel)


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


@dataclass(frozen=True, eq=False, repr=False)
class ChildSyncHandle(BlockingHandle):
    """The handle for plain code in a replica's process; see `SyncHandle`."""

    _handle: ChildHandle

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Makes a call, and blocks until it is answered."""
        return self._handle.channel.call(self._handle.call_out(args, kwargs, stream=False))

    def map(self, *columns: Iterable[Any], return_exceptions: bool = False) -> list[Any]:
        """Makes many calls at once, and blocks until all have ended; see `Handle.map`."""
        calls = [
            self._handle.call_out(args, {}, stream=False) for args in zip(*columns, strict=True)
        ]
        return self._handle.channel.call_all(calls, return_exceptions=return_exceptions)

    def stream(self, *args: Any, **kwargs: Any) -> ChildSyncStream:
        """Makes a call that is answered by a stream: ``with ... as stream: for r in stream``."""
        call = self._handle.call_out(args, kwargs, stream=True)
        return ChildSyncStream(self._handle.channel.stream(call))


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


class InsideClient:
    """The client of a controller in this process, for code of its backends.

    Leaving its context does not shut the controller down.

    Args:
        client: The controller.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    def __enter__(self) -> Any:
        check_may_block("async with shoal.connect() as client:")
        return self._client.sync

    def __exit__(self, *exc_info: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def client_inside() -> InsideClient | ChildClient | None:
    """Returns the client for the calling code, if that runs in a backend; None if not."""
    if parent_channel.get(None) is not None:
        return ChildClient()
    client = running_controller.get(None)
    return None if client is None else InsideClient(client)
