"""The server for programs on asyncio: it serves, drains in order, and ends."""

from __future__ import annotations

import os
import socket
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from serving.fake_client import FakeClient, full_status
from shoal.http.admin import AdminApi
from shoal.http.asyncio_server import serve
from shoal.http.door import Door
from shoal.http.listeners import Listening, Unix
from shoal.http.server_config import ServerConfig
from shoal.http.server_lifespan import LifespanFailed
from shoal.serving.remote_client import connect

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

HANG_S = 10
END = b"HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
def anyio_backend():
    return "asyncio", {}


class PlainApp:
    """Answers with its path; ``/hold`` when it is released, ``/flood`` without an end."""

    def __init__(self):
        self.entered = anyio.Event()
        self.release = anyio.Event()
        self.events = []

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            while "lifespan.shutdown" not in self.events:
                self.events.append((await receive())["type"])
                await send({"type": f"{self.events[-1]}.complete"})
            return
        path = scope["path"]
        if path == "/fail":
            raise LookupError("the application's own mistake")
        self.entered.set()
        if path == "/hold":
            await self.release.wait()
        headers = [] if path == "/flood" else [(b"content-length", b"%d" % len(path))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while path == "/flood":
            await send({"type": "http.response.body", "body": bytes(2**20), "more_body": True})
        await send({"type": "http.response.body", "body": path.encode()})


class Live:
    def __init__(self):
        self.urls = []
        self.stop = anyio.Event()
        self.drained = None

    async def run(self, app, config, doors, more, *, task_status):
        def started(url):
            self.urls.append(url)
            if len(self.urls) == 1 + len(doors):
                task_status.started()

        listening = [
            Listening(address=address, app=of_door, started=started) for address, of_door in doors
        ]
        self.drained = await serve(
            app, config, shutdown=self.stop.wait, started=started, doors=listening, **more
        )


@asynccontextmanager
async def running(app, doors=(), lifespan=True, **config):
    live = Live()
    given = (app, ServerConfig(port=0, **config), doors, {"lifespan": lifespan})
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            await tasks.start(live.run, *given)
            yield live
            live.stop.set()


async def open_to(url):
    if url.startswith("unix:"):
        return await anyio.connect_unix(url.removeprefix("unix:"))
    return await anyio.connect_tcp("127.0.0.1", int(url.rpartition(":")[2]))


async def read_all(client):
    received = b""
    try:
        while True:
            received += await client.receive()
    except anyio.EndOfStream:
        return received
    except anyio.BrokenResourceError:
        return received + b"<reset>"


async def talk(url, path="/x"):
    async with await open_to(url) as client:
        await client.send(f"GET {path} ".encode() + END)
        return await read_all(client)


async def test_requests_are_answered_within_the_lifespan():
    app = PlainApp()
    async with running(app) as live:
        assert app.events == ["lifespan.startup"]
        for path in (b"/a", b"/b"):
            assert (await talk(live.urls[0], path.decode())).endswith(path)
    assert app.events == ["lifespan.startup", "lifespan.shutdown"]
    assert (live.drained.started, live.drained.finished, live.drained.cut) == (True, 0, 0)


async def test_each_address_has_its_own_application(tmp_path):
    path = str(tmp_path / "shoal.sock")
    fake = FakeClient()
    door = Door(AdminApi(fake, token=None, allowed_modules=None))
    app = PlainApp()
    async with running(app, [(Unix(path), door)], lifespan=False) as live:
        assert (await talk(live.urls[0])).endswith(b"/x")
        async with connect(live.urls[1]) as client:
            assert await client.status() == full_status()
    assert app.events == []
    assert os.listdir(tmp_path) == []


async def test_a_call_that_is_cancelled_is_cancelled_at_the_server(tmp_path):
    fake = FakeClient()
    fake.endpoints["e"] = {}
    began, ended = anyio.Event(), anyio.Event()

    async def answer():
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    fake.answer = answer
    door = Door(AdminApi(fake, token=None, allowed_modules=None))
    async with running(door, lifespan=False, uds=str(tmp_path / "x")) as live:
        async with connect(live.urls[0]) as client, anyio.create_task_group() as tasks:
            tasks.start_soon((await client.get_handle("e")).call)
            await began.wait()
            tasks.cancel_scope.cancel()
        await ended.wait()


async def test_a_stream_that_is_left_is_left_at_the_server(tmp_path):
    fake = FakeClient()
    fake.endpoints["e"] = {}
    fake.results = [1]
    door = Door(AdminApi(fake, token=None, allowed_modules=None))
    async with (
        running(door, lifespan=False, uds=str(tmp_path / "x")) as live,
        connect(live.urls[0]) as client,
    ):
        handle = await client.get_handle("e")
        async with handle.stream() as stream:
            assert await anext(stream) == 1
        await fake.streams[0].closed.wait()


async def test_shutdown_lets_a_request_finish_and_refuses_others():
    app = PlainApp()
    async with running(app) as live, await open_to(live.urls[0]) as client:
        await client.send(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n")
        await app.entered.wait()
        live.stop.set()
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(OSError, match=r"refused|attempts"):
            await open_to(live.urls[0])
        app.release.set()
        answer = await read_all(client)
    assert answer.endswith(b"/hold")
    assert b"connection: close" in answer.lower()
    assert (live.drained.finished, live.drained.cut) == (1, 0)


async def test_shutdown_closes_an_idle_connection():
    async with running(PlainApp(), keep_alive_timeout_s=HANG_S * 2) as live:
        client = await open_to(live.urls[0])
        await client.send(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"/x" in await client.receive()
        live.stop.set()
        await read_all(client)
        await client.aclose()


@pytest.mark.parametrize("path", ["/hold", "/flood"])
async def test_shutdown_cuts_off_what_does_not_finish_in_time(path):
    app = PlainApp()
    async with running(app, graceful_timeout_s=0.05) as live:
        client = await open_to(live.urls[0])
        await client.send(f"GET {path} ".encode() + END)
        await app.entered.wait()
    await client.aclose()
    assert (live.drained.finished, live.drained.cut) == (0, 1)
    assert app.events == ["lifespan.startup", "lifespan.shutdown"]


async def test_cancelling_the_server_does_not_wait_for_a_client_that_does_not_read():
    app = PlainApp()
    with anyio.CancelScope() as scope:
        async with running(app) as live:
            client = await open_to(live.urls[0])
            await client.send(b"GET /flood " + END)
            await app.entered.wait()
            scope.cancel()
    await client.aclose()
    assert live.drained is None


async def test_an_error_of_the_application_is_answered(caplog):
    async with running(PlainApp()) as live:
        assert (await talk(live.urls[0], "/fail")).startswith(b"HTTP/1.1 500")
        assert (await talk(live.urls[0])).endswith(b"/x")
    assert len(caplog.records) == 1


async def test_a_client_that_misbehaves_ends_its_own_connection():
    async with running(PlainApp()) as live:
        client = await open_to(live.urls[0])
        headers = b"Host: x\r\nConnection: \x85Upgrade\r\nUpgrade: websocket\r\n\r\n"
        await client.send(b"GET / HTTP/1.1\r\n" + headers)
        await read_all(client)
        await client.aclose()
        assert (await talk(live.urls[0])).endswith(b"/x")


async def test_a_connection_beyond_the_limit_is_closed():
    app = PlainApp()
    async with running(app, max_connections=1) as live, await open_to(live.urls[0]) as client:
        await client.send(b"GET /hold " + END)
        await app.entered.wait()
        assert await talk(live.urls[0]) in (b"", b"<reset>")
        app.release.set()
        assert (await read_all(client)).endswith(b"/hold")


async def test_an_application_that_does_not_start_is_not_served():
    async def app(scope, receive, send):
        await receive()
        raise LookupError("no weights in the file")

    with pytest.raises(LifespanFailed, match="no weights"):
        await serve(app, ServerConfig(port=0), shutdown=anyio.sleep_forever)


async def test_a_server_that_is_shut_down_while_it_starts_never_listens():
    async def app(scope, receive, send):
        await anyio.sleep_forever()

    drained = await serve(app, ServerConfig(port=0), shutdown=lambda: anyio.lowlevel.checkpoint())
    assert not drained.started


async def test_an_address_in_use_is_found_before_the_application_starts():
    app = PlainApp()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = ServerConfig(port=taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            await serve(app, config, shutdown=anyio.sleep_forever)
    assert app.events == []
