"""A handle in a replica's process, whose calls are made by the controller's process.

A handle that is given to a replica, as an init arg or in an item, is unpickled as this.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from shoal.errors import NoSuchName
from shoal.replicas.code.endpoint_call import CallOut
from shoal.replicas.process.child.endpoints import ParentChannel, parent_channel
from shoal.serving.clients.handle_options import (
    SYNC_CALL,
    HandleOptions,
    Optioned,
    no_such_attribute,
)
from shoal.serving.names import checked_tag

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator


running_controller: Final[ContextVar[Any]] = ContextVar("shoal.running_controller")
"""The controller to which the running code belongs."""

IS_THERE: Final = "?"
"""A method name that asks whether the endpoint exists, instead of calling it."""


def handle_again(endpoint: str, handle_options: dict[str, Any]) -> Any:
    """Makes an unpickled handle, in a replica's process or in the controller's.

    Raises:
        RuntimeError: This is neither, so calls could not be made.
    """
    channel = parent_channel.get(None)
    if channel is None:
        owner = running_controller.get(None)
        if owner is not None:
            return owner.handle(endpoint, HandleOptions(**handle_options))
        raise RuntimeError(
            f"a handle of the endpoint {endpoint!r} was unpickled outside of a replica's process; "
            "a separate program connects with shoal.connect(url)"
        )
    return ChildHandle(channel, endpoint, HandleOptions(**handle_options))


@dataclass(frozen=True)
class ChildHandle(Optioned):
    """Calls an endpoint from a replica's process; see `Handle`."""

    channel: ParentChannel
    endpoint: str  # pyright: ignore[reportIncompatibleMethodOverride] (a field is read alike)
    handle_options: HandleOptions = field(default_factory=HandleOptions)

    @property
    def sync(self) -> ChildSyncHandle:
        """A handle with blocking calls, for plain code."""
        return ChildSyncHandle(self)

    def _optioned(self, given: dict[str, Any]) -> Self:
        return replace(self, handle_options=self.handle_options.with_changes(given))

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """See `Handle.call`."""
        return await self.channel.call_async(self.call_out(args, kwargs, stream=False))

    def stream(self, *args: Any, **kwargs: Any) -> ChildStream:
        """See `Handle.stream`."""
        return ChildStream(self.channel.stream_async(self.call_out(args, kwargs, stream=True)))

    def call_out(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, stream: bool) -> CallOut:
        """Returns the call as it is sent to the controller's process."""
        handle_options = vars(self.handle_options)
        return CallOut(
            endpoint=self.endpoint, args=args, kwargs=kwargs, stream=stream, **handle_options
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return handle_again, (self.endpoint, vars(self.handle_options))


class ChildClient:
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
        is_there = await channel.call_async(CallOut(endpoint=endpoint, method_name=IS_THERE))
        return _handle_of(channel, endpoint, is_there=is_there, missing_ok=missing_ok)


class ChildSyncClient:
    """The client for plain code in a replica's process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None

    def get_handle(self, endpoint: str, missing_ok: bool = False) -> ChildSyncHandle:
        """Returns a handle of an endpoint; see `Client.get_handle`."""
        channel = parent_channel.get()
        is_there = channel.call(CallOut(endpoint=endpoint, method_name=IS_THERE))
        return _handle_of(channel, endpoint, is_there=is_there, missing_ok=missing_ok).sync


def _handle_of(
    channel: ParentChannel, endpoint: str, *, is_there: bool, missing_ok: bool
) -> ChildHandle:
    if missing_ok:
        checked_tag("an endpoint's name", endpoint)
    elif not is_there:
        raise NoSuchName(f"there is no endpoint {endpoint!r}")
    return ChildHandle(channel, endpoint, HandleOptions())


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
        self._channel = handle.channel

    @property
    def endpoint(self) -> str:
        """The endpoint's name."""
        return self._handle.endpoint

    @property
    def sync(self) -> Self:
        """This handle."""
        return self

    def options(self, **options: Any) -> ChildSyncHandle:
        """See `Handle.options`."""
        return self._handle.options(**options).sync

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Makes a call, and blocks until it is answered."""
        return self._channel.call(self._handle.call_out(args, kwargs, stream=False))

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Does the same as `call`; Ray Serve's name for it."""
        return self.call(*args, **kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> ChildSyncStream:
        """Makes a call that is answered by a stream: ``with ... as stream: for r in stream``."""
        return ChildSyncStream(
            self._channel.stream(self._handle.call_out(args, kwargs, stream=True))
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_such_attribute(name, SYNC_CALL)


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
