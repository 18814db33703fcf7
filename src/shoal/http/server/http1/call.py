"""One request of a connection, and its answer: what the application is called with.

`Call.receive` and `Call.send` are made for the common case, in which nothing has to be waited for:
the body is there, and the kernel takes the answer at once. Then neither is a checkpoint, but now
and then a `send`, so that a stream whose client keeps up does not hold the event loop.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio.lowlevel

from shoal.http.server.http1.answer import CONTINUE, LAST_CHUNK, AnswerHead
from shoal.http.server.sockets.timeouts import Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import Message

    from shoal.http.server.http1.head import HeadParser
    from shoal.http.server.shared import Shared

_log = logging.getLogger("shoal.server")

_MOST_UNREAD: Final = 2**16
_SENDS_WITHOUT_CHECKPOINT: Final = 16
_JOINED: Final = 2**16  # up to this size, the head and the first part of a body are sent together


# How far the answer is: not begun; its head was given, and is kept until the body begins; its head
# was sent; all was sent.
_NOT_BEGUN, _STARTED, _SENDING, _COMPLETE = range(4)


class Carrier(Protocol):
    """What a call needs of its connection."""

    shared: Shared

    @property
    def is_sending(self) -> bool:
        """Whether the kernel has not taken all that was sent."""
        ...

    def send(self, data: bytes) -> bool:
        """Sends bytes; returns whether the kernel has taken all of them."""
        ...

    def read_more(self) -> None:
        """Reads more of the body, since the application has taken what came."""
        ...

    def answered(self, call: Call) -> None:
        """Handles that the whole answer was passed to the kernel."""
        ...


class Call:
    """One request, its answer, and the application's end of both.

    It does not refer to the scope, which refers to it: a circle would be left by each request for
    the garbage collector.

    Args:
        carrier: The connection.
        parser: What the head of the request says.
        is_head: Whether only the head of an answer is wanted.

    Attributes:
        keeps_alive: Whether the client may send another request on the connection.
        has_left: Whether the client is gone.
    """

    # Most requests change none of these; an attribute of the class costs them nothing.
    has_left = False
    _body: bytes | bytearray = b""
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
    _heartbeat: Heartbeat | None = None

    def __init__(self, carrier: Carrier, parser: HeadParser, *, is_head: bool) -> None:
        self._carrier = carrier
        self._shared = carrier.shared
        self.keeps_alive = parser.keeps_alive
        self._is_http_1_1 = parser.is_http_1_1
        self._is_head = is_head
        if parser.length != 0:
            self._is_partial = True
            self._expects = parser.expects

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
                    self._carrier.send(CONTINUE)
                self._expects = False
                await self._change()
            if self._body or not self._is_partial:
                body, self._body = bytes(self._body), b""
                has_more = self._is_partial
                if has_more:
                    self._carrier.read_more()  # more may arrive at once
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
        kind = message["type"]
        answer = self._answer
        if kind == "http.response.start":
            if answer != _NOT_BEGUN:
                raise RuntimeError("the answer has begun already")
            self._head = AnswerHead(message["status"], message.get("headers", ()))
            self._answer = _STARTED
            return
        if kind != "http.response.body" or answer == _NOT_BEGUN:
            raise RuntimeError(f"{kind!r} is not a message that can come here")
        if answer == _COMPLETE:
            raise RuntimeError("the answer is complete already")
        if answer == _SENDING:
            if self._carrier.is_sending:
                await self._sent()
                if self._is_over():
                    return
            else:
                self._sends += 1
                if self._sends % _SENDS_WITHOUT_CHECKPOINT == 0:
                    await anyio.lowlevel.checkpoint()
        data = message.get("body", b"")
        if not self._put(data, is_last=not message.get("more_body", False)):
            await self._sent()

    def when_left(self, callback: Callable[[], object] | None) -> None:
        """Sets what is called once when the client leaves before the answer is complete.

        It is called at once if the client has left already. It must not raise, or take long.
        """
        self._on_left = callback
        if callback is not None and self.has_left:
            callback()

    def extensions(self) -> dict[str, dict[str, Any]]:
        """Returns the extensions of the scope."""
        return {
            "shoal.disconnect": {
                "when_left": self.when_left,
                "heartbeat": self.heartbeat,
                "send_timeout_s": self._shared.send_timeout_s,
            }
        }

    def heartbeat(self, after_s: float, data: bytes) -> None:
        """Sends data as a part of the body whenever none was sent for a time, until its end.

        Args:
            after_s: The longest silence, in seconds.
            data: What is sent.
        """
        self._heartbeat = Heartbeat(self._shared.timeouts, after_s, partial(self._beat, data))

    # The connection's side.

    @property
    def has_begun(self) -> bool:
        """Whether a part of the answer was sent."""
        return self._answer > _STARTED

    @property
    def is_answered(self) -> bool:
        """Whether the whole answer was sent, or is being sent."""
        return self._answer == _COMPLETE

    def give_whole_body(self, body: bytes) -> None:
        """Takes the whole body of the request."""
        self._body = body
        self._is_partial = False

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
        self.has_left = True
        if self._heartbeat is not None:
            self._note_send(is_last=True)
        on_left, self._on_left = self._on_left, None
        if on_left is not None and self._answer != _COMPLETE:
            try:
                on_left()
            except Exception as error:
                _log.error("a callback for the client's leaving failed", exc_info=error)
        self.wake()

    def wake(self) -> None:
        """Wakes the tasks that wait for a change."""
        for waiter in self._waiters:
            self._shared.wake(waiter)

    # Both.

    def _put(self, data: bytes, *, is_last: bool) -> bool:
        """Sends a part of the body, after the head if that was not sent; see `Carrier.send`."""
        carrier = self._carrier
        head = b""
        if self._answer == _STARTED:
            head = self._encoded_head(len(data) if is_last else None)
        if self._to_send is not None:
            self._to_send -= len(data)
            if self._to_send < 0 or (is_last and self._to_send):
                raise RuntimeError("the body has another length than the Content-Length says")
        self._answer = _SENDING
        if self._is_chunked:
            if data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            if is_last:
                data += LAST_CHUNK
        elif not self._sends_body:
            data = b""
        if is_last:
            self._answer = _COMPLETE
            self._on_left = None
        if self._heartbeat is not None:
            self._note_send(is_last=is_last)
        if not head:
            is_sent = carrier.send(data) if data else True
        elif len(data) <= _JOINED:
            is_sent = carrier.send(head + data)
        else:
            carrier.send(head)
            is_sent = carrier.send(data)
        if is_last and is_sent:
            carrier.answered(self)
        return is_sent

    def _encoded_head(self, whole: int | None) -> bytes:
        """Returns the head of the answer, and decides how its body is delimited.

        Args:
            whole: The length of the body; None if only a part of it is known.
        """
        head = self._head
        assert head is not None
        self._head = None
        framing = b""
        if self._is_head or not head.has_body:
            self._sends_body = False
        elif head.length is not None:
            self._to_send = head.length
        elif whole is not None:
            framing = b"\r\ncontent-length: %d" % whole
        elif self._is_http_1_1:
            self._is_chunked = True
            framing = b"\r\ntransfer-encoding: chunked"
        else:  # the end of the connection is the end of the body
            self.keeps_alive = False
        shared = self._shared
        # An answer before the end of the request is the last one. A client that is not told so
        # would send its next request, and lose it.
        if head.closes or self._is_partial or shared.is_draining or not self.keeps_alive:
            self.keeps_alive = False
            framing += b"\r\nconnection: close"
        return head.encoded(framing, shared.date())

    def _beat(self, data: bytes) -> None:
        if self._answer == _SENDING and not self._carrier.is_sending:
            self._put(data, is_last=False)

    def _note_send(self, *, is_last: bool) -> None:
        if self._heartbeat is not None:
            self._heartbeat.is_silent = False
            if is_last:
                self._heartbeat.close()
                self._heartbeat = None

    async def _sent(self) -> None:
        """Waits until the kernel has taken all that was sent, or the client is gone."""
        while self._carrier.is_sending and not self.has_left:
            await self._change()

    def _is_over(self) -> bool:
        return self.has_left

    async def _change(self) -> None:
        waiter = self._shared.new_waiter()
        self._waiters = [*self._waiters, waiter]
        try:
            await waiter
        finally:
            self._waiters = [one for one in self._waiters if one is not waiter]
