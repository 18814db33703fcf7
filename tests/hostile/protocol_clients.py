"""Clients of each protocol, on trio, which tell what became of each of their requests."""

from __future__ import annotations

import json
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import h2.config
import h2.connection
import h2.events
import trio
import wsproto.events as ws
from fuzz_http2 import GOAWAY
from fuzz_websocket import UPGRADE
from wsproto.connection import Connection as WebSocketProtocol
from wsproto.connection import ConnectionType

if TYPE_CHECKING:
    from collections.abc import Sequence


class Lost(Exception):
    """The connection ended before an answer was whole."""

    def __init__(self, received: bytes) -> None:
        super().__init__(f"lost after {received[:200]!r}")
        self.received = received


@dataclass
class Answer:
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    reason: str = ""

    @property
    def is_last(self) -> bool:
        return self.headers.get(b"connection", b"").lower() == b"close"


class Http1Client:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._received = bytearray()

    @classmethod
    async def to(cls, port: int) -> Http1Client:
        return cls(await trio.open_tcp_stream("127.0.0.1", port))

    async def ask(self, sent: bytes) -> Answer:
        await self.send(sent)
        return await self.answer()

    async def send(self, sent: bytes) -> None:
        """Sends; that the server does not read is seen when the answer is read."""
        with suppress(trio.BrokenResourceError):
            await self.stream.send_all(sent)

    async def answer(self) -> Answer:
        head = await self._up_to(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        answer = Answer(int(first.split(b" ")[1]), headers)
        if headers.get(b"transfer-encoding") == b"chunked":
            answer.body = await self._chunks(head)
        else:
            answer.body = await self._exactly(int(headers.get(b"content-length", 0)), head)
        return answer

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self.stream)

    async def _chunks(self, head: bytes) -> bytes:
        pieces = bytearray()
        try:
            while size := int(await self._up_to(b"\r\n"), 16):
                pieces += (await self._exactly(size + 2, b""))[:-2]
            await self._up_to(b"\r\n")
        except Lost as lost:
            raise Lost(head + bytes(pieces) + lost.received) from None
        return bytes(pieces)

    async def _up_to(self, mark: bytes) -> bytes:
        while (end := self._received.find(mark)) < 0:
            await self._more(b"")
        return self._taken(end + len(mark))

    async def _exactly(self, size: int, before: bytes) -> bytes:
        while len(self._received) < size:
            await self._more(before)
        return self._taken(size)

    def _taken(self, size: int) -> bytes:
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    async def _more(self, before: bytes) -> None:
        try:
            data = await self.stream.receive_some()
        except trio.BrokenResourceError:
            data = b""
        if not data:
            raise Lost(before + bytes(self._received))
        self._received += data


class Http2Client:
    """A connection that speaks HTTP/2, and makes some requests at once."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        config = h2.config.H2Configuration(client_side=True, header_encoding=None)
        self._protocol = h2.connection.H2Connection(config)
        self._protocol.initiate_connection()
        # Greater than any stream's number until the server says which it has served last.
        self._last_served = 2**31
        self._partial = b""

    @classmethod
    async def to(cls, port: int) -> Http2Client:
        return cls(await trio.open_tcp_stream("127.0.0.1", port))

    @property
    def is_going_away(self) -> bool:
        return self._last_served < 2**31

    async def ask(self, asked: Sequence[tuple[str, object]]) -> list[Answer | Lost]:
        """Makes requests at once; returns their answers, or that they were lost."""
        waiting: dict[int, Answer] = {}
        found: dict[int, Answer | Lost] = {}
        for path, item in asked:
            stream = self._protocol.get_next_available_stream_id()
            self._protocol.send_headers(stream, _fields(path))
            self._protocol.send_data(stream, json.dumps(item).encode(), end_stream=True)
            waiting[stream] = Answer()
        order = list(waiting)
        while waiting:
            data = await self._exchanged()
            if not data:
                for stream, answer in waiting.items():
                    found[stream] = Lost(answer.body or b"")
                    if stream > self._last_served:
                        found[stream] = Answer(reason="GOAWAY")
                break
            for event in self._events(data):
                self._take(event, waiting, found)
        return [found[stream] for stream in order]

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self.stream)

    async def _exchanged(self) -> bytes:
        with suppress(trio.BrokenResourceError):
            await self.stream.send_all(self._protocol.data_to_send())
        try:
            return bytes(await self.stream.receive_some())
        except trio.BrokenResourceError:
            return b""

    def _events(self, data: bytes) -> list[Any]:
        """Handles frames. After a GOAWAY h2 refuses all others, so it is not shown one."""
        self._partial += data
        found: list[Any] = []
        while len(self._partial) >= 9:
            end = 9 + int.from_bytes(self._partial[:3], "big")
            if len(self._partial) < end:
                break
            frame, self._partial = self._partial[:end], self._partial[end:]
            if frame[3] == GOAWAY:
                self._last_served = int.from_bytes(frame[9:13], "big")
            else:
                found += self._protocol.receive_data(frame)
        return found

    def _take(
        self, event: Any, waiting: dict[int, Answer], found: dict[int, Answer | Lost]
    ) -> None:
        stream = getattr(event, "stream_id", 0)
        answer = waiting.get(stream)
        if answer is None:
            return
        match event:
            case h2.events.ResponseReceived():
                answer.headers = dict(event.headers)
                answer.status = int(answer.headers[b":status"])
            case h2.events.DataReceived():
                answer.body += event.data
                self._protocol.acknowledge_received_data(event.flow_controlled_length, stream)
            case h2.events.StreamEnded():
                found[stream] = waiting.pop(stream)
            case h2.events.StreamReset() if event.error_code == 7:
                found[stream] = Answer(reason="REFUSED_STREAM")
                del waiting[stream]
            case h2.events.StreamReset():
                found[stream] = Lost(answer.body)
                del waiting[stream]
            case _:
                pass


def _fields(path: str) -> list[tuple[bytes, bytes]]:
    return [
        (b":method", b"POST"),
        (b":path", path.encode()),
        (b":scheme", b"http"),
        (b":authority", b"127.0.0.1"),
        (b"content-type", b"application/json"),
        (b"accept", b"application/x-ndjson"),
    ]


class WebSocketClient:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._protocol = WebSocketProtocol(ConnectionType.CLIENT)
        self._messages: deque[str] = deque()
        self._partial = ""
        self.close_code = 0

    @classmethod
    async def to(cls, port: int, path: str) -> WebSocketClient:
        """Connects, and waits until the application has accepted."""
        http = await Http1Client.to(port)
        lines = [f"GET {path} HTTP/1.1".encode(), *UPGRADE, b"", b""]
        try:
            answer = await http.ask(b"\r\n".join(lines))
        except BaseException:
            await http.aclose()
            raise
        if answer.status != 101:
            await http.aclose()
            raise Lost(str(answer.status).encode())
        client = cls(http.stream)
        client._take(bytes(http._received))
        return client

    async def ask(self, text: str) -> str | None:
        """Sends a message, and returns the next one; None if the server closes it in place."""
        if self.close_code:
            return None
        await self._send(self._protocol.send(ws.TextMessage(text)))
        while not self._messages and not self.close_code:
            try:
                data = bytes(await self.stream.receive_some())
            except trio.BrokenResourceError:
                data = b""
            if not data:
                raise Lost(b"")
            if reply := self._take(data):
                await self._send(reply)
        return self._messages.popleft() if self._messages else None

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self.stream)

    async def _send(self, data: bytes) -> None:
        with suppress(trio.BrokenResourceError):
            await self.stream.send_all(data)

    def _take(self, data: bytes) -> bytes:
        """Handles what came; returns what to send."""
        if not data:
            return b""
        self._protocol.receive_data(data)
        reply = b""
        for event in self._protocol.events():
            if isinstance(event, ws.TextMessage):
                self._partial += event.data
                if event.message_finished:
                    self._messages.append(self._partial)
                    self._partial = ""
            elif isinstance(event, ws.Ping):
                reply += self._protocol.send(event.response())
            elif isinstance(event, ws.CloseConnection):
                self.close_code = event.code
                reply += self._protocol.send(event.response())
        return reply
