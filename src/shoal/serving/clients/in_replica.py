"""The client for code of a backend, of the controller that the backend belongs to.

In a replica's process it makes handles that send their calls to the controller's process. A handle
that is passed to a replica, as an init arg or in an item, is unpickled as one of these.

A handle for a parameter that is annotated with `Handle` is made before the endpoint exists, and
before it is known where the code runs. So each call looks up the controller's own handle.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, Self

from shoal.batching.current import time_left
from shoal.errors import NoSuchName
from shoal.replicas.code.endpoint_call import IS_THERE, CallOut
from shoal.replicas.process.child.endpoints import ParentChannel, parent_channel
from shoal.replicas.threads import check_may_block
from shoal.serving.clients.handles import AsyncHandle, BlockingHandle, running_controller
from shoal.serving.names import checked_tag

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterable

    from shoal.replicas.code.endpoint_call import HandleOptions


def unpickled_handle(endpoint: str, handle_options: HandleOptions) -> Any:
    # Ray unpickles the arguments of an actor's method before the actor knows where it runs. Then
    # the handle looks up its controller when it is used.
    is_known = parent_channel.get(None) or running_controller.get(None)
    return (current_handle if is_known else DeferredHandle)(endpoint, handle_options=handle_options)


def current_handle(endpoint: str, handle_options: HandleOptions) -> Any:
    """Raises `RuntimeError` outside of a replica's process and of a controller."""
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
    channel: ParentChannel

    @property
    def sync(self) -> ChildSyncHandle:
        return ChildSyncHandle(self)

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        return await self.channel.call_async(self.call_out(args, kwargs, stream=False))

    def stream(self, *args: Any, **kwargs: Any) -> ChildStream:
        return ChildStream(self.channel.stream_async(self.call_out(args, kwargs, stream=True)))

    def call_out(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, stream: bool) -> CallOut:
        options = self.handle_options
        left_s = time_left(lambda: time.monotonic() + self.channel.clock_offset)
        if left_s is not None and (options.timeout_s is None or options.timeout_s > left_s):
            options = replace(options, timeout_s=left_s)
        return CallOut(self.endpoint, args, kwargs, stream, options)

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickled_handle, (self.endpoint, self.handle_options)


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
    """The client in a replica's process, which only makes handles."""

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
        return ChildSyncClient()

    async def get_handle(self, endpoint: str, missing_ok: bool = False) -> ChildHandle:
        channel = parent_channel.get()
        is_there = await channel.call_async(CallOut(endpoint, options=IS_THERE))
        return _handle_of(channel, endpoint, is_there=is_there, missing_ok=missing_ok)


class ChildSyncClient(_OnlyHandles):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None

    def get_handle(self, endpoint: str, missing_ok: bool = False) -> ChildSyncHandle:
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
        await self._results.aclose()


@dataclass(frozen=True, eq=False, repr=False)
class ChildSyncHandle(BlockingHandle):
    _handle: ChildHandle

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._handle.channel.call(self._handle.call_out(args, kwargs, stream=False))

    def map(self, *columns: Iterable[Any], return_exceptions: bool = False) -> list[Any]:
        calls = [
            self._handle.call_out(args, {}, stream=False) for args in zip(*columns, strict=True)
        ]
        return self._handle.channel.call_all(calls, return_exceptions=return_exceptions)

    def stream(self, *args: Any, **kwargs: Any) -> closing[Generator[Any]]:
        call = self._handle.call_out(args, kwargs, stream=True)
        return closing(self._handle.channel.stream(call))


class InsideClient:
    """A controller's client for code of its backends; leaving it shuts nothing down."""

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
    """Returns None if the calling code does not run in a backend."""
    if parent_channel.get(None) is not None:
        return ChildClient()
    client = running_controller.get(None)
    return None if client is None else InsideClient(client)


@dataclass(frozen=True, eq=False, repr=False)
class DeferredHandle(AsyncHandle):
    """A handle that looks up its controller at each use."""

    @property
    def sync(self) -> DeferredSyncHandle:
        return DeferredSyncHandle(self)

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        return await self.now().call(*args, **kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        return self.now().stream(*args, **kwargs)

    def now(self) -> Any:
        return current_handle(self.endpoint, self.handle_options)


@dataclass(frozen=True, eq=False, repr=False)
class DeferredSyncHandle(BlockingHandle):
    _handle: DeferredHandle

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._handle.now().sync.call(*args, **kwargs)

    def map(self, *columns: Iterable[Any], return_exceptions: bool = False) -> Any:
        return self._handle.now().sync.map(*columns, return_exceptions=return_exceptions)

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._handle.now().sync.stream(*args, **kwargs)
