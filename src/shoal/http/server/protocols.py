"""Hypercorn's protocols, with what a rude client could do to them mended.

Each mend is one override, and says what the stock class does. A rude client that none of these
foresees still ends only its own connection (`shoal.http.server.connection`); they are here so that
clients which do nothing wrong, or share a connection with one that does, are served.
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
# Those of RFC 9110, which Python has from 3.13 on.
_REASONS: Final = {
    **{int(status): status.phrase.encode("ascii") for status in HTTPStatus},
    413: b"Content Too Large",
    422: b"Unprocessable Content",
}


def time_to_send_s(size: int, send_timeout_s: float) -> float:
    """How long a client may take over so many bytes: the deadline, once for each 256 KiB begun.

    A flat deadline would cut off an honest client that fetches a large answer over a slow line.
    """
    return send_timeout_s * (1 + size // _BYTES_PER_DEADLINE)


class _Event:
    """An event as Hypercorn's protocols want it, for whichever loop runs them."""

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
    """What Hypercorn's protocols know of their server, for whichever loop runs it.

    Attributes:
        terminated: Whether it drains.
    """

    event_class = _Event
    sleep = staticmethod(anyio.sleep)

    def __init__(self) -> None:
        self.terminated = _Event()

    async def mark_request(self) -> None:
        """A request has begun; nobody counts them here."""


class _Requests(h11.Connection):
    """The state of an HTTP/1.1 connection."""

    @property
    def they_are_waiting_for_100_continue(self) -> bool:
        """Never, for Hypercorn: it asks for a body as soon as it may, whatever its size is."""
        return False

    @property
    def waits_to_be_asked(self) -> bool:
        """Whether the client sends its body when it is asked for it."""
        return self.client_is_waiting_for_100_continue

    def next_event(self) -> Any:
        """Gives what comes next; a request that others may read differently is an error."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            # Who takes the one and who takes the other disagree on where the next request begins.
            if b"transfer-encoding" in names and (
                b"content-length" in names or event.http_version != b"1.1"
            ):
                raise h11.RemoteProtocolError("a body of two lengths")
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
        """Whether the client sends its body when it is asked for it."""
        return self._requests.waits_to_be_asked

    async def ask_for_body(self) -> None:
        """Ask the client for its body, if it still waits for that."""
        if self._requests.waits_to_be_asked:
            await self._send_h11_event(
                h11.InformationalResponse(status_code=100, reason=b"Continue", headers=[])
            )

    @property
    def is_client_done(self) -> bool:
        """Whether the client has sent its request, whole."""
        return self.connection.their_state in {h11.DONE, h11.MUST_CLOSE, h11.CLOSED}

    async def close_websockets(self) -> None:
        """Say to an open WebSocket that this server goes away."""
        if isinstance(self.stream, WSStream):
            await _close_websocket(self.stream)

    async def stream_send(self, event: StreamEvent) -> None:
        """Send a part of an answer."""
        stream = self.stream
        if (
            isinstance(event, Response)
            and isinstance(stream, WSStream)
            and stream.state is ASGIWebsocketState.HANDSHAKE
            and not hasattr(stream, "response")
        ):
            # The protocol refuses the handshake. The stock class says so to the stream only after
            # the refusal is sent, and then fails on the application's acceptance in between.
            stream.closed = True
        if isinstance(event, Response):
            await self._begin_answer(event)
        else:
            await super().stream_send(event)
        # A refused handshake is the connection's end, and says so in its headers. The stock class
        # leaves it open, with no task that would ever close it.
        if isinstance(event, EndBody) and isinstance(stream, WSStream):
            await self.send(Closed())

    async def _begin_answer(self, answer: Response) -> None:
        # As the stock class, which gives no reason. A client that was not asked for its body will
        # not send it, so that nobody knows where its next request would begin.
        headers = [*answer.headers, *self.config.response_headers("h11")]
        is_last = self.keep_alive_requests >= self.config.keep_alive_max_requests
        if answer.status_code >= 200 and (is_last or self._requests.waits_to_be_asked):
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
        # HTTP/2 by prior knowledge is served; an upgrade to it is not: it is gone from the standard
        # (RFC 9113), and a proxy that passes it on can be made to smuggle requests.
        if event.method == b"PRI" and event.target == b"*" and event.http_version == b"2.0":
            unread, _ = self.connection.trailing_data
            raise H2ProtocolAssumedError(b"PRI * HTTP/2.0\r\n\r\n" + unread)

    async def _create_stream(self, request: h11.Request) -> None:
        # Compression is not negotiated: a message of 199 KiB can inflate to 200 MiB before its
        # size is looked at.
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
    """A stream's unsent bytes; whoever adds to them waits until most are gone.

    The stock class looks at how much was taken rather than at how much is left, so that a client
    which takes little makes it grow without bound. And it calls an answer sent before its end mark
    is, so that the goodbye of a drain can come in between, which cuts the answer off.
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
    """Stands where the protocol keeps its buffers, and puts a bounded one for each.

    The protocol takes a buffer out when it has sent the end mark.
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
    is_client_done = False  # it may send frames of the connection's own at any time

    async def initiate(
        self, headers: list[tuple[bytes, bytes]] | None = None, settings: bytes | None = None
    ) -> None:
        """Say the first words."""
        self.stream_buffers = _BoundedBuffers()
        await super().initiate(headers, settings)

    async def close_websockets(self) -> None:
        """Say to each open WebSocket that this server goes away."""
        for stream in list(self.streams.values()):
            if isinstance(stream, WSStream):
                await _close_websocket(stream)

    async def handle(self, event: Event) -> None:
        """Take in what came from the socket, or that it is closed."""
        await super().handle(event)
        # The stock class leaves an application that waits for the window of a client that is gone
        # to wait for ever.
        if isinstance(event, Closed):
            for buffer in self.stream_buffers.values():
                await buffer.close()

    async def stream_send(self, event: StreamEvent) -> None:
        """Send a part of an answer."""
        # A client that gives no window stops its stream without stopping the socket, so the
        # socket's deadline never sees it. Only that stream is at fault: it alone is reset.
        if not isinstance(event, Body | Data | EndBody | EndData | Trailers):
            if isinstance(event, Response):
                check_headers(event.headers)
            await super().stream_send(event)
            return
        buffer = self.stream_buffers.get(event.stream_id)
        size = len(buffer.buffer) if buffer is not None else 0
        if isinstance(event, Body | Data):
            size += len(event.data)
        with anyio.move_on_after(time_to_send_s(size, self.send_timeout_s)) as patience:
            await super().stream_send(event)
        if patience.cancelled_caught:
            await self._reset(event.stream_id, h2.errors.ErrorCodes.CANCEL)

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.RequestReceived) and self.context.terminated.is_set():
                # With the code that says that it may safely be asked again, elsewhere.
                await self._reset(event.stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
            # A body may go on after its answer was complete (an early 413). The stock class looks
            # its stream up and fails. The client is told to stop, and the pieces under way are
            # taken off the connection's window, so that its other streams go on.
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
        with suppress(h2.exceptions.ProtocolError):  # the client was faster
            self.connection.reset_stream(stream_id, code)
        if (buffer := self.stream_buffers.get(stream_id)) is not None:
            await buffer.close()
        await self._close_stream(stream_id)
        await self._window_updated(stream_id)  # wakes the sending task, which forgets the stream
        await self._flush()


class Protocol:
    """What a connection speaks: HTTP/1.1, until the client says that it is HTTP/2.

    The counterpart of Hypercorn's ``ProtocolWrapper``, which can only build the stock classes.
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
        self._spoken: Http1 | Http2 = Http1(*self._parts)
        # HTTP/1.1 says in its answers that the server drains, and a client to which that was not
        # said may ask once more. The stock class hangs up on it as soon as the drain begins.
        self._spoken.context = cast("WorkerContext", Context())

    async def handle(self, event: Event) -> None:
        """Take in what came from the socket, or that it is closed."""
        try:
            await self._spoken.handle(event)
        except H2ProtocolAssumedError as switch:
            self._spoken = Http2(*self._parts)
            self._spoken.send_timeout_s = self._send_timeout_s
            await self._spoken.initiate()
            await self._spoken.handle(RawData(switch.data))

    @property
    def ask_for_body(self) -> Callable[[], Awaitable[None]] | None:
        """What asks the client for its body; None if it needs no asking."""
        spoken = self._spoken
        return (
            spoken.ask_for_body if isinstance(spoken, Http1) and spoken.waits_to_be_asked else None
        )

    @property
    def is_client_done(self) -> bool:
        """Whether nothing more is expected from the client before its next request."""
        return self._spoken.is_client_done

    async def close_websockets(self) -> None:
        """Say to each open WebSocket that this server goes away."""
        await self._spoken.close_websockets()


async def _close_websocket(stream: WSStream) -> None:
    if stream.state is ASGIWebsocketState.CONNECTED:
        with suppress(LocalProtocolError):  # it is being closed already
            frame = stream.connection.send(CloseConnection(code=CloseReason.SERVICE_RESTART))
            await stream.send(Data(stream_id=stream.stream_id, data=frame))
