"""What a WebSocket's client can't do: send what is too large, be silent for ever, send bombs."""

import socket
import tracemalloc
from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest
from echo_app import EchoApp
from live_server import live, read_all, read_until, until_quiet, upgrade
from wsproto.connection import Connection as WebSocket
from wsproto.connection import ConnectionType
from wsproto.events import CloseConnection, Ping, TextMessage

pytestmark = pytest.mark.real_time

MOST = 1000


class Peer:
    """A WebSocket's client."""

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


@pytest.mark.parametrize("letter", ["x", "\xe9"])
async def test_a_message_of_just_the_limit_is_taken(letter):
    text = letter * (MOST // len(letter.encode()))
    async with live(EchoApp(), max_message_bytes=MOST) as server:
        peer = await Peer.open(server)
        async with peer.stream:
            for _ in range(2):
                await peer.send(TextMessage(text))
                assert (await peer.next_event()).data == text
            await peer.send(TextMessage(text + letter))
            assert (await peer.next_event()).code == 1009


def part(size):
    return TextMessage("x" * size, message_finished=False)


async def test_the_incomplete_messages_of_all_clients_have_one_limit():
    async with live(EchoApp(), max_incomplete_bytes=MOST) as server:
        first, second, third = [await Peer.open(server) for _ in range(3)]
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


@pytest.mark.parametrize("size", [10, 8_000_000])
async def test_a_message_that_is_not_completed_in_time_ends_its_websocket(size):
    async with live(EchoApp(), body_timeout_s=0.05) as server:
        peer = await Peer.open(server)
        async with peer.stream:
            await peer.send(part(size))
            event = await peer.next_event()
            assert (event.code, event.reason) == (1008, "a message was not sent in time")


@pytest.mark.parametrize(
    ("broken", "code"),
    [(b"\x83\x80\0\0\0\0", 1002), (b"\x81\x81\0\0\0\0\xff", 1007)],
    ids=["an unknown kind of frame", "a text that is not UTF-8"],
)
async def test_a_client_is_told_what_is_wrong_with_its_frames(broken, code):
    async with live(EchoApp()) as server:
        peer = await Peer.open(server)
        async with peer.stream:
            await peer.pass_on(broken)
            closing = await peer.next_event()
            assert isinstance(closing, CloseConnection)
            assert closing.code == code


@pytest.mark.parametrize("frames", [1, 2, MOST + 1])
async def test_a_larger_message_ends_the_websocket_with_1009(frames, caplog):
    """However it is cut into frames, and whatever comes behind it."""
    app = EchoApp()
    size = -(-(MOST + 1) // frames)
    parts = [TextMessage("x" * size, message_finished=number == frames) for number in range(frames)]
    async with live(app, max_message_bytes=MOST) as server:
        peer = await Peer.open(server)
        async with peer.stream:
            await peer.send(*parts)
            event = await peer.next_event()
            assert isinstance(event, CloseConnection)
            assert event.code == 1009
            await app.left.wait()
            assert await read_all(peer.stream) in (b"", b"<reset>")
    assert caplog.records == []


async def test_what_a_client_sends_beyond_the_limit_is_not_collected():
    part = TextMessage("x" * 2**16, message_finished=False)
    async with live(EchoApp(), max_message_bytes=MOST) as server:
        peer = await Peer.open(server)
        async with peer.stream:
            tracemalloc.start()
            try:
                with suppress(anyio.BrokenResourceError):
                    for _ in range(2**8):
                        await peer.send(part)
                        await anyio.lowlevel.checkpoint()
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
    assert most < 2**21


async def test_the_pings_of_a_client_that_does_not_read_are_not_collected():
    pings = WebSocket(ConnectionType.CLIENT).send(Ping(b"x" * 125)) * 100
    async with live(EchoApp()) as server:
        with server.connect_now(upgrade()) as client:
            await until_quiet()
            assert client.recv(2**16).startswith(b"HTTP/1.1 101")
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
            tracemalloc.start()
            refused = sent = 0
            left = pings
            try:
                while refused < 2 and sent < 2**24:
                    try:
                        size = client.send(left)
                        left = left[size:] or pings
                        sent += size
                        refused = 0
                    except BlockingIOError:
                        refused += 1
                        await until_quiet()
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
    assert sent > 2**18
    assert most < 2**20


async def test_a_silent_client_is_pinged_and_then_disconnected():
    app = EchoApp()
    async with live(app, ping_interval_s=0.05, max_connections=1) as server:
        peer = await Peer.open(server)
        async with peer.stream:
            assert isinstance(await peer.next_event(), Ping)
            assert (await read_all(peer.stream)).endswith(b"<reset>")
        await app.left.wait()
        assert await server.answers()


async def test_a_client_that_answers_pings_may_be_silent():
    async with live(EchoApp(), ping_interval_s=0.05) as server:
        peer = await Peer.open(server)
        async with peer.stream:
            for _ in range(4):
                ping = await peer.next_event()
                assert isinstance(ping, Ping)
                await peer.send(ping.response())
            await peer.send(TextMessage("still here"))
            while isinstance(event := await peer.next_event(), Ping):
                await peer.send(event.response())
            assert event.data == "still here"


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
        peer = await Peer.open(server)
        async with peer.stream:
            message = peer.websocket.send(TextMessage(""))
            count = 2**16 // len(message) - 1
            tracemalloc.start()
            try:
                for at in range(0, count, 1000):
                    await peer.pass_on(message * min(1000, count - at))
                await until_quiet()
                most = tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()
            assert most < 2**20
            app.release.set()
            await peer.send(CloseConnection(1000))
            await app.left.wait()
        assert app.received == count


async def test_compression_is_not_negotiated():
    async with live(EchoApp()) as server, await server.connect() as client:
        await client.send_all(upgrade("Sec-WebSocket-Extensions: permessage-deflate"))
        answer = await read_until(client, b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 101")
    assert b"extensions" not in answer.lower()
