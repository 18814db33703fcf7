"""What a client has sent, until it is handled: in turns, and by its connection's task.

To handle it may have to wait, for the application or for the client itself, so it is handled in a
task. And it may take long, so connections take turns; see `Turns`. Both cost more than a small
message for an application which takes it at once. So where that is all that was received, a task
that all connections share passes it on, as it makes the calls of HTTP/1.1. Of each connection it
passes on one message at a time, and it makes way for others after some calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hypercorn.events import RawData

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from shoal.http.server.shared import Shared
    from shoal.http.server.sockets.tls import TlsTransport
    from shoal.http.server.sockets.transport import Transport
    from shoal.http.server.streams.outlet import Outlet
    from shoal.http.server.streams.protocol import StreamProtocol

_MOST_UNREAD: Final = 2**16
# How long it may take to handle what is handled in one turn. Small frames take a hundred times as
# long as large ones of the same size.
_TURN_S: Final = 0.001
_LEAST_HANDLED: Final = 2**10
_MOST_HANDLED: Final = 2**16


class Received:
    """What one client has sent.

    Invariant: one part of it is handled at a time, in the order in which they came.

    Args:
        shared: The state of the address.
        transport: The client's socket.
        connection: The connection.
        got_turn: Called when the connection's task `has_turn`.
        was_handled: Called when a part was handled.

    Attributes:
        has_turn: Whether the connection's task may handle some of it.
    """

    def __init__(
        self,
        shared: Shared,
        transport: Transport | TlsTransport,
        connection: Outlet,
        got_turn: Callable[[], object],
        was_handled: Callable[[], object],
    ) -> None:
        self._shared = shared
        self._transport = transport
        self._connection = connection
        self._got_turn = got_turn
        self._was_handled = was_handled
        self._data = bytearray()
        # Passes on a message that no task has been switched to for yet.
        self._in_hand: Callable[[], Awaitable[None] | None] | None = None
        self._is_in_line = False
        self._is_busy = True  # with a part, or with the start of the protocol
        self._is_over = False
        self._at_once = 2**12  # bytes
        self._protocol: StreamProtocol
        self.has_turn = False

    @property
    def is_handled(self) -> bool:
        """Whether all of it was handled."""
        return not (self._data or self._is_busy)

    @property
    def is_waiting(self) -> bool:
        """Whether a part of it waits to be handled."""
        return bool(self._data) or self._in_hand is not None

    def begin(self, protocol: StreamProtocol) -> None:
        """Begins to handle it, once the protocol has started."""
        self._protocol = protocol
        self._go_on()

    def end(self) -> None:
        """Discards what is not handled yet, and all that comes."""
        self._is_over = True
        self._data.clear()
        self._in_hand = None
        self.has_turn = False

    def forget(self) -> None:
        """Drops what refers to the connection, which has ended; a turn may still come."""
        for name in ("_connection", "_transport", "_protocol", "_got_turn", "_was_handled"):
            vars(self).pop(name, None)

    def add(self, data: bytes) -> None:
        """Adds what has just come."""
        if self._is_over:
            return
        if not (self._data or self._is_busy):
            self._in_hand = self._protocol.handle_now(data)
            if self._in_hand is not None:
                self._is_busy = True
                self._connection.soon(self._pass_on)
                return
        self._data += data
        if len(self._data) >= _MOST_UNREAD:
            self._transport.pause()
        self._line_up()

    async def handle_some(self) -> None:
        """Handles a part, in a turn."""
        self.has_turn = False
        self._is_busy = True
        size = self._at_once
        data = bytes(self._data[:size])
        del self._data[:size]
        if not self._data:
            self._transport.resume()
        began = self._shared.timeouts.now()
        await self._protocol.handle(RawData(data))
        took_s = self._shared.timeouts.now() - began
        if took_s > _TURN_S:
            self._at_once = max(size // 2, _LEAST_HANDLED)
        elif len(data) == size and 2 * took_s < _TURN_S:
            self._at_once = min(2 * size, _MOST_HANDLED)
        self._go_on()

    def _pass_on(self) -> Coroutine[Any, Any, None] | None:
        """Passes on a message, in a task that connections share."""
        pass_on, self._in_hand = self._in_hand, None
        try:
            rest = None if pass_on is None else pass_on()
        except BaseException:
            self._connection.abort()
            raise
        if rest is not None:
            return self._pass_on_rest(rest)
        self._go_on()
        return None

    async def _pass_on_rest(self, rest: Awaitable[None]) -> None:
        await rest
        self._go_on()

    def _go_on(self) -> None:
        self._is_busy = False
        if not self._is_over:
            self._line_up()
            self._was_handled()

    def _line_up(self) -> None:
        """Waits for a turn, unless it does so already, or must not yet."""
        if self._data and not (self._is_in_line or self.has_turn or self._is_busy):
            self._is_in_line = True
            self._shared.turns.take(self._take_turn)

    def _take_turn(self) -> None:
        self._is_in_line = False
        if self._data:  # what comes after the end is discarded
            self.has_turn = True
            self._got_turn()
