"""One stream of HTTP/2, which sends data as its client's flow-control windows allow, and its call.

The stream's flow-control window bounds the unread part of a request's body: data is acknowledged
once the application has received it.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from shoal.loops.parking import Bell
from shoal.server.http1.call import http_date
from shoal.server.streams.call import AppCall
from shoal.server.timeouts import BodyTimeout, time_to_send_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from h2.connection import H2Connection
    from starlette.types import Message

    from shoal.server.http1.head import Headers
    from shoal.server.streams.call import Wire
    from shoal.server.streams.connection import StreamConnection


# Every client takes frames of this size.
_FRAME: Final = 2**14


class Http2Stream:
    accepts_with = 200

    def __init__(
        self,
        connection: StreamConnection,
        h2: H2Connection,
        stream_id: int,
        ended: Callable[[], object],
    ) -> None:
        self.connection = connection
        self._h2 = h2
        self._id = stream_id
        self._ended = ended
        # One task at a time sends the unsent messages, in their order.
        self._order = anyio.Lock(fast_acquire=True)
        self._rest: deque[memoryview] = deque()
        self._ends = False
        self._window = Bell(connection.shared.parking)
        self._is_closed = False
        self._posted: tuple[bytes, bool] | None = None
        self._is_posting = False

    def window_opened(self) -> None:
        self._window.ring()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._rest.clear()
            self._window.ring()
            self._ended()

    # The methods of a `Wire`.

    def head(self, status: int, fields: Headers, *, is_last: bool) -> None:
        if self._is_closed:
            return
        fields = [(b":status", b"%d" % status), *fields]
        if all(name != b"date" for name, _ in fields):
            fields.append((b"date", http_date(int(time.time()))))
        with suppress(ProtocolError):  # the client has reset it, and the event follows
            self._h2.send_headers(self._id, fields, end_stream=is_last)
        if is_last:
            self._flush()
            self.close()

    async def ready(self) -> None:
        if self._rest:
            await self._send_rest()

    async def send(self, data: bytes, *, is_last: bool = False) -> None:
        if not self._is_closed:
            self._rest.append(memoryview(data))
            self._ends = self._ends or is_last
            try:
                await self._send_rest()
            finally:
                if self._rest:  # it was cancelled
                    self.connection.spawn(self._send_rest)

    def post(self, frame: bytes, *, is_last: bool = False) -> None:
        self._posted = frame, is_last
        if not (self._is_posting or self._is_closed):
            self._is_posting = True
            self.connection.spawn(self._send_posted)

    def reset(self, *, is_clients_fault: bool = False) -> None:
        self._reset(ErrorCodes.PROTOCOL_ERROR if is_clients_fault else ErrorCodes.INTERNAL_ERROR)

    def taken(self, size: int) -> None:
        # The data of an ended stream still opens the connection's window.
        if not self.connection.is_closed:
            with suppress(ProtocolError):
                self._h2.acknowledge_received_data(size, self._id)
            self._flush()

    # Parts.

    def _flush(self) -> None:
        self.connection.write(self._h2.data_to_send())

    def _reset(self, code: ErrorCodes) -> None:
        if not self._is_closed:
            with suppress(ProtocolError):  # the client has reset it first
                self._h2.reset_stream(self._id, code)
            self._flush()
            self.close()

    async def _send_posted(self) -> None:
        while self._posted is not None:
            (frame, is_last), self._posted = self._posted, None
            await self.send(frame, is_last=is_last)
        self._is_posting = False

    async def _send_rest(self) -> None:
        """Sends unsent messages; resets the stream if the client does not take them in time."""
        timeout_s = self.connection.shared.options.send_timeout_s
        async with self._order:
            size = sum(map(len, self._rest))
            with anyio.move_on_after(time_to_send_s(size, timeout_s)) as scope:
                await self._send_frames()
            if scope.cancelled_caught:
                self.connection.request_timed_out()
                self._reset(ErrorCodes.CANCEL)

    async def _send_frames(self) -> None:
        connection, has_room = self.connection, False
        while self._rest:
            left = self._rest[0]
            try:
                window = self._h2.local_flow_control_window(self._id)
                # A client may shrink its windows, which can make them negative.
                size = max(0, min(window, self._h2.max_outbound_frame_size, len(left)))
                if left and not size:
                    self._flush()  # the head; this may find the client gone
                    if self._rest:
                        await self._window.change()
                elif size >= _FRAME and not has_room:
                    await connection.room()
                    has_room = True
                elif connection.is_blocked:
                    await connection.unblocked()
                else:
                    has_room = False
                    self._send_frame(left, size)
            except ProtocolError:  # h2 has ended the stream, and the event follows
                self.close()

    def _send_frame(self, left: memoryview, size: int) -> None:
        """Sends a part of the first unsent message, or all of it."""
        if size < len(left):
            self._rest[0] = left[size:]
        else:
            self._rest.popleft()
        is_last = self._ends and not self._rest
        if size:
            self._h2.send_data(self._id, bytes(left[:size]), end_stream=is_last)
        elif is_last:
            self._h2.end_stream(self._id)  # which needs no window
        self._flush()
        if is_last:
            self.close()


# From this size of unread data on, the client may have no room to send.
_MUCH_UNREAD: Final = 2**15


class Http2Call(AppCall):
    def __init__(self, wire: Wire, method: str, length: int | None, *, has_body: bool) -> None:
        super().__init__(wire, method, {"type": "http.disconnect"})
        self._to_come = length  # bytes, if the head has a length
        self._body = bytearray()
        self._is_partial = has_body
        self._gives_body = True
        self._timeout: BodyTimeout | None = None
        if has_body:
            shared = self._shared
            self._timeout = BodyTimeout(
                shared.timeouts, shared.options.body_timeout_s, partial(self.refuse, 408)
            )

    async def data_received(self, data: bytes, size: int) -> None:
        """Adds a part of the body; `size` is its share of the flow-control window."""
        self._not_acknowledged += size
        if self._to_come is not None:
            self._to_come -= len(data)
            if self._to_come < 0:
                self.refuse(400)
                return
        self._body += data
        if self._timeout is not None:
            self._timeout.received(len(data))
            if len(self._body) >= _MUCH_UNREAD:
                self._timeout.pause()
        self._bell.ring()

    def input_ended(self) -> None:
        if self._to_come:
            self.refuse(400)
            return
        self._is_partial = False
        self._end_timeout()
        self._bell.ring()

    def disconnected(self) -> None:
        self._end_timeout()
        super().disconnected()

    def _next_message(self) -> Message | None:
        if not self._gives_body or (self._is_partial and not self._body):
            return None
        body, self._body = bytes(self._body), bytearray()
        self._gives_body = has_more = self._is_partial
        self._acknowledge()
        if self._timeout is not None and len(body) >= _MUCH_UNREAD:
            self._timeout.resume()
        return {"type": "http.request", "body": body, "more_body": has_more}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begin(message)
        elif message["type"] == "http.response.body":
            await self._send_body(message)
        else:
            raise RuntimeError(f"{message['type']!r} is not a message that is allowed here")

    def _complete(self) -> None:
        super()._complete()
        self._end_timeout()

    def _end_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.close()
            self._timeout = None
