"""A connection that speaks HTTP/2: what drives h2, the state machine of the protocol.

h2 is given what was received, and says what that means; it is told what to send, and gives its
bytes. It knows no sockets, and nothing of it waits. Each stream has a task, which calls the
application. When that sends data, its own task waits for the client's flow-control windows and for
the socket, so that a client which reads one stream slowly holds up that one alone.

Some faults end the whole connection, since h2 has no way to end a stream alone for them: trailers
that do not end their stream, and a head many times over the limit. Wrong lengths are not among
them; see `HeadDecoder`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from typing_extensions import override

from shoal.http.server.http1.bad_request import BadRequest
from shoal.http.server.http1.head import HeadParser
from shoal.http.server.http1.scope import scope_of_refused
from shoal.http.server.streams.call import Change, scope_of
from shoal.http.server.streams.connection import StreamConnection
from shoal.http.server.streams.http2_call import Http2Call
from shoal.http.server.streams.http2_head import HeadDecoder, check_trailers, read_head
from shoal.http.server.streams.websocket import WebSocketCall, check_handshake

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from h2.events import Event

    from shoal.http.server.shared import Shared
    from shoal.http.server.sockets.tls import TlsTransport
    from shoal.http.server.sockets.transport import Transport
    from shoal.http.server.streams.call import Fields, StreamCall

_MOST_STREAMS: Final = 100
# What the windows of all streams allow a client to send, so that one whose application does not
# read takes nothing from the others.
_WINDOW: Final = _MOST_STREAMS * 2**16
# A client that opens streams and resets them at once leaves calls that have not noticed the reset.
_MOST_CALLS: Final = 2 * _MOST_STREAMS
# A client may reset so many requests before they are answered, and half of all after that.
_MOST_RESETS: Final = 100
# The size of a frame that every client takes.
_FRAME: Final = 2**14
# A client may take the send time-out for each so many bytes.
_PER_TIMEOUT: Final = 2**18


class TooManyResets(Exception):
    """The client resets most of its requests before they are answered."""


class _Open(NamedTuple):
    """A stream on which more is to be sent, and its call."""

    stream: Http2Stream
    call: Http2Call | WebSocketCall


class Http2Connection(StreamConnection):
    """Serves one client that speaks HTTP/2 by prior knowledge, or by ALPN.

    Args:
        shared: The state of the address.
        transport: The client's socket.
        released: Called once, when the connection has ended.
    """

    def __init__(
        self, shared: Shared, transport: Transport | TlsTransport, released: Callable[[], object]
    ) -> None:
        super().__init__(shared, transport, released)
        self._h2: H2Connection
        self._parser = HeadParser(shared.options)
        self._streams: dict[int, _Open] = {}
        self._requests = 0
        self._resets = 0  # of requests that were not answered

    @override
    def _begin(self) -> None:
        longest = self.shared.options.max_head_bytes
        # This package checks heads: h2 would end the connection for one that is malformed or large.
        config = H2Configuration(
            client_side=False, header_encoding=None, validate_inbound_headers=False
        )
        self._h2 = H2Connection(config)
        self._h2.decoder = HeadDecoder(longest)
        self._h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: _MOST_STREAMS,
                SettingCodes.MAX_HEADER_LIST_SIZE: longest,
                SettingCodes.ENABLE_CONNECT_PROTOCOL: 1,
            },
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_WINDOW - 2**16 + 1)
        self.flush()

    @override
    async def _handle(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
        except ProtocolError:
            self._leave()
            return
        for event in events:
            if self.is_closed:
                return
            await self._handle_event(event)
        self.flush()

    async def _handle_event(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._open(event)
        elif isinstance(event, ConnectionTerminated):  # h2 sends nothing after it
            self._leave()
        elif isinstance(event, RemoteSettingsChanged):
            self._window_opened(0)
        elif isinstance(event, WindowUpdated):
            self._window_opened(event.stream_id or 0)
        elif isinstance(event, DataReceived):
            await self._take_data(event)
        elif isinstance(event, StreamEnded | StreamReset | TrailersReceived):
            found = self._streams.get(event.stream_id or 0)
            if found is not None:
                self._handle_end(*found, event)

    def _handle_end(
        self,
        stream: Http2Stream,
        call: Http2Call | WebSocketCall,
        event: StreamEnded | StreamReset | TrailersReceived,
    ) -> None:
        if isinstance(event, StreamReset):
            stream.close()
            call.leave()
            self._count_reset()
        elif isinstance(event, StreamEnded):
            call.input_ended()
        else:
            try:
                check_trailers(event.headers or ())
            except BadRequest as error:
                call.refuse(error.status)

    async def _take_data(self, event: DataReceived) -> None:
        found = self._streams.get(event.stream_id or 0)
        data, size = event.data or b"", event.flow_controlled_length or 0
        if found is None:
            # A body may go on after its response was complete (an early 413). The client is told to
            # stop, and what is under way is acknowledged, so that its other streams go on.
            self.taken(event.stream_id or 0, size)
            self.reset(event.stream_id or 0, ErrorCodes.NO_ERROR)
        else:
            await found.call.data_received(data, size)

    def _count_reset(self) -> None:
        self._resets += 1
        if self._resets > _MOST_RESETS and 2 * self._resets > self._requests:
            self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            self.flush()
            # It also cancels the calls that ignore that their client has left.
            raise TooManyResets(self._resets)

    def _window_opened(self, stream_id: int) -> None:
        if stream_id:
            found = self._streams.get(stream_id)
            if found is not None:
                found.stream.window_opened()
        else:
            for each in self._streams.values():
                each.stream.window_opened()

    # Requests.

    def _open(self, event: RequestReceived) -> None:
        """Begins to answer a request."""
        self._requests += 1
        stream_id = event.stream_id or 0
        if self.shared.is_draining:
            # The error code tells the client that it may safely retry, elsewhere.
            self.reset(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        if len(self.calls) >= _MOST_CALLS:
            raise RuntimeError(f"{len(self.calls)} calls are running on one connection")
        parser = self._parser
        has_body = event.stream_ended is None
        try:
            is_websocket = read_head(parser, event.headers or ())
            if self.shared.guard is not None:
                method = "" if is_websocket else parser.line.method
                self.shared.guard.check(method, parser.host, parser.origin)
            if is_websocket:
                check_handshake(parser)
        except BadRequest as error:
            self._refuse(stream_id, error, has_body=has_body)
            return
        stream = Http2Stream(self, stream_id)
        call: Http2Call | WebSocketCall
        if is_websocket:
            call = WebSocketCall(stream, parser)
            scope = call.scope("2", parser)
        else:
            has_length = b"content-length" in parser.by_name
            length = parser.length if has_length else None
            call = Http2Call(stream, parser.line.method, length, has_body=has_body)
            scope = scope_of("http", "2", parser, stream)
        self._streams[stream_id] = _Open(stream, call)
        self.calls.add(call)
        self.spawn(call.run, scope)

    def _refuse(self, stream_id: int, error: BadRequest, *, has_body: bool) -> None:
        """Answers a request that the application does not see."""
        body = f"{error}\n".encode()
        fields = [
            (b":status", b"%d" % error.status),
            (b"content-type", b"text/plain; charset=utf-8"),
        ]
        has_room = False
        with suppress(ProtocolError):  # the client has reset it, or has ended its body since
            has_room = self._h2.local_flow_control_window(stream_id) >= len(body)
            self._h2.send_headers(stream_id, fields, end_stream=not has_room)
            if has_room:
                self._h2.send_data(stream_id, body, end_stream=True)
            if has_body:
                self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
        scope = {**scope_of_refused(self._parser, self.peer), "http_version": "2"}
        self.shared.refusals.note(scope, error.status, len(body) if has_room else 0, 0.0)

    # What the streams use.

    def send_head(self, stream_id: int, fields: Fields, *, is_last: bool) -> None:
        """Has a head sent with what is sent next."""
        with suppress(ProtocolError):
            self._h2.send_headers(stream_id, fields, end_stream=is_last)

    def sendable(self, stream_id: int) -> int:
        """Returns how much the client takes in one frame of a stream, in bytes."""
        window = self._h2.local_flow_control_window(stream_id)
        return min(window, self._h2.max_outbound_frame_size)

    def send_data(self, stream_id: int, data: bytes, *, is_last: bool) -> None:
        """Sends a frame."""
        self._h2.send_data(stream_id, data, end_stream=is_last)
        self.flush()

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        """Resets a stream."""
        with suppress(ProtocolError):  # the client has reset it first
            self._h2.reset_stream(stream_id, code)
        self.flush()

    def taken(self, stream_id: int, size: int) -> None:
        """Lets the client send more."""
        if not self.is_closed:
            with suppress(ProtocolError):
                self._h2.acknowledge_received_data(size, stream_id)
            self.flush()

    def flush(self) -> None:
        """Sends what h2 has to send."""
        self.write(self._h2.data_to_send())

    def stream_ended(self, stream_id: int) -> None:
        """Handles that nothing more is sent on a stream."""
        if self._streams.pop(stream_id, None) is not None and not self.is_closed:
            if self.shared.is_draining and not self._streams:
                self.write(self._farewell())
            self.changed()

    def give_up_on(self, stream_id: int) -> None:
        """Ends a stream whose client does not take what is sent."""
        self.gave_up()
        found = self._streams.get(stream_id)
        if found is not None:
            found.stream.reset_with(ErrorCodes.CANCEL)
            found.call.leave()

    # Ends.

    def _leave(self) -> None:
        """Ends the connection, after h2 has said that nothing more can be sent on it."""
        self.flush()
        self.finish()
        for call in tuple(self.calls):
            call.leave()

    @override
    def finish(self) -> None:
        super().finish()
        self._close_streams()

    @override
    def _close_socket(self) -> None:
        super()._close_socket()
        self._close_streams()

    def _close_streams(self) -> None:
        for stream, _ in tuple(self._streams.values()):
            stream.close()

    @override
    def _input_ended(self) -> None:
        for call in tuple(self.calls):
            if isinstance(call, WebSocketCall):
                call.input_ended()  # after its messages
            else:
                call.leave()

    @override
    def client_ended(self) -> None:
        for call in tuple(self.calls):
            if isinstance(call, Http2Call):
                call.leave()
        super().client_ended()

    @override
    def _farewell(self) -> bytes:
        with suppress(ProtocolError):
            self._h2.close_connection()
        return self._h2.data_to_send()

    @property
    @override
    def _is_idle(self) -> bool:
        return not self._streams


class Http2Stream:
    """One stream, as the `Wire` of its call.

    Invariant: ``_rest`` and ``_ends`` are what is left to send of one message; whoever sends the
    next one sends that first.

    Args:
        connection: The connection.
        stream_id: Its number.

    """

    accepts_with = 200

    def __init__(self, connection: Http2Connection, stream_id: int) -> None:
        self.shared = connection.shared
        self.peer = connection.peer
        self.name = connection.name
        self._connection = connection
        self._id = stream_id
        self._order = anyio.Lock(fast_acquire=True)
        self._rest: memoryview | bytes = b""
        self._ends = False
        self._window = Change(connection.shared)
        self._is_closed = False
        self._posted: tuple[bytes, bool] | None = None
        self._is_posting = False

    def window_opened(self) -> None:
        """Handles that the client takes more."""
        self._window.signal()

    def close(self) -> None:
        """Handles that nothing more is sent."""
        if not self._is_closed:
            self._is_closed = True
            self._rest, self._ends = b"", False
            self._window.signal()
            self._connection.stream_ended(self._id)

    # As a `Wire`.

    def head(self, status: int, fields: Fields, *, is_last: bool) -> None:
        """See `Wire`."""
        if self._is_closed or self._connection.is_closed:
            return
        fields = [(b":status", b"%d" % status), *fields]
        if all(name != b"date" for name, _ in fields):
            fields.append((b"date", self.shared.date_now().partition(b": ")[2]))
        self._connection.send_head(self._id, fields, is_last=is_last)
        if is_last:
            self._connection.flush()
            self.close()

    async def send(self, data: bytes, *, is_last: bool = False) -> None:
        """See `Wire`."""
        async with self._order:
            await self._send_rest()
            if self._is_closed:
                return
            self._rest, self._ends = memoryview(data), is_last
            try:
                await self._send_rest()
            finally:
                if self._rest or self._ends:  # it was cancelled
                    self.spawn(self._go_on)

    def post(self, frame: bytes, *, is_last: bool = False) -> None:
        """See `Wire`."""
        self._posted = frame, is_last
        if not (self._is_posting or self._is_closed):
            self._is_posting = True
            self.spawn(self._send_posted)

    def reset(self, *, is_clients_fault: bool = False) -> None:
        """See `Wire`."""
        code = ErrorCodes.PROTOCOL_ERROR if is_clients_fault else ErrorCodes.INTERNAL_ERROR
        self.reset_with(code)

    def reset_with(self, code: ErrorCodes) -> None:
        """Resets the stream."""
        if not self._is_closed:
            self._connection.reset(self._id, code)
            self.close()

    def taken(self, size: int) -> None:
        """See `Wire`."""
        self._connection.taken(self._id, size)

    def spawn(self, func: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
        """See `Wire`."""
        self._connection.spawn(func, *args)

    def gave_up(self) -> None:
        """See `Wire`."""
        self._connection.gave_up()

    def call_ended(self, call: StreamCall) -> None:
        """See `Wire`."""
        self._connection.calls.discard(call)

    def fail(self) -> None:
        """See `Wire`."""
        self._connection.fail()

    # Parts.

    async def _go_on(self) -> None:
        async with self._order:
            await self._send_rest()

    async def _send_posted(self) -> None:
        while self._posted is not None:
            (frame, is_last), self._posted = self._posted, None
            await self.send(frame, is_last=is_last)
        self._is_posting = False

    async def _send_rest(self) -> None:
        """Sends what is left, or resets the stream of a client that does not take it in time."""
        while not self._is_closed:
            with anyio.move_on_after(self.shared.send_timeout_s) as scope:
                await self._send_frames()
            if scope.cancelled_caught:
                self._connection.give_up_on(self._id)
            elif not (self._rest or self._ends):
                self._connection.flush()
                return

    async def _send_frames(self) -> None:
        """Sends a part of what is left: as much as one time-out is for."""
        connection, left = self._connection, _PER_TIMEOUT
        has_room = False
        while (self._rest or self._ends) and left > 0:
            if connection.is_closed:
                self.close()
                return
            try:
                size = min(connection.sendable(self._id), len(self._rest))
                if self._rest and size <= 0:
                    await self._window.wait()
                elif size >= _FRAME and not has_room:
                    await connection.room()
                    has_room = True
                elif connection.is_blocked:
                    await connection.unblocked()
                else:
                    has_room = False
                    left -= size
                    data, self._rest = bytes(self._rest[:size]), self._rest[size:]
                    is_last = self._ends and not self._rest
                    connection.send_data(self._id, data, is_last=is_last)
                    if is_last:
                        self.close()
            except ProtocolError:  # h2 has ended the stream, and the event of that comes
                self.close()
