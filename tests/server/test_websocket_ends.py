"""The ends of WebSockets: what an application hears of them, and those of a server with workers."""

import json
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from held_app import statistics
from live_server import live, read_until, until_quiet, upgrade
from test_websocket_limits import Http1Peer, Http2Peer, both_protocols, framed
from wsproto.events import CloseConnection, TextMessage

import shoal
from worker_processes import kill, until, workers_of

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
        assert scope["type"] == "websocket"  # it has no lifespan
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


@pytest.fixture
def app(held):
    app = shoal.App()
    app.endpoint("/", name="held", max_batch_size=100)(held)
    return app


class OverHttp1(Http1Peer):
    @classmethod
    async def open(cls, server):
        stream = await server.connect()
        await stream.send_all(upgrade("Sec-WebSocket-Protocol: shoal.v1"))
        assert (await read_until(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        return cls(stream)


class OverHttp2(Http2Peer):
    @classmethod
    async def open(cls, server):
        return await super().open(server, (b"sec-websocket-protocol", b"shoal.v1"))


@asynccontextmanager
async def asking(server, kind=OverHttp1):
    """A client whose request is running."""
    peer = await kind.open(server)
    async with peer.stream:
        await peer.send(TextMessage(json.dumps({"id": 1, "item": 7})))
        yield peer


async def read(peer):
    return json.loads((await peer.next_event()).data)


@pytest.mark.slow
async def test_its_requests_are_cancelled_when_client_or_worker_goes(app, held, anyio_backend_name):
    async with live(app, workers=1) as server:
        kinds = [OverHttp1, OverHttp2] if anyio_backend_name == "trio" else [OverHttp1]
        for number, kind in enumerate(kinds, 1):
            async with asking(server, kind):
                await until(lambda number=number: len(held.batches) == number)
            await until(lambda number=number: held.cancelled == number)
        async with asking(server) as peer:
            await until(lambda: len(held.batches) == len(kinds) + 1)
            [dead] = workers_of()
            kill(dead)
            assert await peer.next_event() is None
        await until(lambda: held.cancelled == len(kinds) + 1 and statistics(app).running == 0)
        held.go.set()
        for kind in kinds:
            async with asking(server, kind) as other:  # of the worker in its place
                assert await read(other) == {"id": 1, "result": 7}


@pytest.mark.slow
async def test_at_the_end_its_requests_finish_and_it_is_told_that_the_server_restarts(app, held):
    async with live(app, workers=1) as server, asking(server) as peer:
        await until(lambda: held.batches)
        server.stop.set()
        with suppress(OSError):  # until each worker has been told of the end
            while True:
                await (await server.connect()).aclose()
        await peer.send(TextMessage(json.dumps({"id": 2, "item": 8})))
        late = await read(peer)
        assert (late["id"], late["error"]["status"]) == (2, 503)
        held.go.set()
        assert await read(peer) == {"id": 1, "result": 7}
        closed = await peer.next_event()
        assert isinstance(closed, CloseConnection)
        assert closed.code == 1012
    assert held.batches == [[7]]
    assert workers_of() == []
