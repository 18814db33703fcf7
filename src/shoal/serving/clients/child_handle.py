"""A handle in a replica's process: its calls are made by the process that the endpoint is in.

It is what a handle becomes that is given to a replica, as an init arg or in an item.
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
"""The controller that the code which runs belongs to."""

IS_THERE: Final = "?"
"""In place of a method's name: asks whether there is such an endpoint."""


def handle_again(endpoint: str, asked: dict[str, Any]) -> Any:
    """Makes a handle again where it was sent to: a replica's process, or back in the controller's.

    Raises:
        RuntimeError: It is neither, so nobody could make the calls.
    """
    way = parent_channel.get(None)
    if way is None:
        owner = running_controller.get(None)
        if owner is not None:
            return owner.handle(endpoint, HandleOptions(**asked))
        raise RuntimeError(
            f"a handle of the endpoint {endpoint!r} was unpickled outside of a replica's process; "
            "a program of its own connects by shoal.connect(url)"
        )
    return ChildHandle(way, endpoint, HandleOptions(**asked))


@dataclass(frozen=True)
class ChildHandle(Optioned):
    """Calls an endpoint from a replica's process; see `Handle`."""

    way: ParentChannel
    endpoint: str  # pyright: ignore[reportIncompatibleMethodOverride] (a field is read alike)
    asked: HandleOptions = field(default_factory=HandleOptions)

    @property
    def sync(self) -> ChildSyncHandle:
        """The same for plain code."""
        return ChildSyncHandle(self)

    def _optioned(self, given: dict[str, Any]) -> Self:
        return replace(self, asked=self.asked.with_changes(given))

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """See `Handle.call`."""
        return await self.way.call_async(self.call_out(args, kwargs, stream=False))

    def stream(self, *args: Any, **kwargs: Any) -> ChildStream:
        """See `Handle.stream`."""
        return ChildStream(self.way.stream_async(self.call_out(args, kwargs, stream=True)))

    def call_out(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, stream: bool) -> CallOut:
        """Returns what is asked of the process that the endpoint is in."""
        asked = vars(self.asked)
        return CallOut(endpoint=self.endpoint, args=args, kwargs=kwargs, stream=stream, **asked)

    def __reduce__(self) -> tuple[Any, ...]:
        return handle_again, (self.endpoint, vars(self.asked))


class ChildClient:
    """What code in a replica's process has of the controller: the handles of its endpoints."""

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
        """The same for plain code."""
        return ChildSyncClient()

    async def get_handle(self, endpoint: str, missing_ok: bool = False) -> ChildHandle:
        """Returns what calls an endpoint; see `Client.get_handle`."""
        way = parent_channel.get()
        is_there = await way.call_async(CallOut(endpoint=endpoint, method_name=IS_THERE))
        return _handle_of(way, endpoint, is_there=is_there, missing_ok=missing_ok)


class ChildSyncClient:
    """The same for plain code."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None

    def get_handle(self, endpoint: str, missing_ok: bool = False) -> ChildSyncHandle:
        """Returns what calls an endpoint; see `Client.get_handle`."""
        way = parent_channel.get()
        is_there = way.call(CallOut(endpoint=endpoint, method_name=IS_THERE))
        return _handle_of(way, endpoint, is_there=is_there, missing_ok=missing_ok).sync


def _handle_of(
    way: ParentChannel, endpoint: str, *, is_there: bool, missing_ok: bool
) -> ChildHandle:
    if missing_ok:
        checked_tag("an endpoint's name", endpoint)
    elif not is_there:
        raise NoSuchName(f"there is no endpoint {endpoint!r}")
    return ChildHandle(way, endpoint, HandleOptions())


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
        self._way = handle.way

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
        return self._way.call(self._handle.call_out(args, kwargs, stream=False))

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Does what `call` does; Ray Serve's spelling."""
        return self.call(*args, **kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> ChildSyncStream:
        """Makes a call that is answered by a stream: ``with ... as stream: for r in stream``."""
        return ChildSyncStream(self._way.stream(self._handle.call_out(args, kwargs, stream=True)))

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
