"""What an ASGI application hears of a WebSocket's end: the client's code, reason and messages."""

import anyio
import pytest
from live_server import live, read_until, until_quiet, upgrade
from test_websocket_frames import framed
from test_websocket_limits import both_protocols

pytestmark = pytest.mark.real_time


class Listener:
    """Accepts, and notes what it receives once it may read."""

    def __init__(self, *, reads_at_once=True):
        self.received = []
        self.has_ended = anyio.Event()
        self.may_read = anyio.Event()
        if reads_at_once:
            self.may_read.set()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            raise RuntimeError  # it has none
        await receive()
        await send({"type": "websocket.accept"})
        await self.may_read.wait()
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self.received.append((message["code"], message.get("reason")))
                self.has_ended.set()
                return
            self.received.append(message["text"])


CLOSE = framed((3001).to_bytes(2) + "gehört".encode(), 8)


@pytest.mark.parametrize(
    ("sent", "end"),
    [
        (CLOSE, (3001, "gehört")),
        (framed((1000).to_bytes(2), 8), (1000, "")),
        (framed(b"", 8), (1005, "")),
    ],
    ids=["a code and a reason", "a code", "neither"],
)
async def test_the_application_hears_why_the_client_has_closed(sent, end):
    app = Listener()
    async with live(app) as server, await server.connect() as client:
        await client.send_all(upgrade())
        await read_until(client, b"\r\n\r\n")
        await client.send_all(sent)
        await app.has_ended.wait()
    assert app.received == [end]


@pytest.mark.parametrize("workers", [None, 1])
async def test_messages_just_before_the_end_are_received(workers):
    app = Listener(reads_at_once=False)
    async with live(app, workers=workers) as server, await server.connect() as client:
        await client.send_all(upgrade())
        await read_until(client, b"\r\n\r\n")
        await client.send_all(b"".join(framed(b"%d" % n, 1) for n in range(5)) + CLOSE)
        await read_until(client, b"\x88")
        app.may_read.set()
        await app.has_ended.wait()
    assert app.received == ["0", "1", "2", "3", "4", (3001, "gehört")]


@both_protocols
async def test_many_messages_just_before_the_end_of_the_connection_are_received(kind):
    app = Listener(reads_at_once=False)
    async with live(app) as server:
        peer = await kind.open(server)
        async with peer.stream:
            await peer.pass_on(b"".join(framed(b"%d" % n, 1) for n in range(100)))
            await peer.stream.send_eof()
            await until_quiet()
            app.may_read.set()
            await app.has_ended.wait()
    assert app.received == [*map(str, range(100)), (1006, None)]


@pytest.mark.parametrize("workers", [None, 1])
async def test_a_connection_that_is_lost_is_reported_as_such(workers):
    app = Listener()
    async with live(app, workers=workers) as server:
        async with await server.connect() as client:
            await client.send_all(upgrade())
            await read_until(client, b"\r\n\r\n")
        await app.has_ended.wait()
    assert app.received == [(1006, None)]
