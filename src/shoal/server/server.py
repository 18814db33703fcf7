"""The server: ASGI applications on sockets, on trio or asyncio.

What starts first stops last::

    bind > start the application > listen > serve ... stop accepting > drain > end the application

- An address in use is detected before a model is loaded. Clients can connect once it is loaded,
  or earlier if the application answers early: it then reports that it is not ready.
- Connections that the kernel has accepted before the listeners close are served.
- Requests that do not end in time are cut off: each gets a 503, or its stream ends with an error,
  within a short time for last words. Then the open connections are closed by force, and their
  application calls cancelled, before the lifespan ends. A call can always use the resources that
  the lifespan holds open.
- Each address has its own connection limit, so that the operator can connect when the public
  address has reached its limit.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from shoal.asgi.extensions import ConnectionCounts, CountedConnections
from shoal.asgi.headers import RequestGuard
from shoal.asgi.lifespan import AppLifespan
from shoal.loops.this_loop import parking_of_this_loop
from shoal.loops.timers import LoopTimers
from shoal.server.connection_limit import Exhaustion, LimitedListener, check_descriptors
from shoal.server.http1.connection import Http1Connection
from shoal.server.listeners import AppAddress
from shoal.server.proxies import ProxyHeaders
from shoal.server.run import Drained, Listener, WorkersFailed, address_of
from shoal.server.shared import Shared
from shoal.server.tls import TlsTransport, tls_of
from shoal.server.transport import Transport, new_poller

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Sequence
    from ssl import SSLContext

    from anyio.abc import TaskGroup
    from starlette.types import ASGIApp

    from shoal.asgi.http_options import HttpOptions
    from shoal.server.http1.head import HeadParser
    from shoal.server.run import FrontEndListener, StartFrontEnds
    from shoal.server.transport import EpollPoller, TaskPoller

__all__ = ["Drained", "serve"]

_log = logging.getLogger("shoal.server")

_ACCEPTED_AT_ONCE: Final = 64
_LOADED_AFTER_S: Final = 2.0
# How long the application's lifespan may take to end if the drain has used up its time.
_LIFESPAN_MARGIN_S: Final = 2.0


async def serve(
    app: ASGIApp,
    options: HttpOptions,
    *,
    shutdown: Callable[[], Awaitable[object]],
    on_listening: Callable[[str], object] = lambda _: None,
    extra_addresses: Sequence[AppAddress] = (),
    lifespan: bool = True,
    load_later: Callable[[], object] = lambda: None,
    accepts_at_once: int = _ACCEPTED_AT_ONCE,
    front_ends: StartFrontEnds | None = None,
    counts: ConnectionCounts | None = None,
    tls: SSLContext | None = None,
    answers_early: bool = False,
) -> Drained:
    """Serves an ASGI application until it is shut down.

    A misbehaving client ends only its own connection. No client can make the shutdown longer than
    ``graceful_timeout_s``, plus 1 second for the last words of requests that are cut off, plus 2
    seconds for the application's lifespan. An application can, if it blocks the event loop or has
    a thread that can't be interrupted.

    Args:
        app: Any ASGI 3 application.
        options: The options of the server.
        shutdown: Awaited beside the server; when it returns, the server drains and ends.
        on_listening: Called with the URL once clients can connect.
        extra_addresses: Further addresses of the application, or of the operator.
        lifespan: Whether to run the application's lifespan; False if it is open already.
        load_later: Loads modules that only later requests need, in a thread once clients can
            connect.
        accepts_at_once: How many clients are accepted in one pass of the event loop.
        front_ends: Makes the listener whose worker processes, or whose other server, speaks HTTP at
            the address of the options; None to speak HTTP here.
        counts: Counts the connections to the application; None for a new one.
        tls: The TLS configuration; None to make it from the certificate of the options, if any.
        answers_early: Whether the application answers requests while its lifespan starts.

    Raises:
        OSError: An address can't be listened at, or a certificate can't be read.
        LifespanFailed: The application did not start.
        WorkersFailed: A front end did not start.

    Cancellation: Closes everything at once, without a drain.
    """
    main = AppAddress(address=address_of(options), app=app, on_listening=on_listening)
    server = _Server(
        options,
        AppLifespan(app) if lifespan else None,
        tls or tls_of(options),
        load_later,
        accepts_at_once,
        front_ends,
        counts or ConnectionCounts(options.max_connections),
        answers_early,
    )
    exhaustion = Exhaustion()
    addresses: list[tuple[AppAddress, LimitedListener]] = []
    with ExitStack() as open_sockets:
        for at in (main, *extra_addresses):
            for number, each in enumerate(at.address.bind()):
                bound = LimitedListener(each, options.max_connections, exhaustion)
                open_sockets.callback(bound.close)
                # A name may have several addresses. Only the first is reported.
                one = at if number == 0 else replace(at, on_listening=_ignore)
                addresses.append((one, bound))
        await server.run(addresses, shutdown)
    return server.drained()


def _ignore(_url: str) -> None:
    pass


def load_stream_protocols() -> None:
    """Loads HTTP/2 and WebSocket, which takes longer than the rest of a start."""
    import_module("shoal.server.streams.http2")
    import_module("shoal.server.streams.http1_websocket")


def switch_protocol(
    shared: Shared,
    transport: Transport | TlsTransport,
    released: Callable[[], object],
    received: bytes,
    parser: HeadParser | None,
) -> None:
    """Continues a connection with WebSocket for a request to upgrade, with HTTP/2 for None."""
    try:
        from shoal.server.streams.http1_websocket import WebSocketConnection
        from shoal.server.streams.http2 import Http2Connection
    except OSError as error:  # too many open files: the next client tries again
        _log.error("can't load HTTP/2 and WebSocket: %s", error)
        raise
    if parser is None:
        Http2Connection(shared, transport, released).start(received)
    else:
        WebSocketConnection(shared, transport, released, parser).start(received)


@dataclass(eq=False)
class _OwnListener(Listener):
    """A listener whose clients this process accepts."""

    poller: EpollPoller | TaskPoller
    tls: SSLContext | None
    counts: ConnectionCounts
    accepts_at_once: int

    async def accept(self) -> None:
        while True:
            self._serve_client(await self.bound.accept())
            # Several in one pass of the event loop, since handlers may hold the loop for long.
            for _ in range(self.accepts_at_once - 1):
                client = self.bound.accept_waiting()
                if client is None:
                    break
                self._serve_client(client)

    def drain(self) -> None:
        while (client := self.bound.accept_waiting()) is not None:
            self._serve_client(client)
        self.bound.close()
        for connection in tuple(self.shared.connections):
            connection.drain()

    def _serve_client(self, client: socket.socket) -> None:
        transport = Transport(client, self.poller, self.counts)
        try:
            top = transport if self.tls is None else TlsTransport(transport, self.tls)
            Http1Connection(self.shared, top, self.bound.release, switch_protocol).start()
        except OSError:  # the client is gone
            transport.close()
            self.bound.release()


@dataclass(eq=False)
class _Server:
    options: HttpOptions
    lifespan: AppLifespan | None
    tls: SSLContext | None
    load_later: Callable[[], object]
    accepts_at_once: int
    start_front_ends: StartFrontEnds | None
    main_counts: ConnectionCounts
    answers_early: bool

    def __post_init__(self) -> None:
        self._is_listening = False
        self._is_up = False  # the application has started, and clients could connect
        self._refused: OSError | None = None  # why it can't listen at an address
        self._finished_before = 0  # requests that had finished when the shutdown began
        self.cut = 0  # requests that were cut off
        self._took_s = 0.0  # from the shutdown until the last connection had ended
        self._listeners: list[Listener] = []
        self._front_ends: list[FrontEndListener] = []  # those among them
        self._until_shutdown = anyio.CancelScope()
        self._draining = anyio.Event()
        self._parking = parking_of_this_loop()
        self._timeouts = LoopTimers(self._parking)
        self._poller = new_poller(self._parking)
        # By "main" or "admin"; then the counts that this process keeps itself.
        self._counts: dict[str, CountedConnections] = {}
        self._own_counts = {"main": self.main_counts}

    async def run(
        self,
        addresses: Sequence[tuple[AppAddress, LimitedListener]],
        shutdown: Callable[[], Awaitable[object]],
    ) -> None:
        drain_began_at = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            if self.lifespan is not None:
                tasks.start_soon(self.lifespan.run)
            tasks.start_soon(self._wait_for, shutdown)
            tasks.start_soon(self._poller.run)
            tasks.start_soon(self._timeouts.run)
            async with (
                anyio.create_task_group() as front_ends,
                anyio.create_task_group() as connections,
            ):
                for at, bound in addresses:
                    self._listeners.append(self._new_listener(at, bound, connections))
                for front_end in self._front_ends:
                    front_ends.start_soon(front_end.run)
                tasks.start_soon(self._cut_off, connections)
                with self._until_shutdown:
                    async with anyio.create_task_group() as accepting:
                        await self._start(tasks, accepting)
                drain_began_at = anyio.current_time()
                if self._is_listening:
                    self._draining.set()
                    for opened in self._listeners:
                        opened.drain()
                    await self._wait_closed()
                else:
                    front_ends.cancel_scope.cancel()
            self._took_s = anyio.current_time() - drain_began_at
            if self.lifespan is not None and self._is_up:
                left_s = self.options.graceful_timeout_s - self._took_s
                await self.lifespan.stop(max(left_s, _LIFESPAN_MARGIN_S))
            elif self.lifespan is not None and self.lifespan.failure is None:
                self.lifespan = None  # its cancellation, which Starlette reports, is no failure
            tasks.cancel_scope.cancel()

    def drained(self) -> Drained:
        """Returns the outcome; raises the error that prevented the start."""
        failure = next((one.failure for one in self._listeners if one.failure is not None), None)
        error = None if self.lifespan is None else self.lifespan.failure
        if self._is_up:
            if failure is None and error is not None:
                failure = f"{error}\n{error.details}".rstrip()
            self.cut += self._lost()
            served = self._finished() - self.cut
            return Drained(
                started=True,
                served=served,
                finished=served - self._finished_before,
                cut=self.cut,
                took_s=self._took_s,
                failure=failure,
            )
        if failure is not None:
            raise WorkersFailed(failure)
        if error is not None:
            raise error
        if self._refused is not None:
            raise self._refused
        return Drained(started=False)

    def _new_listener(
        self, at: AppAddress, bound: LimitedListener, connections: TaskGroup
    ) -> Listener:
        tls = None if at.is_admin else self.tls
        options, name = self.options, bound.bound_socket.socket.getsockname()
        if at.is_admin and isinstance(name, (str, bytes)):
            # The names are those of the public address; a page can't use the operator's socket.
            options = replace(options, allowed_hosts=(), allowed_origins=())
        shared = Shared(
            at.app,
            self.options,
            {} if self.lifespan is None or at.is_admin else self.lifespan.state,
            self._parking,
            self._timeouts,
            connections,
            "http" if tls is None else "https",
            RequestGuard(options, name),
            None if at.is_admin else ProxyHeaders.of(self.options),
            self._counts,
        )
        url = bound.bound_socket.url.replace("http:", f"{shared.scheme}:", 1)
        on_listening = partial(at.on_listening, url)
        # Further addresses of the application are served by this process, or each by its own.
        is_next = not self._front_ends or self._front_ends[0].is_for_each_address
        if self.start_front_ends is not None and is_next and not at.is_admin:
            front_end = self.start_front_ends(bound, shared, on_listening, self._shut_down)
            if isinstance(front_end, CountedConnections):
                self._counts["main"] = front_end
            self._front_ends.append(front_end)
            return front_end
        word = "admin" if at.is_admin else "main"
        counts = self._own_counts.setdefault(word, ConnectionCounts(self.options.max_connections))
        self._counts.setdefault(word, counts)
        return _OwnListener(
            bound, shared, on_listening, self._poller, tls, counts, self.accepts_at_once
        )

    async def _wait_for(self, shutdown: Callable[[], Awaitable[object]]) -> None:
        await shutdown()
        self._shut_down()

    def _shut_down(self) -> None:
        # At once: requests that the shutdown itself affects may be answered very soon.
        self._finished_before = self._finished() - self._lost()
        for listener in self._listeners:
            listener.announce_end()
        self._until_shutdown.cancel()

    async def _start(self, tasks: TaskGroup, accepting: TaskGroup) -> None:
        if self.answers_early:
            is_up = await self._listen(accepting) and await self._has_started()
        else:
            is_up = await self._has_started() and await self._listen(accepting)
        if not is_up:
            self._shut_down()
            return
        self._is_up = True
        if not self._front_ends:
            check_descriptors(self.options.max_connections)
        for listener in self._listeners:
            listener.on_listening()
        tasks.start_soon(self._load)

    async def _has_started(self) -> bool:
        return self.lifespan is None or await self.lifespan.wait_started() is None

    async def _load(self) -> None:
        # The clients that waited for the start are answered first.
        await anyio.sleep(_LOADED_AFTER_S)
        for load in (load_stream_protocols, self.load_later):
            try:
                await anyio.to_thread.run_sync(load)
            except Exception as error:
                _log.error("can't load a part of the server: %s; a request will load it", error)

    async def _listen(self, accepting: TaskGroup) -> bool:
        try:
            for listener in self._listeners:
                await listener.open()
        except OSError as error:
            self._refused = error
            return False
        self._is_listening = True
        for listener in self._listeners:
            accepting.start_soon(listener.accept)
        return True

    async def _wait_closed(self) -> None:
        for listener in self._listeners:
            await listener.shared.wait_closed()

    async def _cut_off(self, connections: TaskGroup) -> None:
        """Ends calls that do not end in time, after a moment to send their clients an error."""
        # Cancelled once the last connection has closed, or with the server, whose idle connections
        # have no task that would close them.
        try:
            await self._draining.wait()
            await anyio.sleep(self.options.graceful_timeout_s)
            self.cut = sum(listener.shared.running for listener in self._listeners)
            for listener in self._listeners:
                listener.shared.end_early()
            with anyio.move_on_after(Shared.last_words_s):
                await self._wait_closed()
        finally:
            for listener in self._listeners:
                listener.abort()
        connections.cancel_scope.cancel()

    def _finished(self) -> int:
        return sum(listener.shared.calls_finished for listener in self._listeners)

    def _lost(self) -> int:
        return sum(listener.lost for listener in self._listeners)
