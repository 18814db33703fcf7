"""One WebSocket, on any `Wire`: wsproto's state machine between the client and the application.

Compression is not negotiated: a message of 199 KiB can inflate to 200 MiB before its size is
checked.

Only a few messages of the client wait for the application. Later data stays unread in wsproto and
is not acknowledged to the wire, so that the client can't send much more.
"""

from __future__ import annotations

from base64 import b64encode
from collections import deque
from hashlib import sha1
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any, Final

import anyio.lowlevel
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.frame_protocol import CloseReason

from shoal.asgi.headers import FRAMING, BadRequest, length_of
from shoal.server.http1.head import scope_of
from shoal.server.log_errors import contained
from shoal.server.streams.call import AppCall
from shoal.server.timeouts import BodyTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.types import Message, Scope
    from wsproto.events import Event

    from shoal.server.http1.head import HeadParser
    from shoal.server.streams.call import Wire

# Limits of the messages that wait for the application.
_MOST_MESSAGES: Final = 16
_MOST_BYTES: Final = 2**16
# Frames that are read in one turn: one read may bring 10,000 of them.
_AT_ONCE: Final = 32
_ACCEPT: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455
_OF_THE_SERVER: Final = FRAMING | {
    *(b"content-length", b"sec-websocket-accept", b"sec-websocket-extensions"),
}


def header(parser: HeadParser, name: bytes) -> bytes:
    """Returns the values of a header as one list; empty if there is none."""
    return b",".join(value for field, value in parser.headers if field == name)


def check_handshake(parser: HeadParser) -> None:
    """Checks the version of a WebSocket handshake; raises `BadRequest`."""
    if header(parser, b"sec-websocket-version") != b"13":
        raise BadRequest(400, "a WebSocket version other than 13")


class WebSocketCall(AppCall):
    offered = (*AppCall.offered, "when_draining", "send_texts")

    def __init__(self, wire: Wire, parser: HeadParser, key: bytes = b"") -> None:
        lost = CloseReason.ABNORMAL_CLOSURE.value
        super().__init__(wire, "GET", {"type": "websocket.disconnect", "code": lost})
        self._key = key  # of the handshake; HTTP/2 has none
        offered = header(parser, b"sec-websocket-protocol").decode("ascii")
        self._subprotocols = [name.strip() for name in offered.split(",") if name.strip()]
        self._frames = Connection(ConnectionType.SERVER)
        self._is_accepted = False
        self._messages: deque[Message] = deque([{"type": "websocket.connect"}])
        self._size = 0  # bytes of these messages
        self._message: StringIO | BytesIO | None = None  # an incomplete message
        self._message_size = 0  # bytes of it
        self._timeout: BodyTimeout | None = None  # of it
        self._has_input_ended = False
        self._on_drain: Callable[[], object] | None = None

    def scope(self, version: str, parser: HeadParser) -> Scope:
        at = self._connection
        scope = scope_of(at.shared, at.peer, at.name, "websocket", version, parser)
        del scope["method"]
        scope["scheme"] = "wss" if scope["scheme"] == "https" else "ws"
        scope["subprotocols"] = self._subprotocols
        dropped = b"sec-websocket-extensions"
        scope["headers"] = [field for field in scope["headers"] if field[0] != dropped]
        scope["extensions"]["websocket.http.response"] = {}
        return scope

    # The server's side.

    @property
    def is_open(self) -> bool:
        is_over = self.is_over or self.is_complete
        return self._is_accepted and not is_over and self._frames.state is ConnectionState.OPEN

    @property
    def is_full(self) -> bool:
        """Whether the application must receive messages before more are read."""
        return len(self._messages) >= _MOST_MESSAGES or self._size >= _MOST_BYTES

    def _takes_more(self) -> bool:
        return not (self.is_over or self.is_full)

    async def data_received(self, data: bytes, size: int) -> None:
        """Handles data; `size` is its share of the flow-control window."""
        self._not_acknowledged += size
        if not self._is_accepted:
            self.refuse(400)
            return
        if self.is_over or self.is_complete:
            self._acknowledge()
            return
        self._frames.receive_data(data)
        await self._read()

    async def has_room(self) -> None:
        """Waits until the application has received enough messages."""
        while self.is_full and not self.is_over:
            await self._bell.change()

    def input_ended(self) -> None:
        """Handles the client's end, which the application receives after the messages."""
        self._has_input_ended = True
        self._read_on()

    def disconnected(self) -> None:
        self._forget_message()
        super().disconnected()

    def ping(self) -> bool:
        if self.is_open:
            self._post(Ping())
        # While it closes, the client's closing frame shows that the client is alive.
        return self._is_accepted and not (self.is_over or self.is_complete)

    def drain(self) -> None:
        if self._on_drain is not None:
            with contained("a callback for the server's end failed"):
                self._on_drain()
        elif self.is_open:
            self._post(CloseConnection(code=CloseReason.SERVICE_RESTART))

    # Messages of the client.

    def _read_on(self) -> None:
        """Handles unread data where the connection does not wait for that."""
        if not self._is_accepted:
            if self._has_input_ended:
                self.disconnected()
        elif self._read_some():
            self._connection.spawn(self._read)

    async def _read(self) -> None:
        while self._read_some():
            await anyio.lowlevel.checkpoint()

    def _read_some(self) -> bool:
        """Handles some frames; returns whether there may be more to handle now."""
        if not self._takes_more():
            return False
        for count, event in enumerate(self._frames.events(), 1):
            self._handle(event)
            if not self._takes_more():
                return False
            if count == _AT_ONCE:
                return True
        self._acknowledge()
        if self._has_input_ended:
            self.disconnected()
        return False

    def _handle(self, event: Event) -> None:
        if isinstance(event, TextMessage | BytesMessage):
            self._add(event)
        elif isinstance(event, Ping):
            if self.is_open:
                self._post(event.response())
        elif isinstance(event, CloseConnection):
            state = self._frames.state
            if state is ConnectionState.REMOTE_CLOSING:
                reply = self._frames.send(event.response())
            elif state is ConnectionState.OPEN:  # its frames are broken
                reply = self._frames.send(CloseConnection(code=event.code, reason=event.reason))
            else:
                reply = b""
            self._closed(reply, int(event.code), event.reason or "")

    def _closed(self, reply: bytes, code: int, reason: str) -> None:
        self._last_message = {"type": "websocket.disconnect", "code": code, "reason": reason}
        self._wire.post(reply, is_last=True)
        self.disconnected()

    def _add(self, event: TextMessage | BytesMessage) -> None:
        shared, parts, part = self._shared, self._message, event.data
        if parts is None:
            parts = self._message = StringIO() if isinstance(part, str) else BytesIO()
        parts.write(part)  # type: ignore[arg-type]  # wsproto does not mix them
        size = len(part.encode() if isinstance(part, str) else part)
        self._message_size += size
        shared.incomplete += size
        if self._message_size > shared.options.max_message_bytes:
            self._refuse_message(CloseReason.MESSAGE_TOO_BIG)
        elif event.message_finished:
            data = parts.getvalue()
            self._forget_message()
            kinds: dict[str, Any] = {"bytes": None, "text": None}
            kinds["text" if isinstance(data, str) else "bytes"] = data
            self._messages.append({"type": "websocket.receive", **kinds})
            self._size += len(data)
            self._bell.ring()
        elif shared.incomplete > shared.options.max_incomplete_bytes:
            self._refuse_message(CloseReason.TRY_AGAIN_LATER)
        else:
            if self._timeout is None:
                timeout_s = shared.options.body_timeout_s
                self._timeout = BodyTimeout(shared.timeouts, timeout_s, self._message_timed_out)
            self._timeout.received(size)

    def _message_timed_out(self) -> None:
        assert self._timeout is not None
        if self.is_full or self._connection.is_blocked:  # the client may have sent more
            self._timeout.resume()
        else:
            self._refuse_message(CloseReason.POLICY_VIOLATION, "a message was not sent in time")

    def _refuse_message(self, code: CloseReason, reason: str = "") -> None:
        closing = CloseConnection(code=code, reason=reason)
        self._closed(self._frames.send(closing) if self.is_open else b"", code.value, reason)

    def _forget_message(self) -> None:
        self._shared.incomplete -= self._message_size
        self._message, self._message_size = None, 0
        if self._timeout is not None:
            self._timeout.close()
            self._timeout = None

    def _next_message(self) -> Message | None:
        if not self._messages:
            return None
        was_full = self.is_full
        message = self._messages.popleft()
        self._size -= len(message.get("text") or message.get("bytes") or b"")
        if was_full and not self.is_full:
            self._bell.ring()
            self._read_on()
        return message

    # Messages of the application.

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if self.is_complete:
            raise RuntimeError(f"{kind!r} after the end")
        match kind.removeprefix("websocket."):
            case "accept" if not self.has_begun:
                self._accept(message)
                await self._wire.send(b"")
                if self._shared.is_draining:
                    self.drain()
            case "close" if not self.has_begun:
                self._complete()
                self._wire.head(403, [], is_last=True)
            case "http.response.start" if not self.has_begun:
                self._begin(message)
            case "http.response.body" if not self._is_accepted:
                await self._send_body(message)
            case "send" if self._is_accepted:
                await self._send_message(message)
            case "close" if self._is_accepted:
                await self._close(message)
            case _:
                raise RuntimeError(f"{kind!r} is not a message that is allowed here")

    def _accept(self, message: Message) -> None:
        headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        length_of(headers)
        lower = [(name.lower(), value) for name, value in headers]
        fields = [field for field in lower if field[0] not in _OF_THE_SERVER]
        if any(name == b"sec-websocket-protocol" for name, _ in fields):
            raise RuntimeError("a subprotocol is given as such, and not as a header")
        subprotocol = message.get("subprotocol")
        if subprotocol is not None:
            if subprotocol not in self._subprotocols:
                raise RuntimeError("the client does not offer that subprotocol")
            fields.append((b"sec-websocket-protocol", subprotocol.encode("ascii")))
        if self._key:
            proof = b64encode(sha1(self._key + _ACCEPT, usedforsecurity=False).digest())
            fields.append((b"sec-websocket-accept", proof))
        self.has_begun = True
        self._is_accepted = True
        self._wire.head(self._wire.accepts_with, fields, is_last=False)

    async def _send_message(self, message: Message) -> None:
        data, text = message.get("bytes"), message.get("text")
        if data is not None:
            await self._send_event(BytesMessage(bytes(data)))
        elif isinstance(text, str):
            await self._send_event(TextMessage(text))
        else:
            raise TypeError("a message has bytes, or a str as its text")

    async def _send_event(self, event: Event) -> None:
        if self.is_open:
            await self._wire.send(self._frames.send(event))

    async def _close(self, message: Message) -> None:
        code, reason = int(message.get("code") or 1000), message.get("reason") or ""
        frame = b""
        if self.is_open:  # and not closed for the drain
            frame = self._frames.send(CloseConnection(code=code, reason=reason or None))
        self._last_message = {"type": "websocket.disconnect", "code": code, "reason": reason}
        self._complete()
        await self._wire.send(frame, is_last=True)

    def _post(self, event: Event) -> None:
        self._wire.post(self._frames.send(event))

    def _end(self) -> None:
        self._on_drain = None
        if not self._is_accepted:
            super()._end()
        elif self.is_open:
            closing = CloseConnection(code=CloseReason.INTERNAL_ERROR)
            self._wire.post(self._frames.send(closing), is_last=True)
        else:
            self._wire.post(b"", is_last=True)

    # Extensions of ASGI.

    def when_draining(self, callback: Callable[[], object] | None) -> None:
        """Sets a callback that closes it in place of `drain`."""
        self._on_drain = callback
        if callback is not None and self._shared.is_draining:
            callback()

    async def send_texts(self, texts: Iterable[bytes]) -> None:
        """Sends several messages at once, each valid UTF-8."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        await self._wire.ready()
        if self.is_open:
            frames = [self._frames.send(TextMessage(str(text, "utf-8"))) for text in texts]
            await self._wire.send(b"".join(frames))
        else:
            await anyio.lowlevel.checkpoint()
