"""One request of a connection, and its answer: what the application is called with.

`Call.receive` and `Call.send` are made for the common case, in which nothing has to be waited for:
the body is there, and the kernel takes the answer at once. Then neither is a checkpoint, but now
and then a `send`, so that a stream whose client keeps up does not hold the event loop.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio.lowlevel

from shoal.http.requests.header_check import WRONG_LENGTH
from shoal.http.server.http1.answer import CONTINUE, LAST_CHUNK, AnswerHead
from shoal.http.server.http1.scope import scope_of
from shoal.http.server.log_errors import contained
from shoal.http.server.sockets.timeouts import Heartbeat

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.types import Message, Scope

    from shoal.http.server.http1.carrier import Carrier
    from shoal.http.server.http1.head import HeadParser

_MOST_UNREAD: Final = 2**16
_SENDS_WITHOUT_CHECKPOINT: Final = 16
_JOINED: Final = 2**16  # up to this size, the head and the first part of a body are sent together
_CLOSE: Final = b"\r\nconnection: close"

# How far the answer is: not begun; its head was given, and is kept until the body begins; its head
# was sent; all was sent.
_NOT_BEGUN, _STARTED, _SENDING, _COMPLETE = range(4)


class Call:
    """One request, its answer, and the application's end of both.

    It does not refer to its scope, which refers to it: a circle would be left by each request for
    the garbage collector.

    Args:
        carrier: The connection.
        parser: What the head of the request says.
        body: The whole body of the request, if it came with the head.

    Attributes:
        carrier: The connection.
        line: The request line.
        trace_ids: The ids of its trace and span, for the access log; None if it has none.
        keeps_alive: Whether the client may send another request on the connection.
        has_left: Whether the client is gone; `was_left` is whether it left before the answer's end.
        refused_with: The status that the server has answered with in place of the application.
        is_sent: Set once the kernel has taken an answer for which it had no room at first.
    """

    # Most requests change none of these; an attribute of the class costs them nothing.
    has_left = was_left = False
    refused_with = 0
    is_sent = False
    _gave_disconnect = False
    _gives_body = True  # the application has not been given the end of the body
    _is_partial = False  # more of the body is to come
    _expects = False
    _answer = _NOT_BEGUN
    _head: AnswerHead | None = None
    _sends_body = True
    _is_chunked = False
    _to_send: int | None = None  # how many bytes of the body are left, if it has a length
    _sends = 0
    _waiters: Sequence[Any] = ()
    _on_left: Callable[[], object] | None = None
    _is_cut_off = False
    _heartbeat: Heartbeat | None = None
    trace_ids: tuple[str, str] | None = None

    def __init__(self, carrier: Carrier, parser: HeadParser, body: bytes = b"") -> None:
        self.carrier = carrier
        self._shared = carrier.shared
        self.keeps_alive = parser.keeps_alive
        self.line = parser.line
        self._headers = parser.headers  # other requests share them
        self._body: bytes | bytearray = body

    # The application's side.

    async def receive(self) -> Message:
        """Returns the next part of the body, or that the client has left; see ASGI."""
        # Not a checkpoint if a message is there: Starlette's `Request.is_disconnected` calls it in
        # a cancelled scope, where a checkpoint would always result in "nothing".
        if self._gives_body:
            while not self._body and self._is_partial and not self.has_left:
                if self._answer == _COMPLETE:
                    break
                if self._expects and self._answer <= _STARTED:
                    self.carrier.send(CONTINUE)
                self._expects = False
                await self._change()
            if self._body or not self._is_partial:
                body, self._body = bytes(self._body), b""
                has_more = self._is_partial
                if has_more:
                    self.carrier.read_more()  # more may arrive at once
                else:
                    self._gives_body = False
                return {"type": "http.request", "body": body, "more_body": has_more}
            self._gives_body = False
        if self._gave_disconnect:
            # An application that ignores the disconnect must not block the event loop.
            await anyio.lowlevel.checkpoint()
        while not self.has_left and self._answer != _COMPLETE:
            await self._change()
        self._gave_disconnect = True
        return {"type": "http.disconnect"}

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
            if self.carrier.is_sending:
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

    @property
    def raw_path(self) -> bytes:
        """The path of the request, as sent."""
        return self.line.raw_path

    def scope(self) -> Scope:
        """Returns a new scope of ASGI."""
        offered = {
            "when_left": self.when_left,
            "is_cut_off": self.is_cut_off,
            "refused_with": partial(getattr, self, "refused_with"),
            "send_timeout_s": self._shared.send_timeout_s,
            "is_local": self._shared.is_local,
            "note_trace": self.note_trace,
            "heartbeat": self.heartbeat,
            "send": self.send,
            "has_room": self.has_room,
            "put": self.put,
        }
        return scope_of(self.line, list(self._headers), self.carrier, offered)

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

    def heartbeat(self, after_s: float, data: bytes) -> None:
        """Sends data whenever the answer was silent for a time."""
        self._heartbeat = Heartbeat(self._shared.timeouts, after_s, partial(self._beat, data))

    def has_room(self) -> bool:
        """Whether the client takes a part of the body at once."""
        return not self.carrier.is_sending

    def put(self, data: bytes) -> None:
        """Sends a part of a body at once, which has begun and is not complete."""
        self._put(data, is_last=False)

    def note_trace(self, ids: tuple[str, str]) -> None:
        """Notes the ids of the request's trace and span."""
        self.trace_ids = ids

    # The server's side.

    def begin(self) -> Awaitable[None]:
        """Calls the application; returns what must be awaited."""
        return self._shared.app(self.scope(), self.receive, self.send)

    def end(self) -> None:
        """Handles that the application has returned for good."""
        self.carrier.call_ended(self)

    def abort(self) -> None:
        """Closes the connection by force."""
        self.carrier.abort()

    @property
    def has_begun(self) -> bool:
        """Whether a part of the answer was sent."""
        return self._answer > _STARTED

    @property
    def is_answered(self) -> bool:
        """Whether the whole answer was sent, or is being sent."""
        return self._answer == _COMPLETE

    def expect_body(self, *, is_asked_for: bool) -> None:
        """Expects a body in parts.

        Args:
            is_asked_for: Whether the client sends it when it is asked to.
        """
        self._is_partial = True
        self._expects = is_asked_for

    def body_arrived(self, body: bytes, *, is_complete: bool) -> bool:
        """Takes a part of the request's body.

        Returns:
            Whether the application should read some of it before more is taken.
        """
        if not self._body:
            self._body = body
        elif body:
            if type(self._body) is bytes:
                self._body = bytearray(self._body)
            self._body += body
        if is_complete:
            self._is_partial = False
        if self._waiters:
            self.wake()
        return len(self._body) >= _MOST_UNREAD

    def leave(self) -> None:
        """Handles that the client is gone."""
        self.has_left, self.was_left = True, self.was_left or self._answer != _COMPLETE
        self._end_heartbeat()
        self._call_back()
        self.wake()

    def refuse(self, status: int, size: int) -> None:
        """Handles that the server has answered in place of the application."""
        self.refused_with = status
        self.leave()

    def end_early(self) -> bool:
        """Asks the application to end its answer.

        Returns:
            Whether it was asked, or has begun the answer; else the server may answer in its place.
        """
        self._is_cut_off = True
        return self._call_back() or self.has_begun

    def wake(self) -> None:
        """Wakes the tasks that wait for a change."""
        for waiter in self._waiters:
            self._shared.wake(waiter)

    def _call_back(self) -> bool:
        on_left, self._on_left = self._on_left, None
        if on_left is None or self._answer == _COMPLETE:
            return False
        with contained("a callback for the client's leaving failed"):
            on_left()
        return True

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
        if head.closes or self._shared.is_draining or not self.keeps_alive or self._is_partial:
            self.keeps_alive = False
            framing += _CLOSE
        self._head = None
        self._end_heartbeat()
        now = self._shared.now()
        return self._finish(head.encoded(framing, self._shared.date(now)), data, now)

    def _finish(self, text: bytes, data: bytes, now: float) -> bool:
        """Sends the head of an answer and its whole body."""
        self._answer = _COMPLETE
        self._on_left = None
        carrier = self.carrier
        if len(data) <= _JOINED:
            is_sent = carrier.send(text + data)
        else:
            carrier.send(text)
            is_sent = carrier.send(data)
        if is_sent:
            carrier.answered(self, now if self._shared.is_loop_time else None)
        return is_sent

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
        if is_last:
            self._answer = _COMPLETE
            self._on_left = None
            self._end_heartbeat()
        carrier = self.carrier
        if len(data) <= _JOINED:
            data = head + data
        elif head:
            carrier.send(head)
        is_sent = carrier.send(data) if data else True
        if is_last and is_sent:
            carrier.answered(self)
        return is_sent

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
        if head.closes or self._shared.is_draining or not self.keeps_alive or self._is_partial:
            self.keeps_alive = False
            framing += _CLOSE
        return head.encoded(framing, self._shared.date_now())

    def _beat(self, data: bytes) -> None:
        if self._answer == _SENDING and not self.carrier.is_sending:
            self._put(data, is_last=False)

    def _end_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.close()
            self._heartbeat = None

    async def _sent(self) -> bool:
        """Waits until the kernel has taken all; returns False if the client is gone."""
        # The connection may be sending the next answer already when this task runs.
        while self.carrier.is_sending and not (self.is_sent or self.has_left):
            await self._change()
        return not self.has_left

    async def _change(self) -> None:
        waiter = self._shared.new_waiter()
        self._waiters = [*self._waiters, waiter]
        try:
            await waiter
        finally:
            self._waiters = [one for one in self._waiters if one is not waiter]
