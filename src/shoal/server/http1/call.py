"""One request of a connection and its response: the application's `receive` and `send`, as bytes.

Both are made for the common case, in which nothing has to be waited for: the body is there, and the
kernel takes the response at once. Then neither is a checkpoint, except for every 16th `send`, so
that a stream whose client keeps up does not hold the event loop.
"""

from __future__ import annotations

import time
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio.lowlevel

from shoal.asgi.headers import (
    FRAMING,
    PROBLEM_JSON,
    WRONG_LENGTH,
    BadRequest,
    is_sendable,
    is_value,
    not_sendable,
)
from shoal.server.http1.body import ChunkedBody, SizedBody
from shoal.server.served_call import SENDS_WITHOUT_CHECKPOINT, ServedCall
from shoal.server.timeouts import BYTES_PER_BODY_TIMEOUT, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Message, Receive, Send

    from shoal.loops.parking import Bell
    from shoal.server.http1.head import HeadParser
    from shoal.server.shared import Shared
    from shoal.server.tls import TlsTransport
    from shoal.server.transport import Transport

_JOINED: Final = 2**16  # the head and the first part of a body are sent together up to this size
_CLOSE: Final = b"\r\nconnection: close"

# These have the phrases of RFC 9110, which Python has from 3.13 on.
_PHRASES: Final = {
    **{int(status): status.phrase for status in HTTPStatus if status >= 200},
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
}
_STATUS_LINES: Final = {
    status: f"HTTP/1.1 {status} {phrase}".encode("ascii") for status, phrase in _PHRASES.items()
}
# The lines of checked headers, since most responses have the same few. Long lines, and headers that
# the server reads, are not kept.
_lines: Final[dict[tuple[bytes, bytes], bytes]] = {}
_MOST_LINES: Final = 512
_LONGEST_LINE: Final = 256

# The statuses of responses without a body.
WITHOUT_BODY: Final = frozenset({204, 304})
END: Final = b"\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class CallConnection(Protocol):
    received: bytes
    shared: Shared
    bell: Bell
    transport: Transport | TlsTransport

    def send(self, data: bytes) -> None: ...

    def limit_send(self) -> None:
        """Gives the client a time to take the unsent data."""

    def awaits(self, awaited: str, limit_s: float) -> bool:
        """Lets the client send its next bytes; returns whether to wait for them."""
        ...

    def refuse(self, error: BadRequest) -> None:
        """Ends the connection of a client that sends a malformed request."""

    async def continue_without(self, call: Any) -> None:
        """Continues without waiting for the application, once its response is complete."""


class Http1Call(ServedCall):
    offered = (*ServedCall.offered, "heartbeat", "send", "has_room", "put")

    _shared: Shared
    # Few requests change these. `__init__` sets the attributes that each request reads, since
    # attributes of instances are found sooner.
    _expects = _is_chunked = False
    _received = 0  # bytes of the body, since the client had the whole time
    _waited_s = 0.0  # for the body, since then
    _heartbeat: Heartbeat | None = None
    _sends_body = True
    _to_send: int | None = None  # the bytes of the body that are left, if it has a length
    # The part of the body that the application has not received; None after its end.
    _unread: bytes | None = b""

    # A call does not refer to its scope, which refers to the call: each request would leave a
    # reference cycle for the garbage collector.
    def __init__(self, connection: CallConnection, parser: HeadParser) -> None:
        self._connection = connection
        self._shared = connection.shared
        self.line = parser.line
        self.keeps_alive = parser.keeps_alive
        # `is_detached`: the connection continues without waiting for the application.
        self.is_over = self.is_detached = False
        # The result of `answer_head`, once the application has begun its response.
        self._head: tuple[bytes, int | None, bool] | None = None
        self._body: SizedBody | ChunkedBody | None = None  # while more of the body is to come
        rest = connection.received[parser.size :]
        if len(rest) == parser.length:
            self._unread = rest
            connection.received = b""
            return
        connection.received = rest
        if parser.length != 0:
            self._body = ChunkedBody() if parser.length is None else SizedBody(parser.length)
            self._expects = parser.expects

    # The application's side.

    async def receive(self) -> Message:
        # Not a checkpoint if a message is there: Starlette's `Request.is_disconnected` calls it in
        # a cancelled scope, where a checkpoint would always report "no message".
        if self._body is not None:
            await self._wait_for_body()
        body = self._unread
        if body is not None:
            if self._body is None:
                self._unread = None
                return {"type": "http.request", "body": body, "more_body": False}
            if body:
                self._unread = b""
                return {"type": "http.request", "body": body, "more_body": True}
        while not (self.is_over or self.is_complete):
            await self._connection.bell.change()
        return await self._disconnect({"type": "http.disconnect"})

    async def _wait_for_body(self) -> None:
        connection, now = self._connection, self._shared.timeouts.now
        while not (self.is_over or self.is_complete):
            try:
                self._take_body()
            except BadRequest as error:
                connection.refuse(error)
                return
            if self._unread or self._body is None:
                return
            expects, self._expects = self._expects and not self.has_begun, False
            if expects:
                connection.send(CONTINUE)  # which may find the client gone
                continue
            began = now()
            left_s = self._shared.options.body_timeout_s - self._waited_s
            if connection.awaits("a body", left_s):
                await connection.bell.change()
            else:
                await anyio.lowlevel.checkpoint()
            self._waited_s += now() - began

    async def send(self, message: Message) -> None:
        """Sends a message of ASGI, whole or (if it is cancelled) not at all."""
        if self.log is not None:
            self.log.note(message)
        if self.is_over:
            await anyio.lowlevel.checkpoint()
            return
        head = self._head
        if message["type"] != ("http.response.start" if head is None else "http.response.body"):
            raise RuntimeError(f"{message['type']!r} is not a message that is allowed here")
        if head is None:
            status = message["status"]
            self._head = answer_head(status, message.get("headers", ()))
            self._sends_body = status not in WITHOUT_BODY and self.line.method != "HEAD"
            return
        data, is_last = message.get("body", b""), not message.get("more_body")
        if type(data) is not bytes:
            data = bytes(memoryview(data))  # raises before anything has changed
        if self.has_begun:
            if self.is_complete:
                raise RuntimeError("the response is complete already")
            if not await self._has_sent_all():
                return
        if not self._write(data, is_last=is_last):
            await self._sent()

    def _write(self, data: bytes, *, is_last: bool) -> bool:
        """Sends a part of the body, after the head if it is the first; returns if all is sent."""
        connection = self._connection
        if self.has_begun:
            lines, data = b"", self._part(data, is_last=is_last)
        else:
            assert self._head is not None
            lines, length, closes = self._head
            if not self._sends_body:
                data = b""
            elif not is_last:
                # Without a length, HTTP/1.0 has only the end of the connection.
                if length is None and self.line.is_http_1_1:
                    self._is_chunked = True
                    lines += b"\r\ntransfer-encoding: chunked"
                self._to_send = length
                data = self._part(data, is_last=False)
            elif length is None:
                lines += b"\r\ncontent-length: %d" % len(data)
            elif length != len(data):
                raise RuntimeError(WRONG_LENGTH)
            if closes or not self.keeps_alive or self._shared.is_draining or self._body:
                lines += self._decide_keep_alive(closes=closes)
            lines += END
        self.has_begun = True
        if is_last:
            self.is_complete = True
            self._on_left = None
            if connection.received or not self.keeps_alive:
                self._shared.tasks.start_soon(connection.continue_without, self)
        if len(data) <= _JOINED:
            data = lines + data
        elif lines:
            connection.send(lines)
        if not data or connection.transport.send(data):
            return True
        connection.limit_send()
        return False

    # Extensions of ASGI.

    def whole_body(self, receive: Receive) -> bytes | None:
        if self._body is not None or receive != self.receive:
            return None
        body, self._unread = self._unread, None
        return body

    def respond(
        self, send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> bool:
        # The connection waits until its client has taken the response, and so need not the task.
        if send != self.send or self.log is not None or self._head is not None:
            return False
        if self.line.method == "HEAD":  # only its headers can say the length
            return False
        if not self.is_over:
            self._head = answer_head(status, headers)
            if status in WITHOUT_BODY:
                self._sends_body = False
            self._write(body, is_last=True)
        return True

    def heartbeat(self, after_s: float, data: bytes) -> None:
        """Sends data whenever the response was silent for a time."""
        self._heartbeat = Heartbeat(self._shared.timeouts, after_s, partial(self._beat, data))

    def has_room(self) -> bool:
        return not self._connection.transport.unsent

    def put(self, data: bytes) -> None:
        """Sends a part of a body at once; does nothing before its begin and after its end."""
        if self.has_begun and not self.is_complete:
            if self.log is not None:
                self.log.note_size(len(data))
            self._write(data, is_last=False)

    # The server's side.

    @property
    def reads_body(self) -> bool:
        return self._body is not None

    def disconnected(self) -> None:
        self.is_over = True
        self._end_heartbeat()
        self._call_back()

    def refuse(self, status: int, size: int) -> None:
        self.refusal = status
        self.refused_size = size
        self.disconnected()

    # Both.

    def _take_body(self) -> None:
        """Takes the received part of the body; raises `BadRequest` if it is malformed."""
        body, connection = self._body, self._connection
        data, connection.received = connection.received, b""
        if body is not None and data:
            part, rest = body.feed(data)
            self._received += len(part)
            if self._received >= BYTES_PER_BODY_TIMEOUT:
                self._received, self._waited_s = 0, 0.0
            self._unread = self._unread + part if self._unread else part
            if body.is_complete:
                self._body = None
                connection.received = rest

    def _decide_keep_alive(self, *, closes: bool) -> bytes:
        """Sets `keeps_alive`; returns the header line that ends the connection, if it does."""
        # A response before the end of the request is the last one. Without "Connection: close" its
        # client would send its next request, and lose it.
        if self._body is not None:
            with suppress(BadRequest):  # the application has not asked for it
                self._take_body()
        self.keeps_alive = self.keeps_alive and not (
            closes or self._body is not None or self._shared.is_draining
        )
        return b"" if self.keeps_alive else _CLOSE

    def _part(self, data: bytes, *, is_last: bool) -> bytes:
        """Returns the bytes that send a part of a longer body."""
        if self._to_send is not None:
            self._to_send -= len(data)
            if self._to_send < 0 or (is_last and self._to_send):
                raise RuntimeError(WRONG_LENGTH)
        if self._heartbeat is not None:
            self._heartbeat.is_silent = False
            if is_last:
                self._end_heartbeat()
        if self._is_chunked:
            if data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            return data + LAST_CHUNK if is_last else data
        return data if self._sends_body else b""

    def _beat(self, data: bytes) -> None:
        if self.is_complete:  # a whole response, after which it was not ended
            self._end_heartbeat()
        elif self.has_room():
            self.put(data)

    def _end_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.close()
            self._heartbeat = None

    async def _has_sent_all(self) -> bool:
        """Waits until the kernel has taken all data; returns whether to send more."""
        if self._connection.transport.unsent:
            return await self._sent()
        self._sends += 1
        if self._sends % SENDS_WITHOUT_CHECKPOINT == 0:
            await anyio.lowlevel.checkpoint()
        return True

    async def _sent(self) -> bool:
        """Waits until the kernel has taken all data; returns False if the client is gone."""
        connection = self._connection
        # The connection may be sending the next response already when this task runs.
        while connection.transport.unsent and not (self.is_over or self.is_detached):
            await connection.bell.change()
        return not self.is_over


def answer_head(
    status: int, headers: Iterable[tuple[bytes, bytes]]
) -> tuple[bytes, int | None, bool]:
    """Returns the lines before framing and `END`, the Content-Length, and whether it closes."""
    # Raises ValueError for an invalid status, or a header that could be read in another way.
    text = start = _first_lines(status, int(time.time()))
    length: int | None = None
    closes = False
    for header in headers:
        try:
            line = _lines.get(header)
        except TypeError:  # the header is a list, or contains a bytearray
            line = None
        if line is not None:
            text += line
            continue
        name, value = header
        # First the two that differ between responses.
        if name == b"content-length" and length is None and status != 204 and value.isdigit():
            length = int(value)
            text += b"\r\ncontent-length: " + value
            continue
        if name == b"x-request-id" and is_value(value):
            text += b"\r\nx-request-id: " + value
            continue
        name, value = bytes(name), bytes(value)
        # A line break in a value would make the rest of it a header.
        if not is_sendable(name, value):
            raise not_sendable(name, value)
        line = b"\r\n%b: %b" % (name, value)
        match name.lower():
            case b"content-length":
                if not value.isdigit() or length is not None:
                    raise not_sendable(name, value)
                length = int(value)
                line = line if status != 204 else b""
            case b"connection":
                closes = closes or b"close" in value.lower()
                line = b""
            case lower if lower in FRAMING:
                line = b""
            case b"date":
                text = text.replace(start, status_line(status), 1)
            case _ if len(line) <= _LONGEST_LINE:
                if len(_lines) >= _MOST_LINES:
                    _lines.clear()
                _lines[name, value] = line
            case _:
                pass
        text += line
    return text, length, closes


def status_line(status: int) -> bytes:
    """Returns the first line without its line break; raises `ValueError` for a bad status."""
    known = _STATUS_LINES.get(status)
    if known is not None:
        return known
    if not 200 <= status <= 999:
        raise ValueError(f"a response has a status from 200 to 999, not {status}")
    return b"HTTP/1.1 %d " % status


def error_answer(status: int, body: bytes = b"") -> bytes:
    """Returns a whole response, after which the connection ends; its body is a problem."""
    headers = [(b"content-type", PROBLEM_JSON)] if body else []
    lines, _, _ = answer_head(status, headers)
    return lines + b"\r\ncontent-length: %d\r\nconnection: close" % len(body) + END + body


@lru_cache(maxsize=16)
def _first_lines(status: int, at: int) -> bytes:
    return status_line(status) + b"\r\ndate: " + http_date(at)


@lru_cache(maxsize=1)
def http_date(at: int) -> bytes:
    return formatdate(at, usegmt=True).encode("ascii")
