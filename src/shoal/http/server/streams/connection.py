"""A connection that speaks HTTP/2 or WebSocket: a task that reads, and the application's calls.

With `StreamCalls`, it is the counterpart of Hypercorn's ``TCPServer`` and ``TaskGroup``. It differs
where those allow one client to harm others:

- An error in any of its tasks ends this connection and is logged once. (Stock: it reaches the
  server's nursery and ends the process.)
- Every send has a deadline, after which the socket is closed by force. (Stock: sends are shielded
  and have no deadline, so a client that stops reading blocks its task, and the shutdown, for ever.)
- No step between "the answer is complete" and "the connection is free again" can be cancelled.
  (Stock: Starlette's streamed responses cancel themselves exactly there, and leak the connection.)
- A connection without an open stream ends with its keep-alive time, whatever frames its client
  sends. (Stock: a client that sends the preface alone, or resets its streams, keeps its place for
  ever.) A WebSocket whose client is silent is pinged, and ended if there is no answer.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.ws_stream import WSStream
from typing_extensions import override

from shoal.batching.failures.exceptions import goes_on
from shoal.http.server.http1.head import HeadParser
from shoal.http.server.http1.scope import scope_of_refused
from shoal.http.server.listeners import host_and_port, spelled
from shoal.http.server.log_errors import contained
from shoal.http.server.sockets.timeouts import Timeout, time_to_send_s
from shoal.http.server.sockets.transport import Receiver
from shoal.http.server.streams.calls import StreamCalls
from shoal.http.server.streams.http2 import Http2
from shoal.http.server.streams.outlet import SocketWork
from shoal.http.server.streams.received import Received
from shoal.http.server.streams.websocket import Http1WebSocket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.typing import (
        AppWrapper,
        ConnectionState,
        TaskGroup,
        WorkerContext,
    )

    from shoal.http.server.shared import Shared
    from shoal.http.server.sockets.tls import TlsTransport
    from shoal.http.server.sockets.transport import Transport
    from shoal.http.server.streams.protocol import StreamProtocol

_log = logging.getLogger("shoal.server")

# How long a connection may be idle whose client has let the time for a request pass.
_LAST_IDLE_S: Final = 1.0
# So many large frames are sent in one turn.
_SENT_AT_ONCE: Final = 4


class StreamConnection(Receiver):
    """Serves one client until either side closes the connection.

    Invariants: ``_finishing`` implies that the server's side of the socket is shut down: nothing
    more is sent, and input is discarded. ``_closed`` implies that and that the socket is closed.

    Args:
        shared: The state of the address.
        transport: The client's socket.
        released: Called once, when the connection has ended.

    Raises:
        OSError: The client is gone.
    """

    def __init__(
        self, shared: Shared, transport: Transport | TlsTransport, released: Callable[[], object]
    ) -> None:
        self._shared = shared
        self._transport = transport
        self._released = released
        self._peer = host_and_port(transport.peer)
        self._name = host_and_port(transport.name)
        self._received = Received(shared, transport, self, self._wake, self._was_handled)
        self._client_ended = False
        self._finishing = False
        self._closed = False
        self._waiters: list[Any] = []
        self._sent_in_turn = 0
        self._timeout = Timeout(shared.timeouts, self._expire)
        self._is_sending = False  # what is unsent has a deadline
        self._is_pinged = False
        self._idle_since: float | None = None
        self._has_late_chance = False
        self._has_given_up = False
        self._calls: StreamCalls | None = None  # from when its task runs
        self._protocol: StreamProtocol
        self._work: SocketWork | None = None  # until a WebSocket has ended

    def start_http2(self, received: bytes) -> None:
        """Begins to speak HTTP/2.

        Args:
            received: What the client has sent already.
        """

        async def begin() -> None:
            shared = self._shared
            config, context = shared.hypercorn()
            self._protocol = http2 = Http2(
                cast("AppWrapper", shared.app),
                config,
                cast("WorkerContext", context),
                cast("TaskGroup", self._calls),
                cast("ConnectionState", shared.state),
                shared.scheme == "https",
                self._peer,
                self._name,
                self._handle_event,
            )
            http2.send_timeout_s = shared.send_timeout_s
            http2.wait_to_send = self._wait_to_send
            http2.gave_up = self._give_up
            http2.parser = HeadParser(shared.options)
            http2.refused = self._note_refusal
            await http2.initiate()

        self._start(begin, received)

    def start_websocket(self, parser: HeadParser, received: bytes) -> None:
        """Begins to speak WebSocket, after a request to upgrade.

        Args:
            parser: The request.
            received: What the client has sent after it.
        """

        async def begin() -> None:
            shared = self._shared
            config, context = shared.hypercorn()
            make = partial(
                WSStream,
                cast("AppWrapper", shared.app),
                config,
                cast("WorkerContext", context),
                cast("TaskGroup", self._calls),
                shared.scheme == "https",
                self._peer,
                self._name,
            )
            self._work = SocketWork(parser.line.raw_path, self.abort)
            self._protocol = websocket = Http1WebSocket(
                make, self._handle_event, self, shared.date_now
            )
            await websocket.upgrade(parser, cast("ConnectionState", shared.state))

        self._start(begin, received)

    def drain(self) -> None:
        """Closes when no stream is open any more; a client may open one very soon."""
        if self._calls is not None and not self._closed:
            self._set_timeout()
            self._calls.drain()
            self._calls.spawn(self._close_websockets)

    def end_early(self) -> None:
        """Asks for the end of the answers; answers 503 where the application can't be asked."""
        if self._calls is not None and not self._finishing:
            self._calls.end_early()

    def abort(self) -> None:
        """Closes the socket by force; data that the client has not received is discarded."""
        self._transport.abort()
        self._close()

    @override
    def data_received(self, data: bytes) -> None:
        self._is_pinged = False
        self._received.add(data)

    @override
    def client_ended(self) -> None:
        self._client_ended = True
        if self._finishing:
            self._close()
        if self._calls is not None:
            self._calls.client_ended()
        self._wake()

    @override
    def all_sent(self) -> None:
        self._is_sending = False
        self._set_timeout()
        if self._finishing:
            self._end_sending()
        self._wake()

    @override
    def connection_lost(self) -> None:
        self._close()

    # As an `Outlet`.

    def soon(self, work: Callable[[], Awaitable[None] | None]) -> None:
        """Has a task that all connections share call a function, soon."""
        if self._work is not None:
            self._shared.workers.start(self._work, work)

    def is_blocked(self) -> bool:
        """Returns whether what was sent waits for the client."""
        return self._transport.is_blocked

    def send_now(self, data: bytes) -> None:
        """Sends data at once, on a connection that is not blocked."""
        if not self._finishing and not self._transport.send(data):
            self._set_timeout()

    # The connection's task.

    def _start(self, begin: Callable[[], Awaitable[None]], received: bytes) -> None:
        self._shared.connections.add(self)
        self._transport.receiver = self
        if received:
            self._received.add(received)
        self._shared.turns.take(partial(self._start_task, begin))

    def _start_task(self, begin: Callable[[], Awaitable[None]]) -> None:
        self._shared.context.run(self._shared.tasks.start_soon, self._run, begin)

    async def _run(self, begin: Callable[[], Awaitable[None]]) -> None:
        try:
            with self._shared.faults.contained(spelled(self._peer or "")):
                async with anyio.create_task_group() as tasks:
                    self._calls = StreamCalls(
                        self._shared, tasks, self._set_timeout, self._close, self._give_up
                    )
                    try:
                        await begin()
                        self._received.begin(self._protocol)
                        await self._read()
                        await self._disconnect()
                        self._close()
                    except BaseException:
                        # Before the application's calls are cancelled, so that they don't answer.
                        self._close()
                        raise
                    finally:
                        if self._shared.parking.leave_scopes_in(tasks.cancel_scope):
                            _log.warning("the application has left a cancel scope open")
        except BaseException as error:
            if goes_on(error, self._shared.parking):
                raise
            # Such as a cancellation that nobody has requested.
            _log.error("the application has ended a connection", exc_info=error)
        finally:
            self._close()
            self._released()
            self._calls = None
            self._received.forget()
            self._work = None
            if hasattr(self, "_protocol"):  # it has begun
                self._protocol.forget()
                del self._protocol

    async def _read(self) -> None:
        while not self._closed:
            self._set_timeout()
            if self._received.has_turn:
                await self._received.handle_some()
            elif self._client_ended and self._received.is_handled:
                return
            else:
                await self._change()

    def _was_handled(self) -> None:
        """Goes on once a part of what was received is handled."""
        self._set_timeout()
        if self._client_ended:
            self._wake()

    async def _wait_to_send(self) -> None:
        """Waits until the client takes more, and for a turn to send that."""
        while not (self._closed or self._transport.has_room()):
            self._set_timeout()
            await self._change()
        self._sent_in_turn = self._sent_in_turn % _SENT_AT_ONCE + 1
        if self._sent_in_turn > 1:
            return
        turn: list[None] = []

        def take() -> None:
            turn.append(None)
            self._wake()

        self._shared.turns.take(take)
        while not (turn or self._closed):
            await self._change()

    async def _handle_event(self, event: Event) -> None:
        # Called by the protocol. Only the first kind of event may wait, and it is shielded: see the
        # third point in the module's docstring.
        if isinstance(event, RawData):
            await self._send(event.data)
        elif isinstance(event, Closed):
            self._finish()
            await self._disconnect()

    async def _send(self, data: bytes) -> None:
        if not data or self._finishing:
            return
        if not self._transport.send(data):
            self._set_timeout()
            with anyio.CancelScope(shield=True):
                while self._transport.is_blocked and not self._closed:
                    await self._change()
        if self._closed:
            await self._disconnect()

    async def _disconnect(self) -> None:
        await self._protocol.handle(Closed())
        if self._calls is not None:
            self._calls.disconnect()

    async def _close_websockets(self) -> None:
        with contained("closing a WebSocket failed"):
            await self._protocol.close_websockets()

    def _finish(self) -> None:
        """Shuts down the server's side; goes on reading for a moment if the client still sends."""
        if self._finishing:
            return
        self._finishing = True
        self._received.end()
        if self._transport.is_blocked:
            self._transport.resume()
        elif self._protocol.is_client_done and not self._transport.has_unread():
            self._close()
        else:
            self._transport.resume()
            self._end_sending()

    def _end_sending(self) -> None:
        if self._client_ended:
            self._close()
        else:
            self._transport.end_sending()
            self._timeout.set(self._shared.linger_s)

    def _close(self) -> None:
        if not self._closed:
            self._finishing = self._closed = True
            self._received.end()
            self._timeout.close()
            self._transport.close()
            self._shared.remove(self)
            self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            self._shared.wake(waiter)

    async def _change(self) -> None:
        waiter = self._shared.new_waiter()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)

    def _set_timeout(self) -> None:
        """Sets the deadline of the current state."""
        shared = self._shared
        if self._finishing:
            return
        if self._transport.is_blocked:
            # What is added meanwhile, such as the answer to a ping, does not prolong it.
            if not self._is_sending:
                self._is_sending = True
                self._timeout.set(
                    time_to_send_s(len(self._transport.unsent), shared.send_timeout_s)
                )
        elif not self._protocol.is_idle:
            self._idle_since = None
            self._has_late_chance = False
            self._timeout.set(shared.ping_interval_s)
        else:
            # What the client sends without opening a stream does not prolong it.
            now = shared.timeouts.now()
            if self._idle_since is None:
                self._idle_since = now
            idle_s = min(shared.idle_s, _LAST_IDLE_S) if self._has_given_up else shared.idle_s
            self._timeout.set(max(0.0, self._idle_since + idle_s - now))

    def _expire(self) -> None:
        if self._transport.is_blocked:
            _log.info("closed a connection by force: its client does not read")
            self.abort()
        elif self._finishing:
            self._close()
        elif not self._protocol.is_idle:
            self._check_websockets()
        elif not self._has_late_chance and self._has_more():
            # A busy event loop may not yet have read what arrived before the deadline.
            self._has_late_chance = True
            self._timeout.set(self._shared.late_request_s)
        else:
            self._transport.send(self._protocol.farewell())
            if self._has_given_up:
                self._finish()  # the client may still send, and shall read why
            else:
                self._close()

    def _give_up(self) -> None:
        """Notes that the client has let the time for a request pass."""
        self._has_given_up = True

    def _note_refusal(self, status: int, size: int) -> None:
        """Notes that the request whose head was read last has been refused."""
        parser = cast("Http2", self._protocol).parser
        scope = {**scope_of_refused(parser, self._peer), "http_version": "2"}
        self._shared.refusals.note(scope, status, size, 0.0)

    def _has_more(self) -> bool:
        """Reads what there is; returns whether there was anything."""
        if self._transport.has_unread():
            self._transport.read_now()
        return self._received.is_waiting

    def _check_websockets(self) -> None:
        """Ends a connection whose WebSockets' client gives no sign of life when asked for one."""
        if self._calls is not None and self._protocol.has_websockets:
            if self._is_pinged and not self._has_more():
                self.abort()
                return
            self._is_pinged = True
            self._calls.spawn(self._protocol.ping)
        self._timeout.set(self._shared.ping_interval_s)
