"""The frames of WebSockets, and what a client can't do: send too much, be silent, send bombs."""

import socket
import tracemalloc
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
import h2.events
import h2.exceptions
import h2.settings
import pytest
from echo_app import EchoApp
from live_server import Http2Client, live, read_all, read_until, until_quiet, upgrade
from wsproto.connection import Connection as WebSocket
from wsproto.connection import ConnectionType
from wsproto.events import CloseConnection, Ping, Pong, TextMessage

pytestmark = pytest.mark.real_time

MOST = 1000


def framed(payload, opcode=1, fin=True, mask=b"\x25\x71\x0c\xd3"):
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    else:
        length = (
            b"\xfe" + size.to_bytes(2, "big") if size < 2**16 else b"\xff" + size.to_bytes(8, "big")
        )
    masked = bytes(each ^ mask[at % 4] for at, each in enumerate(payload))
    return bytes([fin << 7 | opcode]) + length + mask + masked


class Http1Peer:
    """A WebSocket's client, over HTTP/1.1."""

    @classmethod
    async def open(cls, server):
        stream = await server.connect()
        await stream.send_all(upgrade())
        head, _, frames = (await read_until(stream, b"\r\n\r\n")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101")
        peer = cls(stream)
        peer.websocket.receive_data(frames)
        return peer

    def __init__(self, stream):
        self.stream = stream
        self.websocket = WebSocket(ConnectionType.CLIENT)

    async def send(self, *events):
        await self.pass_on(b"".join(self.websocket.send(event) for event in events))

    async def next_event(self):
        """What comes next; None when no more will."""
        while True:
            for event in self.websocket.events():
                return event
            data = await self.receive()
            if not data:
                return None
            self.websocket.receive_data(data)

    async def pass_on(self, data):
        await self.stream.send_all(data)

    async def receive(self):
        return await self.stream.receive_some()


class Http2Peer(Http1Peer):
    """A WebSocket's client, over a stream of HTTP/2."""

    @classmethod
    async def open(cls, server, *headers):
        http2 = Http2Client(await server.connect())
        peer = cls(http2.stream)
        peer.http2 = http2
        peer.stream_id = http2.connection.get_next_available_stream_id()
        pseudo = [
            (b":method", b"CONNECT"),
            (b":protocol", b"websocket"),
            (b":path", b"/"),
            (b":scheme", b"http"),
            (b":authority", b"shoal.test"),
        ]
        version = (b"sec-websocket-version", b"13")
        http2.connection.send_headers(peer.stream_id, [*pseudo, version, *headers])
        await http2.flush()
        peer.headers = {}
        while not peer.headers:
            for event in http2.connection.receive_data(await http2.stream.receive_some()):
                if isinstance(event, h2.events.ResponseReceived):
                    peer.headers = dict(event.headers)
                elif isinstance(event, h2.events.DataReceived):
                    peer.websocket.receive_data(event.data)
        assert peer.headers[b":status"] == b"200"
        return peer

    async def pass_on(self, data):
        connection = self.http2.connection
        while data:
            size = min(connection.local_flow_control_window(self.stream_id), 2**14)
            if not size:
                got = await self.stream.receive_some()
                ended = (h2.events.StreamReset, h2.events.ConnectionTerminated)
                if not got or any(isinstance(e, ended) for e in connection.receive_data(got)):
                    raise anyio.BrokenResourceError
            else:
                connection.send_data(self.stream_id, data[:size])
                data = data[size:]
            await self.http2.flush()

    async def receive(self):
        while True:
            data = await self.stream.receive_some()
            if not data:
                return b""
            for event in self.http2.connection.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    return event.data
                if isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                    return b""
            await self.http2.flush()


@asynccontextmanager
async def talking(kind, app=None, **options):
    """A client of a server whose WebSocket is open."""
    async with live(app or EchoApp(), **options) as server:
        peer = await kind.open(server)
        async with peer.stream:
            yield peer


both_protocols = pytest.mark.parametrize("kind", [Http1Peer, Http2Peer], ids=["http1", "http2"])


async def test_messages_of_all_sizes_come_back():
    async with talking(Http1Peer) as peer:
        for size in (0, 1, 3, 4, 125, 126, 127, 1000, 2**16 - 1, 2**16, 2**16 + 5):
            sent = "é" * (size // 2) + "x" * (size % 2)
            await peer.send(TextMessage(sent))
            parts = [await peer.next_event()]
            while not parts[-1].message_finished:
                parts.append(await peer.next_event())
            assert "".join(part.data for part in parts) == sent


@pytest.mark.parametrize("piece", [1, 2, 7, 50, 10**6])
async def test_messages_of_all_forms_come_in_their_order(piece):
    """Cut into any pieces."""
    async with talking(Http1Peer) as peer:
        sent, expected = b"", []
        for number in range(8):
            sent += framed(b"a%d" % number) + framed(b"p%d" % number, opcode=9)
            sent += framed(b"b", fin=False) + framed(b"in", opcode=9)
            sent += framed(b"%d" % number, opcode=0) + framed(b"c%d" % number)
            expected += [f"a{number}", f"b{number}", f"c{number}"]
        for at in range(0, len(sent), piece):
            await peer.pass_on(sent[at : at + piece])
        answers, pongs = [], []
        while len(answers) < len(expected) or len(pongs) < 16:
            event = await peer.next_event()
            if isinstance(event, Pong):
                pongs.append(bytes(event.payload))
            elif not isinstance(event, Ping):
                answers.append(event.data)
        assert answers == expected
        assert pongs == [each for n in range(8) for each in (b"p%d" % n, b"in")]
        await peer.send(TextMessage("é" * 1000))
        assert (await peer.next_event()).data == "é" * 1000
        await peer.pass_on(framed(b"\xff"))
        assert (await peer.next_event()).code == 1007


@both_protocols
@pytest.mark.parametrize("letter", ["x", "\xe9"])
async def test_a_message_of_just_the_limit_is_taken(kind, letter):
    text = letter * (MOST // len(letter.encode()))
    async with talking(kind, max_message_bytes=MOST) as peer:
        for _ in range(2):
            await peer.send(TextMessage(text))
            assert (await peer.next_event()).data == text
        await peer.send(TextMessage(text + letter))
        assert (await peer.next_event()).code == 1009


def part(size):
    return TextMessage("x" * size, message_finished=False)


@both_protocols
async def test_the_incomplete_messages_of_all_clients_have_one_limit(kind):
    async with live(EchoApp(), max_incomplete_bytes=MOST) as server:
        first, second, third = [await kind.open(server) for _ in range(3)]
        async with first.stream, second.stream, third.stream:
            await first.send(part(MOST - 1), Ping())
            await first.next_event()  # it was read
            await second.send(part(2))
            assert (await second.next_event()).code == 1013
            await third.send(TextMessage("y" * MOST))  # it is complete at once
            assert (await third.next_event()).data == "y" * MOST
            await first.send(TextMessage("z"))
            assert (await first.next_event()).data == "x" * (MOST - 1) + "z"
            await third.send(part(MOST), TextMessage("z"))
            assert (await third.next_event()).data == "x" * MOST + "z"


@both_protocols
@pytest.mark.parametrize(("size", "body_timeout_s"), [(10, 0.05), (8_000_000, 1)])
async def test_a_message_that_is_not_completed_in_time_ends_its_websocket(
    kind, size, body_timeout_s
):
    async with talking(kind, body_timeout_s=body_timeout_s) as peer:
        await peer.send(part(size))
        event = await peer.next_event()
        assert (event.code, event.reason) == (1008, "a message was not sent in time")


@both_protocols
@pytest.mark.parametrize(
    ("broken", "code"),
    [(b"\x83\x80\0\0\0\0", 1002), (b"\x81\x81\0\0\0\0\xff", 1007)],
    ids=["an unknown kind of frame", "a text that is not UTF-8"],
)
async def test_a_client_is_told_what_is_wrong_with_its_frames(kind, broken, code):
    async with talking(kind) as peer:
        await peer.pass_on(broken)
        closing = await peer.next_event()
        assert isinstance(closing, CloseConnection)
        assert closing.code == code


@both_protocols
@pytest.mark.parametrize("frames", [1, 2, MOST + 1])
async def test_a_larger_message_ends_the_websocket_with_1009(kind, frames, caplog, echo):
    """However it is cut into frames, and whatever comes behind it."""
    size = -(-(MOST + 1) // frames)
    parts = [TextMessage("x" * size, message_finished=number == frames) for number in range(frames)]
    async with talking(kind, echo, max_message_bytes=MOST) as peer:
        await peer.send(*parts)
        event = await peer.next_event()
        assert isinstance(event, CloseConnection)
        assert event.code == 1009
        await echo.left.wait()
        if kind is Http1Peer:
            assert await read_all(peer.stream) in (b"", b"<reset>")
    assert caplog.records == []


@contextmanager
def tracing():
    """Gives what tells the memory in use, and the most there has been."""
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


@both_protocols
async def test_what_a_client_sends_beyond_the_limit_is_not_collected(kind):
    async with talking(kind, max_message_bytes=MOST) as peer:
        with tracing() as memory:
            with suppress(anyio.BrokenResourceError, h2.exceptions.StreamClosedError):
                for _ in range(2**8):
                    await peer.send(part(2**16))
                    await anyio.lowlevel.checkpoint()
            _, most = memory()
    assert most < 2**21


async def test_the_pings_of_a_client_that_does_not_read_are_not_collected():
    pings = WebSocket(ConnectionType.CLIENT).send(Ping(b"x" * 125)) * 100
    async with live(EchoApp()) as server:
        with server.connect_now(upgrade()) as client:
            await until_quiet()
            assert client.recv(2**16).startswith(b"HTTP/1.1 101")
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
            refused = sent = 0
            left = pings
            with tracing() as memory:
                while refused < 2 and sent < 2**24:
                    try:
                        size = client.send(left)
                        left = left[size:] or pings
                        sent += size
                        refused = 0
                    except BlockingIOError:
                        refused += 1
                        await until_quiet()
                _, most = memory()
    assert sent > 2**18
    assert most < 2**20


@both_protocols
async def test_a_silent_client_is_pinged_and_then_disconnected(kind, echo):
    async with live(echo, ping_interval_s=0.05, max_connections=1) as server:
        peer = await kind.open(server)
        async with peer.stream:
            assert isinstance(await peer.next_event(), Ping)
            assert (await read_all(peer.stream)).endswith(b"<reset>")
        await echo.left.wait()
        assert await server.answers()


@both_protocols
async def test_a_client_that_answers_pings_may_be_silent(kind):
    async with talking(kind, ping_interval_s=0.05) as peer:
        for _ in range(4):
            ping = await peer.next_event()
            assert isinstance(ping, Ping)
            await peer.send(ping.response())
        await peer.send(TextMessage("still here"))
        while isinstance(event := await peer.next_event(), Ping):
            await peer.send(event.response())
        assert event.data == "still here"


async def test_pings_without_a_window_for_their_answers_hold_up_no_other_stream():
    async with talking(Http2Peer) as peer:
        connection = peer.http2.connection
        connection.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        pings = b"".join(peer.websocket.send(Ping(b"%d" % number)) for number in range(500))
        connection.send_data(peer.stream_id, pings)
        asked = peer.http2.ask()
        await peer.http2.flush()
        await peer.http2.wait_for(h2.events.ResponseReceived, asked)
        connection.increment_flow_control_window(2**16, peer.stream_id)
        await peer.http2.flush()
        # Of those that were to be answered, the last is enough.
        pongs = b""
        while not pongs.endswith(b"499"):
            for event in connection.receive_data(await peer.stream.receive_some()):
                if isinstance(event, h2.events.DataReceived):
                    assert event.stream_id == peer.stream_id
                    pongs += event.data


async def test_small_messages_that_are_not_received_are_not_collected():
    class Deaf(EchoApp):
        async def websocket(self, receive, send):
            await receive()
            await send({"type": "websocket.accept"})
            await self.release.wait()
            while (await receive())["type"] == "websocket.receive":
                self.received += 1

    app = Deaf()
    app.received = 0
    async with live(app) as server:
        peer = await Http2Peer.open(server)
        async with peer.stream:
            message = peer.websocket.send(TextMessage(""))
            count = 2**16 // len(message) - 1
            with tracing() as memory:
                for at in range(0, count, 1000):
                    await peer.pass_on(message * min(1000, count - at))
                await until_quiet()
                most, _ = memory()
            assert most < 2**20
            app.release.set()
            await peer.send(CloseConnection(1000))
            await app.left.wait()
        assert app.received == count


async def test_compression_is_not_negotiated():
    async with live(EchoApp()) as server, await server.connect() as client:
        await client.send_all(upgrade("Sec-WebSocket-Extensions: permessage-deflate"))
        answer = await read_until(client, b"\r\n\r\n")
        peer = await Http2Peer.open(server, (b"sec-websocket-extensions", b"permessage-deflate"))
        await peer.stream.aclose()
    assert answer.startswith(b"HTTP/1.1 101")
    assert b"extensions" not in answer.lower()
    assert b"sec-websocket-extensions" not in peer.headers
