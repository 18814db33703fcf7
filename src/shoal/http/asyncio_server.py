"""The server for programs that run on asyncio, by Hypercorn's asyncio parts.

It is for a program that serves beside its own work, on the loop that it has. What `shoal serve`
runs is `shoal.http.server`, on trio, and that is the one to expose to the public. What this one
lacks of it:

- Hypercorn's protocols run here as they are, without the mends of `shoal.http.hardening`. A client
  that misbehaves still ends only its own connection.
- A send has no deadline of the connection's; only a `shoal.App` gives up on a client that does not
  read, since it has one of its own.
- There is no limit on connections before they are accepted: those beyond it are closed at once.
- A connection is closed at once, over what its client still sends, so that a refused upload may
  not see why.

What it shares with that: an address in use is found out before an application starts, what is
under way at the shutdown may finish, and what does not in time is closed by force.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext

from shoal.http.containment import contained
from shoal.http.listeners import Bound, Listening, bind
from shoal.http.server_config import Drained, ServerConfig, hypercorn_config
from shoal.http.server_lifespan import Lifespan
from shoal.http.server_outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.abc import TaskGroup
    from hypercorn.typing import AppWrapper
    from starlette.types import ASGIApp, Receive, Scope, Send

_log = logging.getLogger("shoal.server")

_BACKLOG: Final = 1024


async def serve(
    app: ASGIApp,
    config: ServerConfig,
    *,
    shutdown: Callable[[], Awaitable[object]],
    started: Callable[[str], object] = lambda _: None,
    doors: Sequence[Listening] = (),
    lifespan: bool = True,
) -> Drained:
    """Serve an ASGI application until shut down; as `shoal.http.server.serve`, but see above.

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
    with ExitStack() as open_sockets:
        server = _Server(config, Lifespan(app) if lifespan else None)
        for listening in at_all:
            bound = bind(listening.address)
            open_sockets.callback(bound.close)
            server.add(listening, bound)
        await server.run(shutdown)
    return server.drained()


class _Door:
    """One address: what answers there, and the connections of those who came."""

    def __init__(
        self, listening: Listening, bound: Bound, config: ServerConfig, state: dict[str, Any]
    ) -> None:
        self.listening = listening
        self.bound = bound
        self.running = 0
        self.finished = 0
        self._max_connections = config.max_connections
        self._config = hypercorn_config(config)
        self._context = WorkerContext(None)
        self._state = state
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, connections: TaskGroup) -> None:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(self._writers) < self._max_connections:
                self._writers.add(writer)
                connections.start_soon(self._serve, reader, writer)
            else:
                _log.warning("refused a connection: %d are open", self._max_connections)
                writer.transport.abort()

        sock = self.bound.socket
        self._server = await asyncio.start_server(connected, sock=sock, backlog=_BACKLOG)

    def announce_end(self) -> None:
        """Has every answer from here on say that its connection ends."""
        self._config.keep_alive_max_requests = 0

    async def drain(self) -> None:
        """Accepts nobody any more, and ends connections with the answer that is under way."""
        await self._context.terminated.set()
        if self._server is not None:
            self._server.close()
        self.bound.close()

    def abort(self) -> None:
        """Closes all connections by force; one whose client does not read ends by nothing else."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contained("an error ended a connection"):
                loop = asyncio.get_running_loop()
                app = cast("AppWrapper", self._call)
                await TCPServer(app, loop, self._config, self._context, self._state, reader, writer)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _call(self, scope: Scope, receive: Receive, send: Send, *_: object) -> None:
        self.running += 1
        try:
            await self.listening.app(scope, receive, send)
        finally:
            self.running -= 1
            self.finished += 1


class _Server:
    """One run of `serve`."""

    def __init__(self, config: ServerConfig, lifespan: Lifespan | None) -> None:
        self._config = config
        self._lifespan = lifespan
        self._doors: list[_Door] = []
        self._until_shutdown = anyio.CancelScope()
        self._outcome = Outcome(lifespan)

    def add(self, listening: Listening, bound: Bound) -> None:
        """Adds an address; the first is that of the application whose lifespan is run."""
        state: dict[str, Any] = {}
        if self._lifespan is not None and not self._doors:
            state = self._lifespan.state
        self._doors.append(_Door(listening, bound, self._config, state))

    async def run(self, shutdown: Callable[[], Awaitable[object]]) -> None:
        async with anyio.create_task_group() as tasks:
            if self._lifespan is not None:
                tasks.start_soon(self._lifespan.run)
            tasks.start_soon(self._wait_for, shutdown)
            async with anyio.create_task_group() as connections:
                try:
                    with self._until_shutdown:
                        await self._start(connections)
                        if self._outcome.is_up:
                            await anyio.sleep_forever()
                    self._outcome.took_s = -anyio.current_time()
                    if self._outcome.is_up:
                        await self._drain()
                        tasks.start_soon(self._cut_off, connections)
                except BaseException:
                    self._abort()
                    raise
            self._outcome.took_s += anyio.current_time()
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
            door.announce_end()
        self._until_shutdown.cancel()

    async def _start(self, connections: TaskGroup) -> None:
        if not await self._outcome.application_started():
            return
        try:
            for door in self._doors:
                await door.listen(connections)
        except OSError as error:
            self._outcome.refused = error
            return
        self._outcome.is_up = True
        for door in self._doors:
            door.listening.started(door.bound.url)

    async def _drain(self) -> None:
        for door in self._doors:
            await door.drain()

    async def _cut_off(self, connections: TaskGroup) -> None:
        try:
            await anyio.sleep(self._config.graceful_timeout_s)
            self._outcome.cut = sum(door.running for door in self._doors)
        finally:
            self._abort()
        connections.cancel_scope.cancel()

    def _abort(self) -> None:
        for door in self._doors:
            door.abort()

    def _finished(self) -> int:
        return sum(door.finished for door in self._doors)
