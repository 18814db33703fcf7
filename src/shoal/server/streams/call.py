"""One call of the application on an HTTP/2 stream or a WebSocket: plain ASGI over a `Wire`.

The server's side consists of functions that do not wait, so that no action of a client can
interrupt a step. Only `receive` and `send` of the application wait.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol

import anyio.lowlevel

from shoal.asgi.extensions import DISCONNECT
from shoal.asgi.headers import FRAMING, WRONG_LENGTH, length_of
from shoal.loops.parking import Bell
from shoal.server.http1.call import status_line
from shoal.server.log_errors import contained
from shoal.server.served_call import SENDS_WITHOUT_CHECKPOINT, ServedCall

if TYPE_CHECKING:
    from starlette.types import Message, Scope

    from shoal.server.http1.head import Headers
    from shoal.server.shared import Shared
    from shoal.server.streams.connection import StreamConnection


class Wire(Protocol):
    """Carries one call: an HTTP/2 stream or a connection. After its end, methods do nothing."""

    accepts_with: int  # the status that accepts a WebSocket

    @property
    def connection(self) -> StreamConnection: ...

    def head(self, status: int, fields: Headers, *, is_last: bool) -> None:
        """Sends the head of a response, with the next `send` unless it is the last."""

    async def ready(self) -> None:
        """Waits until the data that was sent before is on its way."""

    async def send(self, data: bytes, *, is_last: bool = False) -> None:
        """Sends data and waits until it is on its way; a cancelled `send` sends it as well."""

    def post(self, frame: bytes, *, is_last: bool = False) -> None:
        """Sends a control frame soon. While it waits, a later one may replace it."""

    def reset(self, *, is_clients_fault: bool = False) -> None:
        """Ends it without an end mark."""

    def taken(self, size: int) -> None:
        """Lets the client send `size` more bytes."""


class AppCall(ServedCall):
    _shared: Shared
    _has_returned = _has_sent_head = False
    _head: tuple[int, Headers] | None = None
    _length: int | None = None  # of the rest of the body, if it is known
    _not_acknowledged = 0

    def __init__(self, wire: Wire, method: str, disconnect: Message) -> None:
        self._wire = wire
        self._connection = wire.connection
        self._shared = shared = wire.connection.shared
        self._method = method
        self._last_message = disconnect
        self._bell = Bell(shared.parking)

    async def run(self, scope: Scope) -> None:
        """Calls the application, as a task; ends the response if the application does not."""
        shared = self._shared
        if shared.proxies is not None:
            shared.proxies.complete(scope)
        scope["extensions"][DISCONNECT] = self
        if shared.options.access_log:
            self.begin_log()
        shared.calls_started += 1
        try:
            with contained(scope["raw_path"], self.log_failure):
                await shared.app(scope, self.receive, self.send)
        except BaseException:
            # The server is cancelled: the client must not receive an error of the call.
            self._connection.close()
            raise
        finally:
            self._has_returned = True
            self._on_left = None
            if not (self.is_over or self.is_complete):
                self._end()
            self.disconnected()
            shared.calls_finished += 1
            self._connection.call_ended(self)
            self.write_log(scope)

    # The application's side.

    async def receive(self) -> Message:
        """Returns the next message; after the last one the disconnect, at each call."""
        # Not a checkpoint if a message is there: Starlette's `Request.is_disconnected` calls it in
        # a cancelled scope, where a checkpoint would always report "no message".
        while (message := self._next_message()) is None:
            if self.is_over or self.is_complete:
                return await self._disconnect(self._last_message)
            await self._bell.change()
        return message

    async def send(self, message: Message) -> None:
        """Sends a message of ASGI, whole or (if it is cancelled) not at all."""
        if self.log is not None:
            self.log.note(message)
        self._sends += 1
        if self.is_over or self._has_returned or self._sends % SENDS_WITHOUT_CHECKPOINT == 0:
            await anyio.lowlevel.checkpoint()
        else:
            await anyio.lowlevel.checkpoint_if_cancelled()
        await self._wire.ready()  # nothing has changed if it is cancelled until here
        # Otherwise it is from a task that the application left behind, or the client is gone.
        if not (self.is_over or self._has_returned):
            await self._send(message)

    # The server's side.

    def drain(self) -> None:
        """Closes a WebSocket, or lets the application close it; a response may go on."""

    def ping(self) -> bool:
        """Pings an open WebSocket; returns whether it is one."""
        return False

    def disconnected(self) -> None:
        """Handles that the client is gone; earlier messages can still be received."""
        if not self.is_over:
            self.is_over = True
            self._acknowledge()
            self._call_back()
        self._bell.ring()

    def refuse(self, status: int) -> None:
        """Ends the call in place of the application, with this status if possible."""
        if self.is_over or self.is_complete:
            return
        if status == 408:
            self._connection.request_timed_out()
        if self.has_begun:
            self._wire.reset(is_clients_fault=status < 500)
        else:
            self.refusal = status
            self._wire.head(status, [], is_last=True)
        self.disconnected()

    def end_early(self) -> None:
        """Asks the application to end its response; sends 503 if it can't be asked."""
        if not self.ask_to_end():
            self.refuse(503)

    # Parts.

    @abstractmethod
    def _next_message(self) -> Message | None:
        """Returns the client's next message; None if there is none yet."""

    @abstractmethod
    async def _send(self, message: Message) -> None:
        pass

    def _end(self) -> None:
        if self.has_begun:  # the client must not take it for the whole response
            self._wire.reset()
        elif self._is_cut_off:
            self.refuse(503)
        else:
            self.refusal = 500
            self._wire.head(500, [], is_last=True)

    def _begin(self, message: Message) -> None:
        """Keeps the head of a response, which is sent with the first part of its body."""
        if self._head is not None:
            raise RuntimeError("the response has begun already")
        status = message["status"]
        status_line(status)  # raises for an invalid status
        headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        length = length_of(headers)
        if self._method == "HEAD" or status in (204, 304):
            length = None
        self._length = length
        # With a length beside 204 or 304 some clients fail.
        dropped = FRAMING | {b"content-length"} if status in (204, 304) else FRAMING
        fields = [
            (lower, value) for name, value in headers if (lower := name.lower()) not in dropped
        ]
        self._head = status, fields
        self.has_begun = True

    async def _send_body(self, message: Message) -> None:
        if self._head is None or self.is_complete:
            raise RuntimeError(f"{message['type']!r} is not a message that is allowed here")
        data, is_last = message.get("body", b""), not message.get("more_body", False)
        if type(data) is not bytes:
            data = bytes(memoryview(data))  # the application may change it later
        status, fields = self._head
        if self._method == "HEAD" or status in (204, 304):
            data = b""
        if self._length is not None:
            if len(data) > self._length or (is_last and len(data) < self._length):
                raise RuntimeError(WRONG_LENGTH)
            self._length -= len(data)
        is_whole = is_last and not (data or self._has_sent_head)
        if not self._has_sent_head:
            self._has_sent_head = True
            self._wire.head(status, fields, is_last=is_whole)
        if is_last:
            self._complete()
        if not is_whole:
            await self._wire.send(data, is_last=is_last)

    def _acknowledge(self) -> None:
        """Lets the client send more, for the messages that were processed."""
        size, self._not_acknowledged = self._not_acknowledged, 0
        if size:
            self._wire.taken(size)

    def _complete(self) -> None:
        self.is_complete = True
        self._on_left = None
        self._bell.ring()
