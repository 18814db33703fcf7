"""A connection that was upgraded to a WebSocket, and its one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.asgi.headers import BadRequest
from shoal.server.http1.call import error_answer
from shoal.server.http1.head import scope_of_refused
from shoal.server.streams.connection import StreamConnection
from shoal.server.streams.websocket import WebSocketCall, header

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.server.http1.head import HeadParser
    from shoal.server.shared import Shared
    from shoal.server.streams.connection import RunningCall
    from shoal.server.tls import TlsTransport
    from shoal.server.transport import Transport


class WebSocketConnection(StreamConnection):
    _is_client_done = True

    def __init__(
        self,
        shared: Shared,
        transport: Transport | TlsTransport,
        released: Callable[[], object],
        parser: HeadParser,
    ) -> None:
        super().__init__(shared, transport, released)
        self._parser = parser
        self._call: WebSocketCall | None = None
        self._is_pinged = False

    def _begin(self) -> None:
        parser = self._parser
        key = header(parser, b"sec-websocket-key")
        try:
            tokens = header(parser, b"connection").lower().split(b",")
            if not key or b"upgrade" not in [token.strip() for token in tokens]:
                raise BadRequest(400, "an incomplete WebSocket handshake")
            if header(parser, b"sec-websocket-version") != b"13":
                raise BadRequest(400, "a WebSocket version other than 13")
        except BadRequest as error:
            scope = {**scope_of_refused(parser, self.peer), "type": "websocket"}
            self.write(error_answer(error.status, error.body))
            self.shared.refusals.note(scope, error.status, len(error.body), 0.0)
            self.finish()
            return
        self._call = call = WebSocketCall(self, parser, key)
        self.calls.add(call)
        self.spawn(call.run, call.scope(parser))

    def drain(self) -> None:
        super().drain()
        if self._call is not None:
            self._call.drain()

    def data_received(self, data: bytes) -> None:
        self._is_pinged = False
        super().data_received(data)

    async def _handle(self, data: bytes) -> None:
        if self._call is not None:
            await self._call.data_received(data)

    def _turn_cost(self) -> int:
        # Clients that get responses together write together. Their small messages form one batch.
        return min(1 + len(self._received) // 64, super()._turn_cost())

    def _set_quiet_timeout(self) -> None:
        self._timeout.set(self.shared.options.ping_interval_s)

    def _quiet_too_long(self) -> None:
        """Pings the client; ends the connection if the last ping had no reply."""
        is_silent = self._is_pinged and not self._has_more()
        self._is_pinged = self._call is not None and self._call.ping()
        if is_silent and self._is_pinged:
            self.abort()
        else:
            self._set_quiet_timeout()

    def call_ended(self, call: RunningCall) -> None:
        super().call_ended(call)
        self._call = None
        self.finish()
