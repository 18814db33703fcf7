"""WebSockets of a server with workers, to their ends: of a client, of a worker, of the server."""

import json
from contextlib import asynccontextmanager, suppress

import pytest
from held_app import statistics
from live_server import live, read_until, upgrade
from test_websocket_limits import Http1Peer, Http2Peer
from wsproto.events import CloseConnection, TextMessage

import shoal
from worker_processes import kill, until, workers_of

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


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


async def test_at_the_end_its_requests_finish_and_it_is_told_that_the_server_restarts(app, held):
    async with live(app, workers=1) as server, asking(server) as peer:
        await until(lambda: held.batches)
        server.stop.set()
        await until_refused(server)
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


async def until_refused(server):
    """Waits until nobody accepts clients any more: each worker has been told of the end."""
    with suppress(OSError):
        while True:
            await (await server.connect()).aclose()
