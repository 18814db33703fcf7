"""`start` and `connect`: the two ways to a client."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from anyio.from_thread import start_blocking_portal

from shoal.batching.decorator.decorator import open_batchers
from shoal.batching.loops.forks import keep_for_ever
from shoal.serving.clients.in_replica import client_inside
from shoal.serving.clients.remote_client import RemoteClient
from shoal.serving.clients.sync import check_may_block
from shoal.serving.controller.controller import Controller
from shoal.serving.local_servers import door
from shoal.serving.state.file import StateFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.http.app.embedded import EmbeddedServer, HttpOptions
    from shoal.serving.clients.child_handle import ChildClient
    from shoal.serving.clients.in_replica import InsideClient
    from shoal.serving.clients.sync import SyncFace


def start(
    *,
    http: HttpOptions | Mapping[str, Any] | bool | None = None,
    state: str | os.PathLike[str] | None = None,
) -> Starting:
    """Starts a controller in this program, for the length of a block.

    ::

        async with shoal.start(http={"port": 8000}) as client:
            await client.create_backend("embed", Embed, config={"max_batch_size": 64})
            await client.create_endpoint("embed", backend="embed", route="/embed")

    Leaving the block ends it: what is under way is answered, within its time limits. A program
    without an event loop writes ``with shoal.start() as client:``, and gets the client's ``.sync``
    face; the event loop is in a thread of its own then.

    Args:
        http: Whether and how to serve it over HTTP as well; see `HttpOptions`. None for not at all.
        state: A file to keep in what is declared, and to restore it from; None to keep nothing.

    Raises (on entering):
        TypeError: An option is unknown, or has the wrong type.
        StateRefused: The state file is damaged, in use, or of a newer version.
        OSError: The address can't be listened at.
        ImportError: HTTP needs the extra ``shoal[serve]``.
    """
    return Starting(http, state)


class Starting:
    """A controller that is about to be started: enter it, with or without ``async``."""

    def __init__(
        self,
        http: HttpOptions | Mapping[str, Any] | bool | None,
        state: str | os.PathLike[str] | None,
    ) -> None:
        self._http = http
        self._state = state
        self._exit = AsyncExitStack()
        self._blocking = ExitStack()
        self._is_entered = False
        self._process = os.getpid()

    async def __aenter__(self) -> Controller:
        if self._is_entered:
            raise RuntimeError("this is started once; write another async with shoal.start()")
        self._is_entered = True
        server = None if self._http is None or self._http is False else _server_of(self._http)
        state = None
        if self._state is not None:
            state = await anyio.to_thread.run_sync(StateFile.open, self._state)
            self._exit.callback(state.close)
        try:
            await self._exit.enter_async_context(open_batchers())
            controller = await self._exit.enter_async_context(Controller(state))
            if server is not None:
                make, options = server
                running = await self._exit.enter_async_context(make(controller, options))
                controller.url = running.url
        except BaseException:  # closed without it, so that no group is made of it
            await self._exit.aclose()
            raise
        return controller

    async def __aexit__(self, *exc_info: object) -> None:
        await self._exit.aclose()

    def __enter__(self) -> SyncFace:
        check_may_block("async with shoal.start(...) as client:")
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("trio"))
            client = stack.enter_context(portal.wrap_async_context_manager(self))
            self._blocking = stack.pop_all()
            self._process = os.getpid()
        return client.sync

    def __exit__(self, *exc_info: object) -> None:
        if os.getpid() != self._process:
            keep_for_ever(self._blocking)  # the controller is the parent's
        else:
            self._blocking.close()


def _server_of(http: Any) -> tuple[type[EmbeddedServer], HttpOptions]:
    try:
        from shoal.http.app.embedded import EmbeddedServer, HttpOptions
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "shoal":
            raise
        raise ImportError(
            f"serving over HTTP needs {error.name!r}: pip install 'shoal[serve]'", name=error.name
        ) from error
    return EmbeddedServer, HttpOptions.of(http)


def connect(
    url: str | None = None, *, token: str | None = None, timeout_s: float | None = 600.0
) -> RemoteClient | InsideClient | ChildClient:
    """Returns a client of a controller that runs already.

    ::

        async with shoal.connect("http://127.0.0.1:8000") as client:
            await client.set_traffic("classify", {"old": 0.9, "new": 0.1})

    A program without an event loop writes ``with shoal.connect(...) as client:``, and gets the
    client's ``.sync`` face, whose verbs block.

    Args:
        url: ``http://host:port``, ``https://...`` or ``unix:/path/to.sock``. None for the
            controller that this code runs in, if it runs in a backend; or else for the server that
            this user started by ``shoal start``.
        token: The operator's token, for a door that asks for one.
        timeout_s: How long the server may take over a verb, in seconds; None for no limit.

    Raises:
        TypeError: The URL or the token is no text.
        ValueError: The URL is none that leads to a server.
        ConnectionError: No URL was given, and no server of this user's runs.
        ModuleNotFoundError: The extra ``shoal[client]`` is not installed.
    """
    if url is None:
        inside = client_inside()
        if inside is not None:
            return inside
        path = door("default")
        if not path.exists():
            raise ConnectionError(
                f"no server answers at {path}; start one by: shoal start --detach, or in this "
                "program by: async with shoal.start() as client"
            )
        url = f"unix:{path}"
    return RemoteClient(url, token=token, timeout_s=timeout_s)
