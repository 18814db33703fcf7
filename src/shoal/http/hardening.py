"""Hypercorn's protocols, with what a rude client could do to them mended.

Each mend is one override, and says what the stock class does. A rude client that none of these
foresees still ends only its own connection (`shoal.http.connection`); they are here so that clients
which do nothing wrong, or share a connection with one that does, are served.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import h2.errors
import h2.events
import h2.exceptions
import h11
import trio
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Body, Data, EndBody, EndData, Response, Trailers
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import BUFFER_LOW_WATER, H2Protocol, StreamBuffer
from hypercorn.protocol.h11 import H2ProtocolAssumedError, H11Protocol
from hypercorn.protocol.ws_stream import ASGIWebsocketState, WSStream
from hypercorn.trio.worker_context import WorkerContext
from wsproto.events import CloseConnection
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.config import Config
    from hypercorn.typing import AppWrapper, ConnectionState, TaskGroup

_BYTES_PER_DEADLINE: Final = 2**18


def time_to_send_s(size: int, send_timeout_s: float) -> float:
    """How long a client may take over so many bytes: the deadline, once for each 256 KiB begun.

    A flat deadline would cut off an honest client that fetches a large answer over a slow line.
    """
    return send_timeout_s * (1 + size // _BYTES_PER_DEADLINE)


class Http1(H11Protocol):
    """HTTP/1.1 and WebSocket."""

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
        await super().stream_send(event)
        # A refused handshake is the connection's end, and says so in its headers. The stock class
        # leaves it open, with no task that would ever close it.
        if isinstance(event, EndBody) and isinstance(stream, WSStream):
            await self.send(Closed())

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
        super().__init__(WorkerContext.event_class)
        self.ended = trio.Event()

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
            await super().stream_send(event)
            return
        buffer = self.stream_buffers.get(event.stream_id)
        size = len(buffer.buffer) if buffer is not None else 0
        if isinstance(event, Body | Data):
            size += len(event.data)
        with trio.move_on_after(time_to_send_s(size, self.send_timeout_s)) as patience:
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
        context: WorkerContext,
        tasks: TaskGroup,
        state: ConnectionState,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        send: Callable[[Event], Awaitable[None]],
        *,
        send_timeout_s: float,
    ) -> None:
        self._send_timeout_s = send_timeout_s
        self._parts = (app, config, context, tasks, state, False, client, server, send)
        self._spoken: Http1 | Http2 = Http1(*self._parts)
        # HTTP/1.1 says in its answers that the server drains, and a client to which that was not
        # said may ask once more. The stock class hangs up on it as soon as the drain begins.
        self._spoken.context = WorkerContext(None)

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
