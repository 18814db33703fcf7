"""A connection that speaks HTTP/2 or WebSocket: its socket, its deadlines, and its tasks.

One task reads, and each call of the application has a task, all in a task group that ends with the
connection. An error in any of them ends only this connection, and is logged once.

- The reading task handles some of the received data, in turns with other connections. It never
  waits for the application of a single stream, so that no stream holds up the others.
- Every state has a deadline: a send that the client does not read, an idle connection (even if its
  client sends frames without opening a stream), and the end. A silent WebSocket is pinged, and
  ended if there is no reply.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from shoal.loops.parking import Bell
from shoal.server.listeners import address_text, host_and_port
from shoal.server.timeouts import Timeout, time_to_send_s
from shoal.server.transport import Receiver

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from anyio.abc import TaskGroup

    from shoal.server.shared import Shared
    from shoal.server.tls import TlsTransport
    from shoal.server.transport import Transport

_log = logging.getLogger("shoal.server")

# How long a connection may be idle if its client has let a request time out.
_LAST_IDLE_S: Final = 1.0
_SENT_AT_ONCE: Final = 4  # large frames in one turn
_MOST_UNREAD: Final = 2**16
# How long handling data may take in one turn. Small frames take a hundred times as long as large
# frames with the same total size.
_TURN_S: Final = 0.001
_LEAST_HANDLED: Final = 2**10
_MOST_HANDLED: Final = 2**16
_MOST_COST: Final = 16  # of a turn


class RunningCall(Protocol):
    def disconnected(self) -> None: ...

    def end_early(self) -> None: ...

    def drain(self) -> None: ...

    def ping(self) -> bool: ...


class StreamConnection(Receiver):
    _is_client_done = False  # the client may send more than messages of its WebSocket

    def __init__(
        self, shared: Shared, transport: Transport | TlsTransport, released: Callable[[], object]
    ) -> None:
        self.shared = shared
        self._transport = transport
        self._released = released
        self.peer = host_and_port(transport.peer)
        self.name = host_and_port(transport.name)
        self.calls: set[RunningCall] = set()
        self._tasks: TaskGroup | None = None
        self._received = bytearray()
        self._at_once = 2**12  # bytes
        self._client_ended = False
        # Invariants: `_finishing` implies that the server's side of the socket is shut down:
        # nothing more is sent, and input is discarded. `_closed` implies `_finishing`, and that
        # the socket is closed.
        self._finishing = False
        self._closed = False
        self._bell = Bell(shared.parking)
        self._room = anyio.Lock(fast_acquire=True)
        self._sent_in_turn = 0
        self._timeout = Timeout(shared.timeouts, self._expire)
        self._is_sending = False  # unsent data has a deadline
        self._is_pinged = False
        self._idle_since: float | None = None
        self._has_late_chance = False
        self._has_timed_out = False

    def start(self, received: bytes) -> None:
        self.shared.connections.add(self)
        self._transport.receiver = self
        self._received += received
        self.shared.turns.take(partial(self.shared.start_task, self))

    def drain(self) -> None:
        """Closes when no stream is open any more; a client may open one very soon."""
        if self._tasks is not None and not self._closed:
            self._set_timeout()
            for call in tuple(self.calls):
                call.drain()

    def end_early(self) -> None:
        if not self._finishing:
            for call in tuple(self.calls):
                call.end_early()

    def abort(self) -> None:
        self._transport.abort()
        self.close()

    # Reports of the transport.

    def data_received(self, data: bytes) -> None:
        self._is_pinged = False
        if not self._finishing:
            self._received += data
            if len(self._received) >= _MOST_UNREAD:
                self._transport.pause()
            self._bell.ring()

    def client_ended(self) -> None:
        self._client_ended = True
        if self._finishing:
            self.close()
        self._bell.ring()

    def all_sent(self) -> None:
        self._is_sending = False
        self._set_timeout()
        if self._finishing:
            self._end_sending()
        self._bell.ring()

    def connection_lost(self) -> None:
        self.close()

    # Methods that a protocol defines.

    @abstractmethod
    def _begin(self) -> None:
        pass

    @abstractmethod
    async def _handle(self, data: bytes) -> None:
        pass

    @abstractmethod
    def _input_ended(self) -> None:
        """Handles the end of the client's input, after all of it was handled."""

    def _farewell(self) -> bytes:
        """Returns the bytes to send before an idle connection is closed."""
        return b""

    @property
    @abstractmethod
    def _is_idle(self) -> bool:
        """Whether no stream is open."""

    def _turn_cost(self) -> int:
        return _MOST_COST

    # Methods that a protocol uses.

    @property
    def is_closed(self) -> bool:
        return self._finishing

    @property
    def is_blocked(self) -> bool:
        return self._transport.is_blocked

    def write(self, data: bytes) -> None:
        if data and not self._finishing and not self._transport.send(data):
            self._set_timeout()

    async def unblocked(self) -> None:
        while self._transport.is_blocked and not self._closed:
            await self._bell.change()

    async def room(self) -> None:
        """Waits until the client takes a large frame, and for a turn to send it."""
        async with self._room:
            while not (self._closed or self._transport.has_room()):
                self._set_timeout()
                await self._bell.change()
            self._sent_in_turn = self._sent_in_turn % _SENT_AT_ONCE + 1
            if self._sent_in_turn == 1:
                await self._turn(_MOST_COST)

    def spawn(self, func: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
        assert self._tasks is not None
        # Not in the context of the caller, where code of the application may have run.
        self.shared.context.run(self._tasks.start_soon, func, *args)

    def request_timed_out(self) -> None:
        self._has_timed_out = True

    def finish(self) -> None:
        """Shuts down the server's side; reads on for a moment if the client still sends."""
        if self._finishing:
            return
        self._finishing = True
        self._received.clear()
        if self._transport.is_blocked:
            self._transport.resume()
        elif self._is_client_done and not self._transport.has_unread():
            self.close()
        else:
            self._transport.resume()
            self._end_sending()

    def call_ended(self, call: RunningCall) -> None:
        self.calls.discard(call)

    # The reading task.

    async def run(self) -> bool:
        with self.shared.faults.contained(address_text(self.peer or "")):
            async with anyio.create_task_group() as self._tasks:
                try:
                    if not self._closed:
                        self._begin()
                    await self._read()
                except BaseException:
                    # Before the calls are cancelled, so that they don't answer.
                    self.close()
                    raise
        return True

    def ended(self, *, is_reusable: bool) -> None:
        del is_reusable  # it has closed
        self.close()
        self._tasks = None
        self._released()

    async def _read(self) -> None:
        while not self._closed:
            self._set_timeout()
            if self._received:
                await self._turn(self._turn_cost())
                await self._handle_some()
            elif self._client_ended:
                self._input_ended()
                self._close_socket()
            else:
                await self._bell.change()

    async def _handle_some(self) -> None:
        """Handles as much of the received data as one turn allows."""
        if not self._received:  # data after the end is discarded
            return
        size = self._at_once
        data = bytes(self._received[:size])
        del self._received[:size]
        if not self._received:
            self._transport.resume()
        began = self.shared.timeouts.now()
        await self._handle(data)
        took_s = self.shared.timeouts.now() - began
        if took_s > _TURN_S:
            self._at_once = max(size // 2, _LEAST_HANDLED)
        elif len(data) == size and 2 * took_s < _TURN_S:
            self._at_once = min(2 * size, _MOST_HANDLED)
        await self.unblocked()  # nothing more is sent to a client that does not read

    async def _turn(self, cost: int) -> None:
        """Waits for a turn among all connections, or until this one is closed."""
        turn: list[None] = []

        def take() -> None:
            turn.append(None)
            self._bell.ring()

        self.shared.turns.take(take, cost)
        while not (turn or self._closed):
            await self._bell.change()

    # Ends.

    def _end_sending(self) -> None:
        if self._client_ended:
            self.close()
        else:
            self._transport.end_sending()
            self._timeout.set(self.shared.linger_s)

    def close(self) -> None:
        self._close_socket()
        for call in tuple(self.calls):
            call.disconnected()

    def _close_socket(self) -> None:
        if not self._closed:
            self._finishing = self._closed = True
            self._received.clear()
            self._timeout.close()
            self._transport.close()
            self.shared.remove(self)
            self._bell.ring()

    # Deadlines.

    def _set_timeout(self) -> None:
        shared = self.shared
        if self._finishing:
            return
        if self._transport.is_blocked:
            # Data that is added later, such as the reply to a ping, does not extend it.
            if not self._is_sending:
                self._is_sending = True
                self._timeout.set(
                    time_to_send_s(len(self._transport.unsent), shared.options.send_timeout_s)
                )
        elif not self._is_idle:
            self._idle_since = None
            self._has_late_chance = False
            self._timeout.set(shared.options.ping_interval_s)
        else:
            # Frames that the client sends without opening a stream do not extend it.
            now = shared.timeouts.now()
            if self._idle_since is None:
                self._idle_since = now
            idle_s = min(shared.idle_s, _LAST_IDLE_S) if self._has_timed_out else shared.idle_s
            self._timeout.set(max(0.0, self._idle_since + idle_s - now))

    def _expire(self) -> None:
        if self._transport.is_blocked:
            _log.info("closed a connection by force: its client does not read")
            self.abort()
        elif self._finishing:
            self.close()
        elif not self._is_idle:
            self._check_websockets()
        elif not self._has_late_chance and self._has_more():
            # A busy event loop may not have read data that arrived before the deadline.
            self._has_late_chance = True
            self._timeout.set(self.shared.late_request_s)
        else:
            self._transport.send(self._farewell())
            if self._has_timed_out:
                self.finish()  # the client may still send, and shall read why
            else:
                self.close()

    def _has_more(self) -> bool:
        """Reads available data; returns whether there was any."""
        if self._transport.has_unread():
            self._transport.read_now()
        return bool(self._received)

    def _check_websockets(self) -> None:
        """Pings WebSockets; ends the connection if the last ping had no reply."""
        is_silent = self._is_pinged and not self._has_more()
        self._is_pinged = sum(call.ping() for call in self.calls) > 0  # `sum` pings all
        if is_silent and self._is_pinged:
            self.abort()
        else:
            self._timeout.set(self.shared.options.ping_interval_s)
