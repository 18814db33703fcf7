"""A connection that speaks HTTP/2: it drives h2, the state machine of the protocol.

h2 converts received bytes to events, and messages to bytes. It knows no sockets, and nothing in it
waits. Each stream has a task, which calls the application. When the application sends data, this
task waits for the client's flow-control windows and for the socket. A client that reads one stream
slowly holds up only that stream.

Some faults end the whole connection, since h2 can't end a single stream for them: trailers that do
not end their stream, and a head many times over the limit. `HeadDecoder` keeps wrong lengths from
being such a fault.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

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

from shoal.asgi.headers import PROBLEM_JSON, BadRequest
from shoal.server.http1.head import HeadParser, scope_of, scope_of_refused
from shoal.server.streams.connection import StreamConnection
from shoal.server.streams.http2_head import HeadDecoder, check_trailers, read_head
from shoal.server.streams.http2_stream import Http2Call, Http2Stream
from shoal.server.streams.websocket import WebSocketCall, check_handshake

if TYPE_CHECKING:
    from collections.abc import Callable

    from h2.events import Event

    from shoal.server.shared import Shared
    from shoal.server.tls import TlsTransport
    from shoal.server.transport import Transport

_MOST_STREAMS: Final = 100
# The sum of the windows of all streams, so that a stream whose application does not read takes
# nothing from the others.
_WINDOW: Final = _MOST_STREAMS * 2**16
# A client that opens streams and resets them at once leaves calls that have not noticed the reset.
_MOST_CALLS: Final = 2 * _MOST_STREAMS
# A client may reset this many unanswered requests; beyond that, half of its requests.
_MOST_RESETS: Final = 100


class _Connection(H2Connection):
    """The state of a connection, which keeps little of what is over."""

    # It refers to itself, so only the garbage collector frees it.

    # Of how many closed streams it knows the reason, for frames that were on their way.
    MAX_CLOSED_STREAMS = 2 * _MOST_STREAMS


class TooManyResets(Exception):
    """The client resets most of its requests before they are answered."""


class _Open(NamedTuple):
    # The stream does not refer to its call, which refers to it: that would be a cycle for each.
    stream: Http2Stream
    call: Http2Call | WebSocketCall


class Http2Connection(StreamConnection):
    def __init__(
        self, shared: Shared, transport: Transport | TlsTransport, released: Callable[[], object]
    ) -> None:
        super().__init__(shared, transport, released)
        self._h2: H2Connection
        self._parser = HeadParser(shared.options)
        self._streams: dict[int, _Open] = {}
        self._requests = 0
        self._resets = 0  # of requests that were not answered

    def _begin(self) -> None:
        longest = self.shared.options.max_head_bytes
        # Shoal checks heads: h2 would end the connection for a malformed or large one.
        config = H2Configuration(
            client_side=False, header_encoding=None, validate_inbound_headers=False
        )
        self._h2 = _Connection(config)
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
        self._flush()

    async def _handle(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
        except ProtocolError:
            self._disconnect_all()
            return
        for event in events:
            if self.is_closed:
                return
            await self._handle_event(event)
        self._flush()

    async def _handle_event(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._open(event)
        elif isinstance(event, ConnectionTerminated):  # h2 sends nothing after it
            self._disconnect_all()
        elif isinstance(event, RemoteSettingsChanged):
            self._window_opened(0)
        elif isinstance(event, WindowUpdated):
            self._window_opened(event.stream_id or 0)
        elif isinstance(event, DataReceived):
            await self._take_data(event)
        elif isinstance(event, StreamEnded | StreamReset | TrailersReceived):
            entry = self._streams.get(event.stream_id or 0)
            if entry is not None:
                self._handle_end(*entry, event)

    def _handle_end(
        self,
        stream: Http2Stream,
        call: Http2Call | WebSocketCall,
        event: StreamEnded | StreamReset | TrailersReceived,
    ) -> None:
        if isinstance(event, StreamReset):
            stream.close()
            self._count_reset()
        elif isinstance(event, StreamEnded):
            call.input_ended()
        else:
            try:
                check_trailers(event.headers or ())
            except BadRequest as error:
                call.refuse(error.status)

    async def _take_data(self, event: DataReceived) -> None:
        entry = self._streams.get(event.stream_id or 0)
        data, size = event.data or b"", event.flow_controlled_length or 0
        if entry is None:
            # A body may continue after its response was complete (an early 413). The client is
            # asked to stop, and data in flight is acknowledged, so that its other streams continue.
            with suppress(ProtocolError):
                self._h2.acknowledge_received_data(size, event.stream_id or 0)
            self._reset(event.stream_id or 0, ErrorCodes.NO_ERROR)
        else:
            await entry.call.data_received(data, size)

    def _count_reset(self) -> None:
        self._resets += 1
        if self._resets > _MOST_RESETS and 2 * self._resets > self._requests:
            self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            self._flush()
            # It also cancels the calls that ignore the disconnect.
            raise TooManyResets(self._resets)

    def _window_opened(self, stream_id: int) -> None:
        if stream_id:
            entry = self._streams.get(stream_id)
            if entry is not None:
                entry.stream.window_opened()
        else:
            for each in self._streams.values():
                each.stream.window_opened()

    # Requests.

    def _open(self, event: RequestReceived) -> None:
        self._requests += 1
        stream_id = event.stream_id or 0
        if self.shared.is_draining:
            # The error code tells the client that it may safely retry, elsewhere.
            self._reset(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        if len(self.calls) >= _MOST_CALLS:
            raise RuntimeError(f"{len(self.calls)} calls are running on one connection")
        parser = self._parser
        has_body = event.stream_ended is None
        try:
            is_websocket = read_head(parser, event.headers or ())
            method = "" if is_websocket else parser.line.method
            self.shared.guard.check(method, parser.host, parser.origin)
            if is_websocket:
                check_handshake(parser)
        except BadRequest as error:
            self._refuse(stream_id, error, has_body=has_body)
            return
        ended = partial(self._stream_ended, stream_id)
        stream = Http2Stream(self, self._h2, stream_id, ended)
        call: Http2Call | WebSocketCall
        if is_websocket:
            call = WebSocketCall(stream, parser)
            scope = call.scope("2", parser)
        else:
            has_length = any(name == b"content-length" for name, _ in parser.headers)
            length = parser.length if has_length else None
            call = Http2Call(stream, parser.line.method, length, has_body=has_body)
            scope = scope_of(self.shared, self.peer, self.name, "http", "2", parser)
        self._streams[stream_id] = _Open(stream, call)
        self.calls.add(call)
        self.spawn(call.run, scope)

    def _refuse(self, stream_id: int, error: BadRequest, *, has_body: bool) -> None:
        """Answers a request that the application does not see."""
        body = error.body
        fields = [(b":status", b"%d" % error.status), (b"content-type", PROBLEM_JSON)]
        has_room = False
        with suppress(ProtocolError):  # the client has reset it, or has ended its body since
            has_room = self._h2.local_flow_control_window(stream_id) >= len(body)
            self._h2.send_headers(stream_id, fields, end_stream=not has_room)
            if has_room:
                self._h2.send_data(stream_id, body, end_stream=True)
            if has_body:
                self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
        scope = {**scope_of_refused(self._parser, self.peer), "http_version": "2"}
        self.shared.note_refusal(scope, error.status, len(body) if has_room else 0)

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        with suppress(ProtocolError):  # the client has reset it first
            self._h2.reset_stream(stream_id, code)

    def _stream_ended(self, stream_id: int) -> None:
        ended = self._streams.pop(stream_id, None)
        if ended is None or self.is_closed:
            return
        if not ended.call.is_complete:
            ended.call.disconnected()
        if self.shared.is_draining and not self._streams:
            self.write(self._farewell())
        self._set_timeout()

    def _flush(self) -> None:
        self.write(self._h2.data_to_send())

    # Ends.

    def _disconnect_all(self) -> None:
        """Ends the connection, after h2 has reported that nothing more can be sent."""
        self._flush()
        self.finish()
        for call in tuple(self.calls):
            call.disconnected()

    def finish(self) -> None:
        super().finish()
        self._close_streams()

    def _close_socket(self) -> None:
        super()._close_socket()
        self._close_streams()

    def _close_streams(self) -> None:
        for stream, _ in tuple(self._streams.values()):
            stream.close()

    def _input_ended(self) -> None:
        for call in tuple(self.calls):
            if isinstance(call, WebSocketCall):
                call.input_ended()  # after its messages
            else:
                call.disconnected()

    def client_ended(self) -> None:
        for call in tuple(self.calls):
            if isinstance(call, Http2Call):
                call.disconnected()
        super().client_ended()

    def _farewell(self) -> bytes:
        with suppress(ProtocolError):
            self._h2.close_connection()
        return self._h2.data_to_send()

    @property
    def _is_idle(self) -> bool:
        return not self._streams
