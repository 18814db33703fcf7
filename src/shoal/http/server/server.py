"""The server: ASGI applications on sockets, by Hypercorn's protocols, on trio or asyncio.

Composed from Hypercorn's parts as its own trio worker is, rather than by patching that worker,
because the order of the ending is the point. What starts first stops last::

    bind > start the application > listen > serve ... stop accepting > drain > end the application

- An address in use is found out before a model is loaded, and no client can connect until it is.
- Whoever the kernel has let in before the listeners close is served.
- Connections that do not end in time are closed by force, application calls and all, before the
  lifespan ends; so no call misses what the lifespan held open.
- Each address has its own places for connections, so that the operator gets in where the public
  has taken all of theirs.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio

from shoal.http.server.access_log import AccessLog
from shoal.http.server.config import Drained, ServerConfig, ServerRun, hypercorn_config
from shoal.http.server.connection import ClientConnection, Shared
from shoal.http.server.connection_limit import LimitedListener
from shoal.http.server.lifespan import Lifespan
from shoal.http.server.listeners import Listening, bind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.abc import TaskGroup
    from starlette.types import ASGIApp

    from shoal.http.server.client_socket import ClientSocket

__all__ = ["Drained", "ServerConfig", "serve"]


async def serve(
    app: ASGIApp,
    config: ServerConfig,
    *,
    shutdown: Callable[[], Awaitable[object]],
    started: Callable[[str], object] = lambda _: None,
    doors: Sequence[Listening] = (),
    lifespan: bool = True,
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
        doors: More addresses to listen at, each with an application of its own.
        lifespan: Whether to run the application's lifespan; not where it is open already.

    Returns:
        How the drain went.

    Raises:
        OSError: An address can't be listened at.
        LifespanFailed: The application did not start.

    Cancellation: Closes everything at once, without a drain.
    """
    at_all = (Listening(address=config.address, app=app, started=started), *doors)
    with ExitStack() as open_listeners:
        server = _Server(config, Lifespan(app) if lifespan else None)
        for listening in at_all:
            listener = LimitedListener(bind(listening.address), config.max_connections)
            open_listeners.callback(listener.close)
            server.add(listening, listener)
        await server.run(shutdown)
    return server.drained()


class _Door:
    """One address: who is let in there, and what they share."""

    def __init__(self, listening: Listening, listener: LimitedListener, shared: Shared) -> None:
        self.listening = listening
        self.listener = listener
        self.shared = shared

    async def accept(self, connections: TaskGroup) -> None:
        while True:
            connections.start_soon(self._serve, await self.listener.accept())

    async def announce_end(self) -> None:
        # Every answer from here on says "Connection: close", so that its client does not send the
        # next request into a connection that is about to end.
        self.shared.config.keep_alive_max_requests = 0
        await self.shared.context.terminated.set()

    def drain(self, connections: TaskGroup) -> None:
        while (client := self.listener.accept_waiting()) is not None:
            connections.start_soon(self._serve, client)
        self.listener.close()
        for connection in tuple(self.shared.connections):
            connections.start_soon(connection.drain)

    async def _serve(self, client: ClientSocket) -> None:
        try:
            await ClientConnection(self.shared, client).run()
        finally:
            self.listener.release()


class _Server:
    """One run of `serve`: its state, and the tasks that share it."""

    def __init__(self, config: ServerConfig, lifespan: Lifespan | None) -> None:
        self._config = config
        self._lifespan = lifespan
        self._doors: list[_Door] = []
        self._until_shutdown = anyio.CancelScope()
        self._draining = anyio.Event()
        self._outcome = ServerRun(lifespan)

    def add(self, listening: Listening, listener: LimitedListener) -> None:
        """Adds an address; the first is that of the application whose lifespan is run."""
        has_state = self._lifespan is not None and not self._doors
        app = listening.app
        shared = Shared(
            app=AccessLog(app) if self._config.access_log else app,
            config=hypercorn_config(self._config),
            state=self._lifespan.state if self._lifespan is not None and has_state else {},
            send_timeout_s=self._config.send_timeout_s,
        )
        self._doors.append(_Door(listening, listener, shared))

    async def run(self, shutdown: Callable[[], Awaitable[object]]) -> None:
        drain_began_at = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            if self._lifespan is not None:
                tasks.start_soon(self._lifespan.run)
            tasks.start_soon(self._wait_for, shutdown)
            async with anyio.create_task_group() as connections:
                tasks.start_soon(self._cut_off, connections)
                with self._until_shutdown:
                    await self._start()
                    if self._outcome.is_up:
                        await self._accept(connections)
                drain_began_at = anyio.current_time()
                if self._outcome.is_up:
                    self._drain(connections)
            self._outcome.took_s = anyio.current_time() - drain_began_at
            await self._outcome.end_application(self._config.graceful_timeout_s)
            tasks.cancel_scope.cancel()

    def drained(self) -> Drained:
        """Returns how it went, or raises why there was nothing; see `serve`."""
        return self._outcome.drained(self._finished())

    async def _wait_for(self, shutdown: Callable[[], Awaitable[object]]) -> None:
        await shutdown()
        # At once: what the shutdown itself has set going may be answered in the next moment.
        self._outcome.finished_before = self._finished()
        for door in self._doors:
            await door.announce_end()
        self._until_shutdown.cancel()

    async def _start(self) -> None:
        if not await self._outcome.application_started():
            return
        try:
            for door in self._doors:
                door.listener.listen()
        except OSError as error:
            self._outcome.refused = error
            return
        self._outcome.is_up = True
        for door in self._doors:
            door.listening.started(door.listener.url)

    async def _accept(self, connections: TaskGroup) -> None:
        async with anyio.create_task_group() as accepting:
            for door in self._doors:
                accepting.start_soon(door.accept, connections)

    def _drain(self, connections: TaskGroup) -> None:
        self._draining.set()
        for door in self._doors:
            door.drain(connections)

    async def _cut_off(self, connections: TaskGroup) -> None:
        try:
            await self._draining.wait()
            await anyio.sleep(self._config.graceful_timeout_s)
            self._outcome.cut = sum(door.shared.running for door in self._doors)
        finally:
            # Sends are shielded: cancelling alone would wait for their deadlines.
            for door in self._doors:
                for connection in tuple(door.shared.connections):
                    connection.abort()
        connections.cancel_scope.cancel()

    def _finished(self) -> int:
        return sum(door.shared.finished for door in self._doors)
