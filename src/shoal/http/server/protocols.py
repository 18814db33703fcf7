"""Hypercorn's protocols, hardened against misbehaving clients.

Each fix is one override, with a comment on what the stock class does. Misbehaviour that is not
covered here still ends only the client's own connection (`shoal.http.server.connection`). The fixes
serve correct clients, and correct streams on a connection with a misbehaving one.
"""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import h2.errors
import h2.events
import h2.exceptions
import h11
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Body, Data, EndBody, EndData, Response, Trailers
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import BUFFER_LOW_WATER, H2Protocol, StreamBuffer
from hypercorn.protocol.h11 import STREAM_ID, H2ProtocolAssumedError, H11Protocol
from hypercorn.protocol.ws_stream import ASGIWebsocketState, WSStream
from wsproto.events import CloseConnection
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError

from shoal.http.requests.header_check import check_headers
from shoal.http.server.request_target import in_origin_form

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.config import Config
    from hypercorn.typing import AppWrapper, ConnectionState, TaskGroup, WorkerContext

_BYTES_PER_DEADLINE: Final = 2**18
# With two phrases of RFC 9110, which Python has from 3.13 on.
_REASONS: Final = {
    **{int(status): status.phrase.encode("ascii") for status in HTTPStatus},
    413: b"Content Too Large",
    422: b"Unprocessable Content",
}


def time_to_send_s(size: int, send_timeout_s: float) -> float:
    """Returns how long a client may take to receive `size` bytes.

    It is the timeout, once for each 256 KiB begun. A fixed deadline would disconnect a client that
    fetches a large answer over a slow connection.
    """
    return send_timeout_s * (1 + size // _BYTES_PER_DEADLINE)


class _Event:
    """An event with the interface that Hypercorn's protocols use, for either event loop."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    async def clear(self) -> None:
        self._event = anyio.Event()

    async def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()

    def is_set(self) -> bool:
        return self._event.is_set()


class Context:
    """The context of a server that Hypercorn's protocols use, for either event loop.

    Attributes:
        terminated: Set once the server drains.
    """

    event_class = _Event
    sleep = staticmethod(anyio.sleep)

    def __init__(self) -> None:
        self.terminated = _Event()

    async def mark_request(self) -> None:
        """Does nothing; Hypercorn counts requests here."""


class _Requests(h11.Connection):
    """The state of an HTTP/1.1 connection."""

    @property
    def they_are_waiting_for_100_continue(self) -> bool:
        """Always False for Hypercorn, which would ask for a body at once, whatever its size."""
        return False

    @property
    def waits_to_be_asked(self) -> bool:
        """Whether the client waits to be asked for its body."""
        return self.client_is_waiting_for_100_continue

    def next_event(self) -> Any:
        """Returns the next event; a request that others may parse differently is an error."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            # Parsers that prefer different headers disagree on where the next request begins.
            if b"transfer-encoding" in names and (
                b"content-length" in names or event.http_version != b"1.1"
            ):
                raise h11.RemoteProtocolError("the length of the body is ambiguous")
            return in_origin_form(event)
        return event


class Http1(H11Protocol):
    """HTTP/1.1 and WebSocket."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.connection = self._requests = _Requests(
            h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size
        )

    @property
    def waits_to_be_asked(self) -> bool:
        """Whether the client waits to be asked for its body."""
        return self._requests.waits_to_be_asked

    async def ask_for_body(self) -> None:
        """Asks the client for its body, if it still waits for that."""
        if self._requests.waits_to_be_asked:
            await self._send_h11_event(
                h11.InformationalResponse(status_code=100, reason=b"Continue", headers=[])
            )

    @property
    def is_client_done(self) -> bool:
        """Whether the client has sent its whole request."""
        return self.connection.their_state in {h11.DONE, h11.MUST_CLOSE, h11.CLOSED}

    async def close_websockets(self) -> None:
        """Closes an open WebSocket, with the reason that the server restarts."""
        if isinstance(self.stream, WSStream):
            await _close_websocket(self.stream)

    async def stream_send(self, event: StreamEvent) -> None:
        """Sends a part of an answer."""
        stream = self.stream
        if (
            isinstance(event, Response)
            and isinstance(stream, WSStream)
            and stream.state is ASGIWebsocketState.HANDSHAKE
            and not hasattr(stream, "response")
        ):
            # The protocol refuses the handshake. The stock class marks the stream as closed only
            # after the refusal is sent, and fails if the application accepts in between.
            stream.closed = True
        if isinstance(event, Response):
            await self._begin_answer(event)
        else:
            await super().stream_send(event)
        # A refused handshake ends the connection, as its headers say. The stock class leaves the
        # connection open, with no task that would ever close it.
        if isinstance(event, EndBody) and isinstance(stream, WSStream):
            await self.send(Closed())

    async def _begin_answer(self, answer: Response) -> None:
        # As in the stock class, but with a reason phrase. An answer before the end of the request
        # is the last of the connection. The stock class does not say so: a client would send its
        # next request on it, and lose that.
        headers = [*answer.headers, *self.config.response_headers("h11")]
        is_last = self.keep_alive_requests >= self.config.keep_alive_max_requests
        if answer.status_code >= 200 and (is_last or not self.is_client_done):
            headers.append((b"connection", b"close"))
        make = h11.Response if answer.status_code >= 200 else h11.InformationalResponse
        reason = _REASONS.get(answer.status_code, b"")
        await self._send_h11_event(
            make(status_code=answer.status_code, headers=headers, reason=reason)
        )

    async def _send_error_response(self, status_code: int) -> None:
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        await self._begin_answer(
            Response(stream_id=STREAM_ID, status_code=status_code, headers=headers)
        )
        await self._send_h11_event(h11.EndOfMessage())

    async def _check_protocol(self, event: h11.Request) -> None:
        # HTTP/2 by prior knowledge is served, an upgrade to it is not: RFC 9113 has removed it, and
        # a proxy that passes the upgrade on can be made to smuggle requests.
        if event.method == b"PRI" and event.target == b"*" and event.http_version == b"2.0":
            unread, _ = self.connection.trailing_data
            raise H2ProtocolAssumedError(b"PRI * HTTP/2.0\r\n\r\n" + unread)

    async def _create_stream(self, request: h11.Request) -> None:
        # Compression is not negotiated: a message of 199 KiB can inflate to 200 MiB before its
        # size is checked.
        await super()._create_stream(
            h11.Request(
                method=request.method,
                target=request.target,
                http_version=request.http_version,
                headers=[
                    header for header in request.headers if header[0] != b"sec-websocket-extensions"
                ],
            )
            if any(name == b"sec-websocket-extensions" for name, _ in request.headers)
            else request
        )


class _BoundedBuffer(StreamBuffer):
    """A stream's unsent bytes; tasks that add bytes wait until most are sent.

    The stock class checks how much was removed rather than how much is left, so that a client which
    reads little makes the buffer grow without bound. It also reports an answer as sent before its
    end mark is sent, so that closing a draining connection can interrupt the answer.
    """

    def __init__(self) -> None:
        super().__init__(Context.event_class)
        self.ended = anyio.Event()

    async def drain(self) -> None:
        await super().drain()
        if self._complete:
            await self.ended.wait()

    async def close(self) -> None:
        self.ended.set()
        await super().close()

    async def pop(self, max_length: int) -> bytes:
        data = bytes(self.buffer[:max_length])
        del self.buffer[:max_length]
        if len(self.buffer) < BUFFER_LOW_WATER:
            await self._paused.set()
        if not self.buffer:
            await self._is_empty.set()
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
            buffer.ended.set()


class Http2(H2Protocol):
    """HTTP/2 by prior knowledge."""

    send_timeout_s: float
    is_client_done = False  # it may send frames for the connection at any time

    async def initiate(
        self, headers: list[tuple[bytes, bytes]] | None = None, settings: bytes | None = None
    ) -> None:
        """Starts the protocol."""
        self.stream_buffers = _BoundedBuffers()
        await super().initiate(headers, settings)

    async def close_websockets(self) -> None:
        """Closes each open WebSocket, with the reason that the server restarts."""
        for stream in list(self.streams.values()):
            if isinstance(stream, WSStream):
                await _close_websocket(stream)

    async def handle(self, event: Event) -> None:
        """Handles data from the socket, or its end."""
        await super().handle(event)
        # With the stock class an application that waits for a client's flow-control window waits
        # for ever when that client is gone.
        if isinstance(event, Closed):
            for buffer in self.stream_buffers.values():
                await buffer.close()

    async def stream_send(self, event: StreamEvent) -> None:
        """Sends a part of an answer."""
        # A client that does not open its flow-control window blocks its stream and not the socket,
        # so the socket's deadline does not apply. Only that stream is reset.
        if not isinstance(event, Body | Data | EndBody | EndData | Trailers):
            if isinstance(event, Response):
                check_headers(event.headers)
            await super().stream_send(event)
            return
        buffer = self.stream_buffers.get(event.stream_id)
        size = len(buffer.buffer) if buffer is not None else 0
        if isinstance(event, Body | Data):
            size += len(event.data)
        with anyio.move_on_after(time_to_send_s(size, self.send_timeout_s)) as timeout:
            await super().stream_send(event)
        if timeout.cancelled_caught:
            await self._reset(event.stream_id, h2.errors.ErrorCodes.CANCEL)

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.RequestReceived) and self.context.terminated.is_set():
                # The error code tells the client that it may safely retry, elsewhere.
                await self._reset(event.stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
            # A body may go on after its answer was complete (an early 413). The stock class looks
            # up the stream and fails. Here the client is told to stop, and the data under way is
            # acknowledged for the connection's window, so that its other streams go on.
            elif isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                self.connection.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id
                )
                if event.stream_id not in self.stream_buffers:
                    await self._reset(event.stream_id, h2.errors.ErrorCodes.NO_ERROR)
            else:
                await super()._handle_events([event])
        await self._flush()

    async def _reset(self, stream_id: int, code: h2.errors.ErrorCodes) -> None:
        with suppress(h2.exceptions.ProtocolError):  # the client has reset it first
            self.connection.reset_stream(stream_id, code)
        if (buffer := self.stream_buffers.get(stream_id)) is not None:
            await buffer.close()
        await self._close_stream(stream_id)
        await self._window_updated(stream_id)  # wakes the sending task, which drops the stream
        await self._flush()


class Protocol:
    """A connection's protocol: HTTP/1.1, until the client switches to HTTP/2.

    The counterpart of Hypercorn's ``ProtocolWrapper``, which can build only the stock classes.
    """

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: Context,
        tasks: TaskGroup,
        state: ConnectionState,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        send: Callable[[Event], Awaitable[None]],
        *,
        send_timeout_s: float,
    ) -> None:
        self._send_timeout_s = send_timeout_s
        shared = cast("WorkerContext", context)
        self._parts = (app, config, shared, tasks, state, False, client, server, send)
        self._current: Http1 | Http2 = Http1(*self._parts)
        # HTTP/1.1 answers announce the drain by "Connection: close". A client that has not had
        # such an answer may send one more request. With the shared context the stock class would
        # disconnect it as soon as the drain begins.
        self._current.context = cast("WorkerContext", Context())

    async def handle(self, event: Event) -> None:
        """Handles data from the socket, or its end."""
        try:
            await self._current.handle(event)
        except H2ProtocolAssumedError as switch:
            self._current = Http2(*self._parts)
            self._current.send_timeout_s = self._send_timeout_s
            await self._current.initiate()
            await self._current.handle(RawData(switch.data))

    @property
    def ask_for_body(self) -> Callable[[], Awaitable[None]] | None:
        """The function that asks the client for its body; None if the client sends it unasked."""
        current = self._current
        if isinstance(current, Http1) and current.waits_to_be_asked:
            return current.ask_for_body
        return None

    @property
    def is_client_done(self) -> bool:
        """Whether nothing more is expected from the client before its next request."""
        return self._current.is_client_done

    async def close_websockets(self) -> None:
        """Closes each open WebSocket, with the reason that the server restarts."""
        await self._current.close_websockets()


async def _close_websocket(stream: WSStream) -> None:
    if stream.state is ASGIWebsocketState.CONNECTED:
        with suppress(LocalProtocolError):  # it is being closed already
            frame = stream.connection.send(CloseConnection(code=CloseReason.SERVICE_RESTART))
            await stream.send(Data(stream_id=stream.stream_id, data=frame))
