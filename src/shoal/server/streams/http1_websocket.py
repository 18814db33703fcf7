"""A connection that was upgraded from HTTP/1.1 to a WebSocket: the `Wire` of its one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.asgi.headers import BadRequest
from shoal.server.http1.call import END, LAST_CHUNK, WITHOUT_BODY, answer_head, error_answer
from shoal.server.http1.head import scope_of_refused
from shoal.server.streams.connection import StreamConnection
from shoal.server.streams.websocket import WebSocketCall, check_handshake, header

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.server.http1.head import Headers, HeadParser
    from shoal.server.shared import Shared
    from shoal.server.streams.connection import RunningCall
    from shoal.server.tls import TlsTransport
    from shoal.server.transport import Transport

_UPGRADED: Final = b"HTTP/1.1 101 Switching Protocols"
_UPGRADE: Final = b"\r\nupgrade: WebSocket\r\nconnection: Upgrade\r\n\r\n"


class WebSocketConnection(StreamConnection):
    accepts_with = 101
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
        self._is_chunked = False

    def _begin(self) -> None:
        parser = self._parser
        key = header(parser, b"sec-websocket-key")
        try:
            tokens = header(parser, b"connection").lower().split(b",")
            if not key or b"upgrade" not in [token.strip() for token in tokens]:
                raise BadRequest(400, "an incomplete WebSocket handshake")
            check_handshake(parser)
        except BadRequest as error:
            scope = {**scope_of_refused(parser, self.peer), "type": "websocket"}
            self.write(error_answer(error.status, error.body))
            self.shared.note_refusal(scope, error.status, len(error.body))
            self.finish()
            return
        self._call = call = WebSocketCall(self, parser, key)
        self.calls.add(call)
        self.spawn(call.run, call.scope("1.1", parser))

    async def _handle(self, data: bytes) -> None:
        if self._call is not None:
            await self._call.data_received(data, 0)
            await self._call.has_room()

    def _turn_cost(self) -> int:
        # Clients that get responses together write together. Their small messages form one batch.
        return min(1 + len(self._received) // 64, super()._turn_cost())

    def _input_ended(self) -> None:
        if self._call is not None:
            self._call.input_ended()

    @property
    def _is_idle(self) -> bool:
        return False  # it ends with its only call

    def call_ended(self, call: RunningCall) -> None:
        super().call_ended(call)
        self._call = None
        self.finish()

    # The methods of a `Wire`.

    @property
    def connection(self) -> StreamConnection:
        return self

    def head(self, status: int, fields: Headers, *, is_last: bool) -> None:
        if status == self.accepts_with:
            lines = b"".join(b"\r\n%b: %b" % field for field in fields)
            self.write(_UPGRADED + lines + _UPGRADE)
            return
        lines, length, _ = answer_head(status, fields)
        framing = b"\r\nconnection: close"
        if length is None and status not in WITHOUT_BODY:
            self._is_chunked = not is_last
            framing += b"\r\n" + (
                b"content-length: 0" if is_last else b"transfer-encoding: chunked"
            )
        self.write(lines + framing + END)
        if is_last:
            self.finish()

    async def ready(self) -> None:
        await self.unblocked()

    async def send(self, data: bytes, *, is_last: bool = False) -> None:
        if self._is_chunked:
            if data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            if is_last:
                data += LAST_CHUNK
        self.write(data)
        if is_last:
            self.finish()
        else:
            await self.unblocked()

    def post(self, frame: bytes, *, is_last: bool = False) -> None:
        self.write(frame)
        if is_last:
            self.finish()

    def reset(self, *, is_clients_fault: bool = False) -> None:
        self.abort()

    def taken(self, size: int) -> None:
        """Does nothing: the connection reads more once the call `has_room`."""
