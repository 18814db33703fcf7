"""One request of a connection, and its answer: what the application is called with.

`Call.receive` and `Call.send` are made for the common case, in which nothing has to be waited for:
the body is there, and the kernel takes the answer at once. Then neither is a checkpoint, but now
and then a `send`, so that a stream whose client keeps up does not hold the event loop.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio.lowlevel

from shoal.asgi.bad_request import BadRequest
from shoal.asgi.connections import SERVER
from shoal.asgi.extensions import DISCONNECT
from shoal.asgi.header_check import WRONG_LENGTH
from shoal.server.http1.answer import CONTINUE, LAST_CHUNK, AnswerHead
from shoal.server.http1.body import reader_of
from shoal.server.log_errors import contained
from shoal.server.sockets.timeouts import Heartbeat, time_to_receive_s

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Message, Scope

    from shoal.server.change import Change
    from shoal.server.http1.body import BodyReader
    from shoal.server.http1.head import HeadParser
    from shoal.server.shared import Shared

_SENDS_WITHOUT_CHECKPOINT: Final = 16
_JOINED: Final = 2**16  # up to this size, the head and the first part of a body are sent together
_CLOSE: Final = b"\r\nconnection: close"

# How far the answer is: not begun; its head was given, and is kept until the body begins; its head
# was sent; all was sent.
_NOT_BEGUN, _STARTED, _SENDING, _COMPLETE = range(4)


class Carrier(Protocol):
    """What a call needs of its connection.

    Attributes:
        shared: The state of the address.
        changed: Signals that something has arrived, that the kernel has room, or an end.
        scope: The scope of ASGI of the request, which the call copies.
        received: What has arrived, and nobody has taken.
    """

    received: bytes | bytearray
    shared: Shared
    changed: Change
    scope: Scope

    @property
    def is_sending(self) -> bool:
        """Whether the kernel has not taken all that was sent."""
        ...

    def send(self, data: bytes) -> bool:
        """Sends bytes; returns whether the kernel has taken all of them."""
        ...

    def more(self, awaited: str, limit_s: float) -> Awaitable[None]:
        """Returns what waits until something has changed, such as that the client has sent more.

        Args:
            awaited: What it is to send: "a request", "a head" or "a body".
            limit_s: How long it may take, in seconds.
        """
        ...

    def refuse(self, error: BadRequest) -> None:
        """Ends the connection of a client that sends what is no request."""
        ...

    def answered(self, call: Any) -> None:
        """Handles that the whole answer was sent, or waits for the client to read."""
        ...


class Call:
    """One request, its answer, and the application's end of both.

    It does not refer to its scope, which refers to it: a circle would be left by each request for
    the garbage collector.

    Args:
        connection: The connection.
        parser: What the head of the request says.

    Attributes:
        line: The request line.
        keeps_alive: Whether the client may send another request on the connection.
        is_answered: Whether the whole answer was sent, or is being sent.
        has_returned: Whether the application has returned.
        has_left: Whether the client is gone; `was_left` is whether it left before the answer's end.
        is_left_behind: Whether the connection goes on without waiting for the application.
        refused_with: The status that the server has answered with in place of the application.
        refused_size: The size of the body of that answer, in bytes.
    """

    # Most requests change none of these; an attribute of the class costs them nothing.
    is_answered = has_returned = has_left = was_left = is_left_behind = False
    refused_with = refused_size = 0
    _body: BodyReader | None = None  # while more of the body is to come
    _received = 0
    _waited_s = 0.0  # for the body
    _gave_body = False  # the application has been given the end of it
    _gave_disconnect = False
    _answer = _NOT_BEGUN
    _head: AnswerHead | None = None
    _sends_body = True
    _is_chunked = False
    _to_send: int | None = None  # how many bytes of the body are left, if it has a length
    _sends = 0
    _on_left: Callable[[], object] | None = None
    _is_cut_off = False
    _heartbeat: Heartbeat | None = None

    def __init__(self, connection: Carrier, parser: HeadParser) -> None:
        self._connection = connection
        self._shared = connection.shared
        self.keeps_alive = parser.keeps_alive
        self.line = parser.line
        self._expects = parser.expects
        self._unread = b""  # what was taken of the body, and the application has not been given
        if len(connection.received) == parser.length:
            self._unread, connection.received = bytes(connection.received), b""
        elif parser.length != 0:
            self._body = reader_of(parser.length)

    # The application's side.

    async def receive(self) -> Message:
        """Returns the next part of the body, or that the client has left; see ASGI."""
        # Not a checkpoint if a message is there: Starlette's `Request.is_disconnected` calls it in
        # a cancelled scope, where a checkpoint would always result in "nothing".
        connection = self._connection
        if not self._gave_body:
            if self._body is not None:
                await self._some_body()
            if self._unread or self._body is None:
                body, self._unread = self._unread, b""
                has_more = self._body is not None
                self._gave_body = not has_more
                return {"type": "http.request", "body": body, "more_body": has_more}
            self._gave_body = True
        if self._gave_disconnect:
            # An application that ignores the disconnect must not block the event loop.
            await anyio.lowlevel.checkpoint()
        while not (self.has_left or self.is_answered):
            await connection.changed.wait()
        self._gave_disconnect = True
        return {"type": "http.disconnect"}

    async def _some_body(self) -> None:
        """Waits until a part of the body or its end has come, or no more of it can come."""
        connection, now = self._connection, self._shared.timeouts.now
        while not (self.has_left or self.is_answered):
            try:
                self._take_body()
            except BadRequest as error:
                connection.refuse(error)
                return
            if self._unread or self._body is None:
                return
            if self._expects and self._answer <= _STARTED:
                connection.send(CONTINUE)
            self._expects = False
            allowed_s = time_to_receive_s(self._received, self._shared.body_timeout_s)
            began = now()
            await connection.more("a body", allowed_s - self._waited_s)
            self._waited_s += now() - began

    async def send(self, message: Message) -> None:
        """Sends the next part of the answer; see ASGI.

        Raises:
            RuntimeError: The message does not come next, or the body has another length than the
                head says.
            ValueError: A header can't be sent.

        Cancellation: The message is sent whole, or not at all.
        """
        if self.has_left:
            await anyio.lowlevel.checkpoint()
            return
        kind, answer = message["type"], self._answer
        if kind == "http.response.start":
            if answer != _NOT_BEGUN:
                raise RuntimeError("the answer has begun already")
            self._head = AnswerHead(message["status"], message.get("headers", ()))
            self._answer = _STARTED
            return
        if kind != "http.response.body" or answer == _NOT_BEGUN:
            raise RuntimeError(f"{kind!r} is not a message that can come here")
        data, is_last = message.get("body", b""), not message.get("more_body", False)
        if type(data) is not bytes:
            data = bytes(memoryview(data))  # raises before anything has changed
        if answer == _STARTED:
            is_sent = self._send_whole(data) if is_last else self._put(data, is_last=False)
        elif answer == _COMPLETE:
            raise RuntimeError("the answer is complete already")
        else:
            if self._connection.is_sending:
                if not await self._sent():
                    return
            else:
                self._sends += 1
                if self._sends % _SENDS_WITHOUT_CHECKPOINT == 0:
                    await anyio.lowlevel.checkpoint()
            is_sent = self._put(data, is_last=is_last)
        if not is_sent:
            await self._sent()

    # What it offers beyond ASGI.

    def scope(self) -> Scope:
        """Returns a new scope of ASGI."""
        shared = self._shared
        scope: Scope = {**self._connection.scope}
        scope["headers"] = list(scope["headers"])
        scope["state"] = shared.state.copy()
        offered = {
            "when_left": self.when_left,
            "is_cut_off": self.is_cut_off,
            "refused_with": self.refusal,
            "send_timeout_s": shared.send_timeout_s,
            "is_local": shared.is_local,
            "heartbeat": self.heartbeat,
            "send": self.send,
            "has_room": self.has_room,
            "put": self.put,
        }
        scope["extensions"] = {SERVER: shared.counts, DISCONNECT: offered}
        if shared.proxies is not None:
            shared.proxies.complete(scope)
        return scope

    def when_left(self, callback: Callable[[], object] | None) -> None:
        """Sets what is called once when the client leaves before the answer is complete.

        It is also called when the call is cut off; see `is_cut_off`. It is called at once
        if either has happened already. It must not raise, or take long.
        """
        self._on_left = callback
        if callback is not None and (self.has_left or self._is_cut_off):
            self._on_left = None
            callback()

    def is_cut_off(self) -> bool:
        """Whether the server ends, and waits a moment for the end of the answer."""
        return self._is_cut_off and not self.has_left

    def refusal(self) -> int:
        """Returns the status that the server has answered with in place of the application."""
        return self.refused_with

    def heartbeat(self, after_s: float, data: bytes) -> None:
        """Sends data whenever the answer was silent for a time."""
        self._heartbeat = Heartbeat(self._shared.timeouts, after_s, partial(self._beat, data))

    def has_room(self) -> bool:
        """Whether the client takes a part of the body at once."""
        return not self._connection.is_sending

    def put(self, data: bytes) -> None:
        """Sends a part of a body at once, which has begun and is not complete."""
        self._put(data, is_last=False)

    # The server's side.

    @property
    def has_begun(self) -> bool:
        """Whether a part of the answer was sent."""
        return self._answer > _STARTED

    @property
    def reads_body(self) -> bool:
        """Whether more of the body is to come."""
        return self._body is not None

    def leave(self) -> None:
        """Handles that the client is gone."""
        self.has_left, self.was_left = True, self.was_left or self._answer != _COMPLETE
        self._end_heartbeat()
        self._call_back()

    def refuse(self, status: int, size: int) -> None:
        """Handles that the server has answered in place of the application."""
        self.refused_with = status
        self.refused_size = size
        self.leave()

    def end_early(self) -> bool:
        """Asks the application to end its answer.

        Returns:
            Whether it was asked, or has begun the answer; else the server may answer in its place.
        """
        self._is_cut_off = True
        return self._call_back() or self.has_begun

    def _call_back(self) -> bool:
        on_left, self._on_left = self._on_left, None
        if on_left is None or self._answer == _COMPLETE:
            return False
        with contained("a callback for the client's leaving failed"):
            on_left()
        return True

    def _take_body(self) -> None:
        """Takes what has come of the body; raises `BadRequest` if it is malformed."""
        body, connection = self._body, self._connection
        data, connection.received = bytes(connection.received), b""
        if body is not None and data:
            part, rest = body.feed(data)
            self._received += len(part)
            self._unread += part
            if body.is_complete:
                self._body = None
                connection.received = rest

    # Both.

    def _send_whole(self, data: bytes) -> bool:
        """Sends an answer whose whole body is known; see `Carrier.send`."""
        head = self._head
        assert head is not None
        framing = b""
        size = len(data)
        if self.line.method == "HEAD" or not head.has_body:
            data = b""
        elif head.length is None:
            framing = b"\r\ncontent-length: %d" % size
        elif head.length != size:
            raise RuntimeError(WRONG_LENGTH)
        if self._ends_connection(head):
            self.keeps_alive = False
            framing += _CLOSE
        self._head = None
        text = head.encoded(framing, self._shared.date_now())
        connection = self._connection
        self._complete()
        if len(data) <= _JOINED:
            return connection.send(text + data)
        connection.send(text)
        return connection.send(data)

    def _put(self, data: bytes, *, is_last: bool) -> bool:
        """Sends a part of a longer body, after the head if that was not sent."""
        head = self._encoded_head() if self._answer == _STARTED else b""
        if self._to_send is not None:
            self._to_send -= len(data)
            if self._to_send < 0 or (is_last and self._to_send):
                raise RuntimeError(WRONG_LENGTH)
        self._answer = _SENDING
        if self._is_chunked:
            if data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            if is_last:
                data += LAST_CHUNK
        elif not self._sends_body:
            data = b""
        if self._heartbeat is not None:
            self._heartbeat.is_silent = False
        connection = self._connection
        if is_last:
            self._complete()
        if len(data) <= _JOINED:
            data = head + data
        elif head:
            connection.send(head)
        return connection.send(data) if data else True

    def _complete(self) -> None:
        self._answer = _COMPLETE
        self.is_answered = True
        self._on_left = None
        if self._heartbeat is not None:
            self._end_heartbeat()
        self._connection.answered(self)

    def _encoded_head(self) -> bytes:
        """Returns the head of an answer whose body comes in parts, and decides on its framing."""
        head = self._head
        assert head is not None
        self._head = None
        framing = b""
        if self.line.method == "HEAD" or not head.has_body:
            self._sends_body = False
        elif head.length is not None:
            self._to_send = head.length
        elif self.line.is_http_1_1:
            self._is_chunked = True
            framing = b"\r\ntransfer-encoding: chunked"
        else:  # the end of the connection is the end of the body
            self.keeps_alive = False
        # An answer before the end of the request is the last one. A client that is not told so
        # would send its next request, and lose it.
        if self._ends_connection(head):
            self.keeps_alive = False
            framing += _CLOSE
        return head.encoded(framing, self._shared.date_now())

    def _beat(self, data: bytes) -> None:
        if self._answer == _SENDING and not self._connection.is_sending:
            self._put(data, is_last=False)

    def _end_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.close()
            self._heartbeat = None

    async def _sent(self) -> bool:
        """Waits until the kernel has taken all; returns False if the client is gone."""
        connection = self._connection
        # The connection may be sending the next answer already when this task runs.
        while connection.is_sending and not (self.has_left or self.is_left_behind):
            await connection.changed.wait()
        return not self.has_left

    def _ends_connection(self, head: AnswerHead) -> bool:
        """Returns whether no request is read after this one."""
        if head.closes or self._shared.is_draining or not self.keeps_alive:
            return True
        if self._body is not None:
            with suppress(BadRequest):  # the application has not asked for it
                self._take_body()
        return self._body is not None
