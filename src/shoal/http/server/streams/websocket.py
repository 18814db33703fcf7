"""WebSockets: Hypercorn's stream, hardened, and what carries it over HTTP/1.1.

Compression is not negotiated: a message of 199 KiB can inflate to 200 MiB before its size is
checked.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import anyio.lowlevel
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Body, Data, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.ws_stream import ASGIWebsocketState, FrameTooLargeError, WSStream
from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection, Message, Ping
from wsproto.events import Event as WsEvent
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError

from shoal.http.requests.header_check import FRAMING, WRONG_LENGTH, check_headers
from shoal.http.server.http1.answer import LAST_CHUNK, AnswerHead
from shoal.http.server.streams.frames import is_between_messages, message_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.typing import ConnectionState as LifespanState
    from hypercorn.typing import WebsocketAcceptEvent, WebsocketReceiveEvent

    from shoal.http.server.http1.head import HeadParser
    from shoal.http.server.streams.inbox import Inbox
    from shoal.http.server.streams.outlet import Outlet

_STREAM_ID: Final = 1
_SMALL: Final = 2**12  # bytes
_AT_ONCE: Final = 32
"""After so many frames the other clients have their turn: one read may bring 10,000 of them."""
_OPEN: Final = ConnectionState.OPEN
_OF_THE_SERVER: Final = FRAMING | {
    *(b"content-length", b"sec-websocket-accept", b"sec-websocket-extensions"),
}
NOT_PASSED_ON: Final = frozenset({b"sec-websocket-extensions"})


def harden(stream: WSStream) -> None:
    """Mends what the stock class does wrong."""
    _bound_messages(stream)
    _accept_with_valid_headers(stream)
    _close_late(stream)


def _accept_with_valid_headers(stream: Any) -> None:
    """Makes a WebSocket check the headers that its application accepts it with.

    The stock class sends them as they are, line breaks and framing headers too.
    """
    accept_it = stream._accept

    async def accept(message: WebsocketAcceptEvent) -> None:
        given = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        check_headers(given)
        headers = [header for header in given if header[0].lower() not in _OF_THE_SERVER]
        await accept_it({**message, "headers": headers})

    stream._accept = accept


def _bound_messages(stream: WSStream) -> None:
    """Makes a WebSocket end at a message that is too large.

    The stock class goes on to collect the message, without bound.
    """
    has_overflowed = False

    async def handle_events() -> None:
        nonlocal has_overflowed
        buffer: Any = stream.buffer
        put: Any = getattr(stream, "app_put", None)
        for nth, event in enumerate(stream.connection.events(), 1):
            if has_overflowed:
                return
            if nth % _AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
            if isinstance(event, Message):
                try:
                    buffer.extend(event)
                except FrameTooLargeError:
                    has_overflowed = True
                    buffer.clear()
                    await _send(stream, CloseConnection(code=CloseReason.MESSAGE_TOO_BIG))
                    await stream.send(StreamClosed(stream_id=stream.stream_id))
                    return
                if event.message_finished:
                    message = buffer.to_message()
                    buffer.clear()
                    await put(message)
            elif isinstance(event, Ping):
                await _send(stream, event.response())
            elif isinstance(event, CloseConnection):
                # The stock class reports each end as one of the connection (1006).
                end = {"type": "websocket.disconnect", "code": int(event.code)}
                await put({**end, "reason": event.reason or ""})
                if stream.connection.state is ConnectionState.REMOTE_CLOSING:
                    await _send(stream, event.response())
                elif stream.connection.state is _OPEN:  # its frames are broken
                    await _send(stream, CloseConnection(code=event.code, reason=event.reason))
                await stream.send(StreamClosed(stream_id=stream.stream_id))

    stream._handle_events = handle_events  # type: ignore[method-assign]  # Hypercorn makes it


def _close_late(stream: Any) -> None:
    """Makes a WebSocket that is accepted during the drain close, as those that were open do."""
    accept_it = stream._accept

    async def accept(message: WebsocketAcceptEvent) -> None:
        await accept_it(message)
        if stream.context.terminated.is_set():
            await close_websocket(stream)

    stream._accept = accept


def is_open(stream: object) -> bool:
    """Returns whether a stream is a WebSocket that the application has accepted."""
    return isinstance(stream, WSStream) and stream.state is ASGIWebsocketState.CONNECTED


async def ping(stream: WSStream) -> None:
    """Asks the client of a WebSocket for a sign of life."""
    if is_open(stream):
        await _send(stream, Ping())


async def close_websocket(stream: WSStream) -> None:
    """Closes a WebSocket, with the reason that the server restarts.

    Unless its application closes it itself; see `StreamCalls`.
    """
    if is_open(stream) and getattr(stream, "when_draining", None) is None:
        await _send(stream, CloseConnection(code=CloseReason.SERVICE_RESTART))


async def _send(stream: WSStream, event: WsEvent) -> None:
    with suppress(LocalProtocolError):  # it is being closed already
        await stream.send(Data(stream_id=stream.stream_id, data=stream.connection.send(event)))


class Http1WebSocket:
    """A connection that HTTP/1.1 was upgraded to a WebSocket on.

    Invariant: while it `_is_between` messages, wsproto holds no part of one.

    Args:
        make: Makes the stream, from a function that sends its events, and its number.
        send: Sends bytes, or closes the connection.
        outlet: Sends bytes at once.
        date: Returns the header line with the date.
    """

    is_client_done = True

    def __init__(
        self,
        make: Callable[[Callable[[StreamEvent], Awaitable[None]], int], WSStream],
        send: Callable[[Event], Awaitable[None]],
        outlet: Outlet,
        date: Callable[[], bytes],
    ) -> None:
        self._stream = stream = make(self._stream_send, _STREAM_ID)
        harden(stream)
        cast("Any", stream).outlet = outlet  # for the application
        self._is_between = False
        self._send = send
        self._date = date
        self._is_chunked = False
        self._to_come: int | None = None  # how many bytes of a refusal's body

    is_idle = False  # it ends with its only stream

    @property
    def has_websockets(self) -> bool:
        """Whether the application has accepted the WebSocket, and it is open."""
        return is_open(self._stream)

    def farewell(self) -> bytes:
        """Returns nothing."""
        return b""

    def forget(self) -> None:
        """See `StreamProtocol.forget`."""
        # The application may still have the stream, so that keeps all but what `harden` added.
        for name in ("_handle_events", "_accept", "outlet"):
            vars(self._stream).pop(name)
        vars(self).clear()

    async def upgrade(self, parser: HeadParser, state: LifespanState) -> None:
        """Handles the request to upgrade.

        Args:
            parser: The request.
            state: The state of the application's lifespan.
        """
        await self._stream.handle(
            Request(
                stream_id=_STREAM_ID,
                headers=[each for each in parser.headers if each[0] not in NOT_PASSED_ON],
                http_version="1.1",
                method=parser.line.method,
                raw_path=parser.line.target,
                state=state,
            )
        )

    async def handle(self, event: Event) -> None:
        """Handles data from the socket, or its end."""
        if isinstance(event, RawData):
            await self._handle_data(event.data)
        elif isinstance(event, Closed):
            await self._stream.handle(StreamClosed(stream_id=_STREAM_ID))

    async def _handle_data(self, data: bytes) -> None:
        at = nth = 0
        while at < len(data) and (found := self._message_at(data, at)) is not None:
            message, at = found
            await self._inbox.put(message)
            nth += 1
            if nth % _AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
        if at < len(data):
            await self._stream.handle(Data(stream_id=_STREAM_ID, data=data[at:] if at else data))
            self._is_between = is_open(self._stream) and is_between_messages(
                self._stream.connection
            )

    def handle_now(self, data: bytes) -> Callable[[], Awaitable[None] | None] | None:
        """Reads data that is one small message; see `StreamProtocol`."""
        if len(data) > _SMALL or (found := self._message_at(data, 0)) is None:
            return None
        message, end = found
        inbox = self._inbox
        return partial(inbox.put_now, message) if end == len(data) and inbox.takes_now else None

    @property
    def _inbox(self) -> Inbox:
        inbox: Inbox = cast("Any", self._stream).app_put.__self__
        return inbox

    def _message_at(self, data: bytes, at: int) -> tuple[WebsocketReceiveEvent, int] | None:
        """Reads a message at once, if one begins there and all of it is there."""
        stream = self._stream
        if not self._is_between or stream.closed or stream.connection.state is not _OPEN:
            return None
        return message_at(data, at, stream.buffer.max_length)

    async def ping(self) -> None:
        """Asks the client for a sign of life."""
        await ping(self._stream)

    async def close_websockets(self) -> None:
        """Closes the WebSocket, with the reason that the server restarts."""
        await close_websocket(self._stream)

    async def _stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, Response):
            await self._send(RawData(data=self._head(event)))
        elif isinstance(event, Body):
            size = len(event.data)
            self._expect(size, is_last=False)
            chunk = b"%x\r\n%b\r\n" % (size, event.data) if self._is_chunked else event.data
            if size:
                await self._send(RawData(data=chunk))
        elif isinstance(event, EndBody):
            self._expect(0, is_last=True)
            if self._is_chunked:
                await self._send(RawData(data=LAST_CHUNK))
            await self._send(Closed())
        elif isinstance(event, Data):
            await self._send(RawData(data=event.data))
        elif isinstance(event, StreamClosed):
            await self._send(Closed())

    def _expect(self, size: int, *, is_last: bool) -> None:
        if self._to_come is not None:
            self._to_come -= size
            if self._to_come < 0 or (is_last and self._to_come):
                raise RuntimeError(WRONG_LENGTH)

    def _head(self, answer: Response) -> bytes:
        if answer.status_code == 101:
            parts = [b"HTTP/1.1 101 Switching Protocols"]
            parts += [b"%b: %b" % header for header in answer.headers]
            return b"\r\n".join([*parts, b"", b""])
        # The protocol refuses the handshake. The stock class marks the stream as closed only after
        # the refusal is sent, and fails if the application accepts in between.
        if not hasattr(self._stream, "response"):
            self._stream.closed = True
        head = AnswerHead(answer.status_code, answer.headers)
        framing = b"\r\nconnection: close"
        self._to_come = head.length if head.has_body else None
        if head.length is None and head.has_body:
            self._is_chunked = True
            framing += b"\r\ntransfer-encoding: chunked"
        return head.encoded(framing, self._date())
