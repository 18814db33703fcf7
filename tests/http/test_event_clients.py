"""Streams and WebSockets with clients that no one here wrote, on the real server."""

import json
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
from anyio import to_thread
from httpx_sse import aconnect_sse
from live_server import live
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

import shoal

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

in_thread = to_thread.run_sync


class Told:
    """A handler that ends when it is told to."""

    def __init__(self):
        self.began = anyio.Event()
        self.go = anyio.Event()
        self.left = anyio.Event()

    async def __call__(self, items: list[int]) -> list[int]:
        self.began.set()
        try:
            await self.go.wait()
        finally:
            self.left.set()
        return items


runs = []


async def count(numbers: list[int]):
    runs.append(numbers)
    for step in range(max(numbers)):
        yield [step if step < number else shoal.END for number in numbers]


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def app(told):
    app = shoal.App()
    app.endpoint("/count")(count)
    app.endpoint("/told", name="told", max_batch_size=1)(told)
    return app


def opened(server, path, **more):
    return connect(f"ws://127.0.0.1:{server.port}{path}", subprotocols=["shoal.v1"], **more)


@asynccontextmanager
async def open_socket(server, path):
    """A connection whose methods are called in threads."""
    connecting = await in_thread(opened, server, path)
    socket = await in_thread(connecting.__enter__)
    try:
        yield socket
    finally:
        await in_thread(connecting.__exit__, None, None, None)


@pytest.mark.parametrize("workers", [None, 2])
async def test_websockets_reads_interleaved_streams(app, workers):
    def talk():
        with opened(server, "/count", compression=None) as socket:
            assert socket.subprotocol == "shoal.v1"
            socket.send('{"id": 1, "item": 300}')
            socket.send('{"id": 2, "item": 5}')
            found = {1: [], 2: []}
            ended = set()
            while len(ended) < 2:
                message = json.loads(socket.recv(timeout=10))
                if "next" in message:
                    found[message["id"]].append(message["next"])
                else:
                    assert message["end"] is True
                    ended.add(message["id"])
            return found

    async with live(app, workers) as server:
        assert await in_thread(talk) == {1: list(range(300)), 2: list(range(5))}


@pytest.mark.parametrize("workers", [None, 2])
async def test_a_websocket_that_is_closed_in_mid_call_frees_its_place(app, told, workers):
    async with live(app, workers) as server, open_socket(server, "/told") as socket:
        await in_thread(socket.send, '{"id": 1, "item": 1}')
        await told.began.wait()
        await in_thread(socket.close)
        await told.left.wait()
        assert not told.go.is_set()


async def test_a_connection_that_is_lost_in_mid_call_frees_its_place(app, told):
    async with live(app) as server, open_socket(server, "/told") as socket:
        await in_thread(socket.send, '{"id": 1, "item": 1}')
        await told.began.wait()
        socket.socket.shutdown(2)
        await told.left.wait()


async def test_at_the_end_of_the_server_a_request_finishes_and_then_it_closes(app, told):
    async with live(app) as server, open_socket(server, "/told") as socket:
        await in_thread(socket.send, '{"id": 1, "item": 7}')
        await told.began.wait()
        server.stop.set()
        await anyio.wait_all_tasks_blocked()
        late = await in_thread(lambda: (socket.send('{"id": 2, "item": 7}'), socket.recv(10))[1])
        assert json.loads(late)["error"]["type"].endswith(":closed")
        told.go.set()
        assert json.loads(await in_thread(socket.recv, 10)) == {"id": 1, "result": 7}
        with pytest.raises(ConnectionClosed) as closed:
            await in_thread(socket.recv, 10)
        assert closed.value.rcvd.code == 1012


async def test_what_does_not_finish_in_time_is_told_so(app, told):
    async with live(app, graceful_timeout_s=0.1) as server, open_socket(server, "/told") as socket:
        await in_thread(socket.send, '{"id": 1, "item": 7}')
        await told.began.wait()
        server.stop.set()
        cut = json.loads(await in_thread(socket.recv, 10))
        assert cut["error"]["type"].endswith(":closed")
        with pytest.raises(ConnectionClosed):
            await in_thread(socket.recv, 10)


async def test_a_handshake_of_another_origin_is_refused(app):
    async with live(app, allowed_hosts=[]) as server:
        with pytest.raises(InvalidStatus) as refused:
            await in_thread(lambda: opened(server, "/told", origin="https://evil.test"))
    assert refused.value.response.status_code == 403


async def test_httpx_sse_reads_ids_the_retry_and_the_end(app):
    async with live(app) as server, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{server.port}/count?numbers=3"
        async with aconnect_sse(client, "GET", url) as source:
            events = [event async for event in source.aiter_sse()]
        assert [(e.id, e.event, e.data) for e in events] == [
            *((str(n + 1), "message", str(n)) for n in range(3)),
            ("4", "end", "{}"),
        ]
        assert events[0].retry == 1000
        runs.clear()
        again = await client.get(
            url, headers={"Accept": "text/event-stream", "Last-Event-ID": events[-1].id}
        )
        assert (again.status_code, runs) == (204, [])


async def test_a_client_that_takes_json_gets_an_array(app):
    async with live(app) as server, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{server.port}/count?numbers=300"
        answer = await client.get(url, headers={"Accept": "application/json"})
        assert answer.json() == list(range(300))
