"""One stream of HTTP/2: sends data as its client's flow-control windows allow."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from shoal.server.change import Change
from shoal.server.sockets.timeouts import time_to_send_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from h2.connection import H2Connection

    from shoal.server.streams.call import Fields
    from shoal.server.streams.connection import StreamConnection

# Every client takes frames of this size.
_FRAME: Final = 2**14


class Http2Stream:
    """One stream, as the `Wire` of its call."""

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
        self._window = Change(connection.shared)
        self._is_closed = False
        self._posted: tuple[bytes, bool] | None = None
        self._is_posting = False

    def window_opened(self) -> None:
        self._window.signal()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._rest.clear()
            self._window.signal()
            self._ended()

    # The methods of a `Wire`.

    def head(self, status: int, fields: Fields, *, is_last: bool) -> None:
        if self._is_closed:
            return
        fields = [(b":status", b"%d" % status), *fields]
        if all(name != b"date" for name, _ in fields):
            fields.append((b"date", self.connection.shared.date_now().partition(b": ")[2]))
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
        if (
            not self.connection.is_closed
        ):  # an ended stream's data still opens the connection's window
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
        timeout_s = self.connection.shared.send_timeout_s
        async with self._order:
            size = sum(map(len, self._rest))
            with anyio.move_on_after(time_to_send_s(size, timeout_s)) as scope:
                await self._send_frames()
            if scope.cancelled_caught:
                self.connection.gave_up()
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
                    self._flush()  # the head
                    await self._window.wait()
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
