"""`start`, `connect` and `serve`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack

import anyio
import anyio.to_thread
from anyio import TASK_STATUS_IGNORED

from shoal.asgi.http_options import HttpOptions, ServerKeywords
from shoal.batching.current import waiting_batches
from shoal.batching.decorator.block import BatcherBlock
from shoal.core.addresses import admin_socket
from shoal.core.extras import needing
from shoal.errors import LifespanFailed, NoSuchName, WouldDeadlock
from shoal.loops.kept import KeptBlock
from shoal.replicas.code.endpoint_call import IS_THERE, CallOut, parent_channel
from shoal.replicas.threads import check_may_block
from shoal.serving.clients.handles import ChildHandle, ChildSyncHandle, running_controller
from shoal.serving.clients.remote_client import RemoteClient
from shoal.serving.controller.controller import Controller
from shoal.serving.names import checked_tag
from shoal.serving.state_file import StateFile

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Mapping

    from anyio.abc import TaskStatus
    from starlette.types import ASGIApp

    from shoal.replicas.process.child.endpoints import ParentChannel
    from shoal.serving.clients.protocol import BlockingClient


def start(
    *,
    http: HttpOptions | Mapping[str, Any] | bool | None = None,
    state: str | os.PathLike[str] | None = None,
) -> Starting:
    """Starts a controller in this program for the duration of a ``with`` block.

    ::

        async with shoal.start(http={"port": 8000}) as client:
            await client.create_backend("embed", Embed, config={"max_batch_size": 64})
            await client.create_endpoint("embed", backend="embed", route="/embed")

    Leaving the block shuts the controller down: running requests finish, within their time limits.
    A program without an event loop writes ``with shoal.start() as client:`` and gets the blocking
    client, ``client.sync``; the event loop then runs in a thread of its own. A handler of the
    controller can't leave the block: that raises `WouldDeadlock`.

    Args:
        http: The options of an HTTP server, as in `HttpOptions`, or True for the defaults; None
            for no HTTP.
        state: The state file, which stores what is declared and restores it; None to store nothing.

    Raises (on entering):
        TypeError: An option is unknown, or has the wrong type.
        StateRefused: The state file is damaged, in use, or of a newer version.
        OSError: The server can't listen at the address.
        ImportError: HTTP needs the extra ``shoal[serve]``.
    """
    return Starting(http, state)


class Starting:
    """The context manager, sync and async, that `start` returns."""

    _blocking: KeptBlock[Controller]
    _controller: Controller
    _batchers: BatcherBlock

    def __init__(
        self,
        http: HttpOptions | Mapping[str, Any] | bool | None,
        state: str | os.PathLike[str] | None,
    ) -> None:
        self._http = http
        self._state = state
        self._exit = AsyncExitStack()
        self._is_entered = False

    async def __aenter__(self) -> Controller:
        self._refuse_second_entering()
        server = None if self._http is None or self._http is False else _server_of(self._http)
        state = None
        if self._state is not None:
            state = await anyio.to_thread.run_sync(StateFile.open, self._state)
            self._exit.callback(state.close)
        try:
            self._batchers = await self._exit.enter_async_context(BatcherBlock())
            self._controller = controller = await self._exit.enter_async_context(Controller(state))
            if server is not None:
                controller.url = await self._exit.enter_async_context(server(controller))
        except BaseException:  # not passed to aclose(): it would be wrapped in a group
            await self._exit.aclose()
            raise
        return controller

    async def __aexit__(self, *exc_info: object) -> None:
        if self._runs_caller():
            raise WouldDeadlock(
                "a handler leaves the block of shoal.start() in which it runs: the block waits for "
                "the handler; leave it in another task, or when the call has returned"
            )
        await self._exit.aclose()

    def __enter__(self) -> BlockingClient:
        check_may_block("async with shoal.start(...) as client:")
        self._refuse_second_entering()
        inside = Starting(self._http, self._state)
        self._blocking = KeptBlock(inside, "trio")
        self._controller = inside._controller
        self._batchers = inside._batchers
        return self._blocking.value.sync

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._blocking.leave("shoal.start()", kind, self._runs_caller)

    def _refuse_second_entering(self) -> None:
        if self._is_entered:
            raise RuntimeError("this context manager was already entered; call shoal.start() again")
        self._is_entered = True

    def _runs_caller(self) -> bool:
        return running_controller.get(None) is self._controller or any(
            map(self._batchers.runs, waiting_batches())
        )


def _server_of(http: Any) -> Callable[[Controller], AbstractAsyncContextManager[str]]:
    with needing("serving over HTTP", "serve"):
        from shoal.embedded_server import serving_controller
    return partial(serving_controller, options=HttpOptions.of(http))


async def serve(
    app: ASGIApp,
    *,
    shutdown_trigger: Callable[[], Awaitable[object]] | None = None,
    task_status: TaskStatus[list[str]] = TASK_STATUS_IGNORED,
    **options: Unpack[ServerKeywords],
) -> None:
    """Serves an ASGI application in this event loop, trio or asyncio, until it is shut down.

    ::

        async with anyio.create_task_group() as tasks:
            urls = await tasks.start(partial(shoal.serve, app, port=8000))

    It runs the application's lifespan. A `shoal.App` turns not ready when the shutdown begins.

    Args:
        app: Any ASGI 3 application.
        shutdown_trigger: Awaited beside the server; when it returns, running requests may finish
            for ``graceful_timeout_s``, and the server ends. Without one it serves until cancelled.
        task_status: Started with the URLs where clients can connect.
        **options: The options of `HttpOptions` that are about the server: the address, limits and
            time-outs, TLS, the access log.

    Raises:
        OSError: It can't listen at the address, or can't read a certificate.
        LifespanFailed: The application did not start, or its lifespan failed.
        TypeError: An option is unknown, or has the wrong type.
        ValueError: An option is out of its range.
        ImportError: HTTP needs the extra ``shoal[serve]``.

    Cancellation: Closes all connections at once, and cancels their calls.
    """
    with needing("serving over HTTP", "serve"):
        from shoal.server.log_errors import contained
        from shoal.server.server import serve as serve_application

    async def shutdown() -> None:
        await (anyio.sleep_forever if shutdown_trigger is None else shutdown_trigger)()
        begin_drain = getattr(app, "begin_drain", None)
        if callable(begin_drain):
            with contained("begin_drain failed"):
                begin_drain()

    drained = await serve_application(
        app,
        HttpOptions.of_server(options),
        shutdown=shutdown,
        on_listening=lambda url: task_status.started([url]),
    )
    if drained.failure is not None:
        raise LifespanFailed(drained.failure.partition("\n")[0], details=drained.failure)


def connect(
    url: str | None = None, *, token: str | None = None, timeout_s: float | None = 600.0
) -> RemoteClient | InsideClient | ChildClient:
    """Returns a client of a controller that is already running.

    ::

        async with shoal.connect("http://127.0.0.1:8000") as client:
            await client.set_traffic("classify", {"old": 0.9, "new": 0.1})

    A program without an event loop writes ``with shoal.connect(...) as client:`` and gets the
    blocking client, ``client.sync``.

    Args:
        url: ``http://host:port``, ``https://...`` or ``unix:/path/to.sock``. None for the
            controller of the backend that this code runs in, or outside of a backend for the
            server that this user started with ``shoal start``.
        token: The operator's token, if the server's admin API requires one.
        timeout_s: The time limit of each request to the server, in seconds; None for no limit.

    Raises:
        TypeError: The URL or the token is not a string.
        ValueError: The URL has none of these forms.
        ConnectionError: No URL was given, and no server of this user is running, or this user has
            no directory for one.
        ModuleNotFoundError: The extra ``shoal[client]`` is not installed.
    """
    if url is None:
        inside = client_inside()
        if inside is not None:
            return inside
        path = admin_socket("default")
        if not path.exists():
            raise ConnectionError(
                f"no server answers at {path}; start one with: shoal start --detach, or in this "
                "program with: async with shoal.start() as client"
            )
        url = f"unix:{path}"
    return RemoteClient(url, token=token, timeout_s=timeout_s)


class _LeavesRunning:
    """Its block shuts nothing down."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    def __exit__(self, *exc_info: object) -> None:
        return None


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


class ChildClient(_LeavesRunning, _OnlyHandles):
    """The client in a replica's process, which only makes handles."""

    def __enter__(self) -> ChildSyncClient:
        return self.sync

    @property
    def sync(self) -> ChildSyncClient:
        return ChildSyncClient()

    async def get_handle(self, endpoint: str, missing_ok: bool = False) -> ChildHandle:
        channel: ParentChannel = parent_channel.get()
        is_there = await channel.call_async(CallOut(endpoint, options=IS_THERE))
        return _handle_of(channel, endpoint, is_there=is_there, missing_ok=missing_ok)


class ChildSyncClient(_OnlyHandles):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None

    def get_handle(self, endpoint: str, missing_ok: bool = False) -> ChildSyncHandle:
        channel: ParentChannel = parent_channel.get()
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


class InsideClient(_LeavesRunning):
    """A controller's client for code of its backends; leaving it shuts nothing down."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __enter__(self) -> Any:
        check_may_block("async with shoal.connect() as client:")
        return self._client.sync

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def client_inside() -> InsideClient | ChildClient | None:
    """Returns None if the calling code does not run in a backend."""
    if parent_channel.get(None) is not None:
        return ChildClient()
    client = running_controller.get(None)
    return None if client is None else InsideClient(client)
