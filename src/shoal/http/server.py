"""The server: an ASGI application on a TCP socket, by Hypercorn's protocols, on trio.

Composed from Hypercorn's parts as its own trio worker is, rather than by patching that worker,
because the order of the ending is the point. What starts first stops last::

    bind > start the application > listen > serve ... stop accepting > drain > end the application

- An address in use is found out before a model is loaded, and no client can connect until it is.
- Whoever the kernel has let in before the listener closes is served.
- Connections that do not end in time are closed by force, application calls and all, before the
  lifespan ends; so no call misses what the lifespan held open.
"""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio
from hypercorn.config import Config

from shoal.http.connection import Connection, Shared
from shoal.http.connection_limit import LimitedListener
from shoal.http.server_lifespan import Lifespan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp

# What the application's lifespan may take to end when the drain has used up its time.
LIFESPAN_MARGIN_S: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """How to serve.

    Attributes:
        host: The address to listen at: IPv4, IPv6, or a name.
        port: The port, or 0 for a free one.
        graceful_timeout_s: How long requests that are under way at shutdown may take to finish.
        send_timeout_s: How long a client may take over each 256 KiB that it is sent; one that takes
            longer is disconnected.
        max_connections: How many connections may be open at once; more wait to be accepted.
        keep_alive_timeout_s: How long a connection may be idle.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    graceful_timeout_s: float = 20.0
    send_timeout_s: float = 10.0
    max_connections: int = 1000
    keep_alive_timeout_s: float = 5.0


@dataclass(frozen=True, kw_only=True)
class Drained:
    """How a server ended.

    Attributes:
        started: Whether it ever listened; False if it was shut down while the application started.
        finished: Requests and WebSockets that were under way at shutdown, or came in its first
            moment, and ended by themselves.
        cut: Those that did not end in time.
        took_s: Seconds from the shutdown until the last connection had ended.
        failure: What went wrong with the application's lifespan after it had started, if anything.
    """

    started: bool
    finished: int = 0
    cut: int = 0
    took_s: float = 0.0
    failure: str | None = None


async def serve(
    app: ASGIApp,
    config: ServerConfig,
    *,
    shutdown: Callable[[], Awaitable[object]],
    started: Callable[[str], object] = lambda _: None,
) -> Drained:
    """Serve an ASGI application until shut down.

    One client's misbehaviour ends its own connection. Nothing that a client does, or leaves undone,
    makes the shutdown longer than ``graceful_timeout_s`` and 2 seconds for the application's
    lifespan. (An application that blocks the event loop can, and so can a thread that can't be
    interrupted.)

    Args:
        app: Any ASGI 3 application.
        config: Where and how.
        shutdown: Awaited beside the server; when it returns, the server drains and ends.
        started: Called with the URL once clients can connect.

    Returns:
        How the drain went.

    Raises:
        OSError: The address can't be listened at.
        LifespanFailed: The application did not start.

    Cancellation: Closes everything at once, without a drain.
    """
    listener = LimitedListener(_bind(config.host, config.port), config.max_connections)
    server = _Server(app, config, listener)
    try:
        await server.run(shutdown, started)
    finally:
        listener.close()
    return server.drained()


class _Server:
    """One run of `serve`: its state, and the tasks that share it."""

    def __init__(self, app: ASGIApp, config: ServerConfig, listener: LimitedListener) -> None:
        self._config = config
        self._listener = listener
        self._lifespan = Lifespan(app)
        self._shared = Shared(
            app=app,
            config=_hypercorn_config(config),
            state=self._lifespan.state,
            send_timeout_s=config.send_timeout_s,
        )
        self._until_shutdown = trio.CancelScope()
        self._draining = trio.Event()
        self._is_up = False
        self._refused: OSError | None = None
        self._finished_before = self._cut = 0
        self._took_s = 0.0

    async def run(
        self, shutdown: Callable[[], Awaitable[object]], started: Callable[[str], object]
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lifespan.run)
            nursery.start_soon(self._wait_for, shutdown)
            async with trio.open_nursery() as connections:
                nursery.start_soon(self._cut_off, connections)
                with self._until_shutdown:
                    await self._start(started)
                    while self._is_up:
                        self._spawn(await self._listener.accept(), connections)
                drain_began_at = trio.current_time()
                if self._is_up:
                    await self._drain(connections)
            self._took_s = trio.current_time() - drain_began_at
            if self._is_up:
                left_s = self._config.graceful_timeout_s - self._took_s
                await self._lifespan.stop(max(left_s, LIFESPAN_MARGIN_S))
            nursery.cancel_scope.cancel()

    def drained(self) -> Drained:
        """How it went.

        Raises:
            OSError: See `serve`.
            LifespanFailed: See `serve`.
        """
        failure = self._lifespan.failure
        if self._is_up:
            return Drained(
                started=True,
                finished=self._shared.finished - self._finished_before - self._cut,
                cut=self._cut,
                took_s=self._took_s,
                failure=None if failure is None else f"{failure}\n{failure.details}".rstrip(),
            )
        if failure is not None:
            raise failure
        if self._refused is not None:
            raise self._refused
        return Drained(started=False)

    async def _wait_for(self, shutdown: Callable[[], Awaitable[object]]) -> None:
        await shutdown()
        self._until_shutdown.cancel()

    async def _start(self, started: Callable[[str], object]) -> None:
        await self._lifespan.wait_started()
        if self._lifespan.failure is not None:
            return
        try:
            self._listener.listen()
        except OSError as error:
            self._refused = error
            return
        self._is_up = True
        started(self._listener.url)

    def _spawn(self, stream: trio.SocketStream, connections: trio.Nursery) -> None:
        connections.start_soon(self._serve_one, stream)

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        try:
            await Connection(self._shared, stream).run()
        finally:
            self._listener.release()

    async def _drain(self, connections: trio.Nursery) -> None:
        self._finished_before = self._shared.finished
        self._draining.set()
        # Every answer from here on says "Connection: close", so that its client does not send the
        # next request into a connection that is about to end.
        self._shared.config.keep_alive_max_requests = 0
        await self._shared.context.terminated.set()
        while (stream := self._listener.accept_waiting()) is not None:
            self._spawn(stream, connections)
        self._listener.close()
        for connection in tuple(self._shared.connections):
            connections.start_soon(connection.drain)

    async def _cut_off(self, connections: trio.Nursery) -> None:
        try:
            await self._draining.wait()
            await trio.sleep(self._config.graceful_timeout_s)
            self._cut = self._shared.running
        finally:
            # Sends are shielded: cancelling alone would wait for their deadlines.
            for connection in tuple(self._shared.connections):
                connection.abort()
        connections.cancel_scope.cancel()


def _bind(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A server that starts where one has just ended need not wait for its last connections.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


def _hypercorn_config(config: ServerConfig) -> Config:
    hypercorn = Config()
    hypercorn.errorlog = logging.getLogger("shoal.server")
    hypercorn.accesslog = None
    hypercorn.include_server_header = False
    hypercorn.keep_alive_timeout = config.keep_alive_timeout_s
    return hypercorn
