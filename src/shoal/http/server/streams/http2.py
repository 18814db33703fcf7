"""HTTP/2: Hypercorn's protocol, hardened against misbehaving clients.

Each fix is one override, with a comment on what the stock class does. Misbehaviour that is not
covered here still ends only the client's own connection (`shoal.http.server.streams.connection`).
The fixes serve correct clients, and correct streams on a connection with a misbehaving one.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import h2.errors
import h2.events
import h2.exceptions
from hypercorn.events import Closed, Event
from hypercorn.protocol.events import (
    Body,
    Data,
    EndBody,
    EndData,
    InformationalResponse,
    Request,
    Response,
    StreamClosed,
    Trailers,
)
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import (
    BUFFER_HIGH_WATER,
    BUFFER_LOW_WATER,
    BufferCompleteError,
    H2Protocol,
    StreamBuffer,
)
from hypercorn.protocol.ws_stream import WSStream

from shoal.http.requests.header_check import WRONG_LENGTH, check_headers, length_of
from shoal.http.server.http1.answer import status_line
from shoal.http.server.http1.bad_request import BadRequest
from shoal.http.server.hypercorn import Context
from shoal.http.server.sockets.timeouts import time_to_send_s
from shoal.http.server.streams.http2_head import check_trailers, read_head
from shoal.http.server.streams.websocket import (
    NOT_PASSED_ON,
    close_websocket,
    harden,
    is_open,
    ping,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.http.server.http1.head import HeadParser

# It logs each header, and so its clients' tokens, wherever all loggers are set to DEBUG.
_hpack_log: Final = logging.getLogger("hpack")
if _hpack_log.level == logging.NOTSET:
    _hpack_log.setLevel(logging.INFO)

# A client may reset so many requests before they are answered, and half of all after that.
_MOST_RESETS: Final = 100
# A head this many times over the limit ends the connection, since decoding it takes too long.
_HEADS_REFUSED_IN_WORDS: Final = 8
# The size of a frame that every client takes.
_FRAME: Final = 2**14


class TooManyResets(Exception):
    """The client resets most of its requests before they are answered."""


class _BoundedBuffer(StreamBuffer):
    """A stream's unsent bytes; tasks that add bytes wait until most are sent.

    The stock class checks how much was removed rather than how much is left, so that a client which
    reads little makes the buffer grow without bound. It also reports an answer as sent before its
    end mark is sent, so that closing a draining connection can interrupt the answer. And it copies
    what the application sends, which a client that does not read then holds twice.

    Attributes:
        size: How many bytes are unsent.
        to_come: How many bytes of the body are to come; None if its length is not known.
        ended: Set when the end mark was sent, or nothing more will be.
    """

    to_come: int | None = None

    def __init__(self) -> None:
        super().__init__(Context.event_class)
        self.size = 0
        self.ended = Context.event_class()
        # Views of what the application has sent, and small pieces that are joined.
        self._pieces: list[memoryview | bytearray] = []

    @property
    def is_whole(self) -> bool:
        """Whether nothing more is added."""
        return self._complete

    @property
    def complete(self) -> bool:
        return self._complete and not self.size

    def expect(self, size: int, *, is_last: bool) -> None:
        """Checks the length of the body with a part that comes; raises `RuntimeError`."""
        if self.to_come is not None:
            self.to_come -= size
            if self.to_come < 0 or (is_last and self.to_come):
                raise RuntimeError(WRONG_LENGTH)

    async def push(self, data: bytes) -> None:
        if self._complete:
            raise BufferCompleteError
        self._add(data)
        await self._is_empty.clear()
        if self.size >= BUFFER_HIGH_WATER:
            await self._paused.wait()
            await self._paused.clear()

    async def pop(self, max_length: int) -> bytes:
        data = self._removed(max_length)
        if self.size < BUFFER_LOW_WATER:
            await self._paused.set()
        if not self.size:
            await self._is_empty.set()
        return cast("bytes", data)  # h2 takes views as well

    async def drain(self) -> None:
        await super().drain()
        if self._complete:
            await self.ended.wait()

    async def close(self) -> None:
        self._pieces.clear()
        self.size = 0
        self.ended.set_now()
        await super().close()

    def _add(self, data: bytes) -> None:
        self.size += len(data)
        if len(data) >= _FRAME:
            # `bytes` copies what is not of this type, which the application may change later.
            self._pieces.append(memoryview(bytes(data)))
            return
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, bytearray) and len(last) + len(data) <= _FRAME:
            last += data
        else:
            self._pieces.append(bytearray(data))

    def _removed(self, max_length: int) -> memoryview | bytearray:
        if not self._pieces:
            return bytearray()
        first = self._pieces[0]
        data = first[:max_length]
        self.size -= len(data)
        if len(data) == len(first):
            del self._pieces[0]
        else:
            self._pieces[0] = first[max_length:]
        return data


class _BoundedBuffers(dict[int, StreamBuffer]):
    """The protocol's buffers by stream; replaces each one that is added by a bounded one.

    The protocol removes a buffer when it has sent the end mark.
    """

    def __setitem__(self, stream_id: int, _: StreamBuffer) -> None:
        super().__setitem__(stream_id, _BoundedBuffer())

    def __delitem__(self, stream_id: int) -> None:
        buffer = self[stream_id]
        super().__delitem__(stream_id)
        if isinstance(buffer, _BoundedBuffer):
            buffer.ended.set_now()


class _Values(list[int]):
    """The values of a setting of HTTP/2, the current one first."""

    __slots__ = ()

    def popleft(self) -> int:
        return self.pop(0)


def _shrink(settings: Any) -> None:
    # h2 has a deque for each setting; the deques of a connection take 8 KiB, a third of all that
    # it holds. No public API of h2 avoids that. With an h2 that stores its settings elsewhere,
    # nothing changes.
    values = getattr(settings, "_settings", {})
    for code in values:
        values[code] = _Values(values[code])


class Http2(H2Protocol):
    """HTTP/2 by prior knowledge."""

    send_timeout_s: float
    wait_to_send: Callable[[], Awaitable[object]]  # awaited before a large frame is sent
    gave_up: Callable[[], object]  # called when a client has not taken data in time
    parser: HeadParser  # of the heads of its requests
    refused: Callable[[int, int], object]  # called with status and size when one is refused
    _requests = 0
    _resets = 0  # of requests that were not answered
    is_client_done = False  # it may send frames for the connection at any time

    @property
    def is_idle(self) -> bool:
        """Whether no stream is open."""
        return not self.streams

    @property
    def has_websockets(self) -> bool:
        """Whether a stream is an open WebSocket."""
        return any(is_open(stream) for stream in self.streams.values())

    async def ping(self) -> None:
        """Asks the client for a sign of life, on each WebSocket."""
        for stream in list(self.streams.values()):
            if isinstance(stream, WSStream):
                await ping(stream)

    def farewell(self) -> bytes:
        """Returns the frame that says that the connection is closed."""
        with suppress(h2.exceptions.ProtocolError):
            self.connection.close_connection()
        return self.connection.data_to_send()

    def forget(self) -> None:
        """See `StreamProtocol.forget`."""
        vars(self.connection).clear()
        vars(self).clear()

    async def initiate(
        self, headers: list[tuple[bytes, bytes]] | None = None, settings: bytes | None = None
    ) -> None:
        """Starts the protocol."""
        self.stream_buffers = _BoundedBuffers()
        # This module checks heads: h2 would end the connection for one that is malformed or large.
        self.connection.config.validate_inbound_headers = False
        longest = self.parser.options.max_head_bytes
        self.connection.decoder.max_header_list_size = _HEADS_REFUSED_IN_WORDS * longest
        _shrink(self.connection.local_settings)
        _shrink(self.connection.remote_settings)
        await super().initiate(headers, settings)

    async def close_websockets(self) -> None:
        """Closes each open WebSocket, with the reason that the server restarts."""
        for stream in list(self.streams.values()):
            if isinstance(stream, WSStream):
                await close_websocket(stream)

    async def handle(self, event: Event) -> None:
        """Handles data from the socket, or its end."""
        await super().handle(event)
        # With the stock class an application that waits for a client's flow-control window waits
        # for ever when that client is gone.
        if isinstance(event, Closed):
            for buffer in self.stream_buffers.values():
                await buffer.close()

    def handle_now(self, data: bytes) -> None:
        """Returns None: nothing is quickly read."""

    async def stream_send(self, event: StreamEvent) -> None:
        """Sends a part of an answer."""
        # A client that does not open its flow-control window blocks its stream and not the socket,
        # so the socket's deadline does not apply. Only that stream is reset.
        buffer = cast("_BoundedBuffer | None", self.stream_buffers.get(event.stream_id))
        if not isinstance(event, Body | Data | EndBody | EndData | Trailers):
            if isinstance(event, Response) and buffer is not None:
                status_line(event.status_code)
                length = length_of(event.headers)
                if self._has_body(event):
                    buffer.to_come = length
                elif event.status_code in (204, 304):  # its length makes some clients fail
                    headers = [one for one in event.headers if one[0] != b"content-length"]
                    event = replace(event, headers=headers)
            elif isinstance(event, InformationalResponse | Request):
                check_headers(one for one in event.headers if not one[0].startswith(b":"))
            elif isinstance(event, StreamClosed) and buffer is not None and not buffer.is_whole:
                await self._end(event.stream_id, buffer)
            await super().stream_send(event)
            return
        if isinstance(event, Trailers):
            check_headers(event.headers)
        added = len(event.data) if isinstance(event, Body | Data) else 0
        size = added
        if buffer is not None:
            buffer.expect(added, is_last=isinstance(event, EndBody))
            size += buffer.size
        with anyio.move_on_after(time_to_send_s(size, self.send_timeout_s)) as timeout:
            await super().stream_send(event)
        if timeout.cancelled_caught:
            self.gave_up()
            await self._reset(event.stream_id, h2.errors.ErrorCodes.CANCEL)

    def _has_body(self, event: Response) -> bool:
        if event.status_code in (204, 304) or event.stream_id not in self.streams:  # it was reset
            return False
        scope: Any = self.streams[event.stream_id].scope
        return scope.get("method") != "HEAD"

    async def _end(self, stream_id: int, buffer: _BoundedBuffer) -> None:
        """Ends a stream whose answer is not whole."""
        if not is_open(self.streams.get(stream_id)):
            # The stock class leaves it open; its client must not take it for the whole answer.
            await self._reset(stream_id, h2.errors.ErrorCodes.INTERNAL_ERROR)
            return
        # After the closing frame of a WebSocket. Nothing waits for the client here.
        buffer.set_complete()
        self.priority.unblock(stream_id)
        await self.has_data.set()

    async def _send_data(self, stream_id: int) -> None:
        buffer = self.stream_buffers.get(stream_id)
        if isinstance(buffer, _BoundedBuffer) and buffer.size >= _FRAME:
            await self.wait_to_send()
        await super()._send_data(stream_id)

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.RequestReceived) and self.context.terminated.is_set():
                # The error code tells the client that it may safely retry, elsewhere.
                await self._reset(event.stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
            elif isinstance(event, h2.events.StreamReset) and event.stream_id in self.streams:
                self._resets += 1
                if self._resets > _MOST_RESETS and 2 * self._resets > self._requests:
                    self.connection.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
                    await self._flush()
                    # It also cancels the calls that ignore that their client has left.
                    raise TooManyResets(self._resets)
                await super()._handle_events([event])
            # A body may go on after its answer was complete (an early 413). The stock class looks
            # up the stream and fails. Here the client is told to stop, and the data under way is
            # acknowledged for the connection's window, so that its other streams go on.
            elif isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                self.connection.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id
                )
                if event.stream_id not in self.stream_buffers:
                    await self._reset(event.stream_id, h2.errors.ErrorCodes.NO_ERROR)
            elif isinstance(event, h2.events.TrailersReceived) and event.stream_id in self.streams:
                try:
                    check_trailers(event.headers)
                except BadRequest as error:
                    calls: Any = self.task_group
                    calls.refuse(self.streams[event.stream_id], error.status)
            else:
                await super()._handle_events([event])
        await self._flush()

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        self._requests += 1
        try:
            headers = read_head(self.parser, request.headers)
        except BadRequest as error:
            self._refuse(request, error)
            return
        # The stock class accepts what a client offers for a WebSocket, such as compression.
        request.headers = [header for header in headers if header[0] not in NOT_PASSED_ON]
        await super()._create_stream(request)
        stream = self.streams.get(request.stream_id)
        if isinstance(stream, WSStream):
            harden(stream)

    def _refuse(self, request: h2.events.RequestReceived, error: BadRequest) -> None:
        stream_id, body = request.stream_id, f"{error}\n".encode()
        connection = self.connection
        has_room = connection.local_flow_control_window(stream_id) >= len(body)
        headers = [
            (b":status", b"%d" % error.status),
            (b"content-type", b"text/plain; charset=utf-8"),
        ]
        connection.send_headers(stream_id, headers, end_stream=not has_room)
        if has_room:
            connection.send_data(stream_id, body, end_stream=True)
        if request.stream_ended is None:
            connection.reset_stream(stream_id, h2.errors.ErrorCodes.NO_ERROR)
        self.refused(error.status, len(body) if has_room else 0)

    async def _reset(self, stream_id: int, code: h2.errors.ErrorCodes) -> None:
        with suppress(h2.exceptions.ProtocolError):  # the client has reset it first
            self.connection.reset_stream(stream_id, code)
        if (buffer := self.stream_buffers.get(stream_id)) is not None:
            await buffer.close()
        await self._close_stream(stream_id)
        await self._window_updated(stream_id)  # wakes the sending task, which drops the stream
        await self._flush()
