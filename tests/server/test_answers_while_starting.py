"""A server that starts: what it answers meanwhile, and what it loads once clients can connect."""

import errno
import json
import socket
import subprocess
import sys
import threading
from contextlib import asynccontextmanager

import anyio
import h2.events
import pytest
from echo_app import EchoApp
from live_server import Client, Http2Client, read_all, request, until_quiet, upgrade

import shoal
from shoal.asgi.http_options import HttpOptions
from shoal.errors import LifespanFailed
from shoal.server.server import serve
from time_limits import HANG_S

pytestmark = pytest.mark.real_time


class Starting:
    """An application that starts once `may_start` is set, and the port that it is served at."""

    def __init__(self):
        self.app = app = shoal.App()
        self.may_start, self.started, self.stop = anyio.Event(), anyio.Event(), anyio.Event()
        self.failure = None
        self.drained = None
        starting = self

        @app.endpoint("/embed", name="slow")
        class Slow:
            async def warm_up(self):
                await starting.may_start.wait()
                if starting.failure is not None:
                    raise starting.failure

            async def __call__(self, texts: list[str]) -> list[int]:
                return [len(text) for text in texts]

        @app.endpoint("/quick", name="quick")
        async def quick(texts: list[str]) -> list[int]:
            return [len(text) for text in texts]

        app.mount("/mounted", self.mounted)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    async def mounted(self, scope, receive, send):
        raise AssertionError("its lifespan has not begun")

    async def serve(self):
        options = HttpOptions(fd=self._socket.detach(), allowed_hosts=["*"], graceful_timeout_s=5)
        self.drained = await serve(
            self.app,
            options,
            shutdown=self.stop.wait,
            on_listening=lambda _: self.started.set(),
            answers_early=True,
        )

    async def connect(self):
        return await anyio.connect_tcp("127.0.0.1", self.port)

    async def ask(self, path, **more):
        async with Client(await self.connect()) as client:
            await client.send_all(request(path, close=True, **more))
            head, _, body = (await read_all(client)).partition(b"\r\n\r\n")
        return int(head.split()[1]), head.lower(), body

    async def until_loading(self, names):
        while json.loads((await self.ask("/-/readyz"))[2])["loading"] != names:
            await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def starting(it=None):
    it = it or Starting()
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.serve)
            yield it
            it.stop.set()


async def test_health_is_answered_and_all_else_is_refused_for_a_time():
    async with starting() as it:
        assert (await it.ask("/-/healthz"))[0] == 200
        status, _, body = await it.ask("/-/readyz")
        assert (status, json.loads(body)["status"]) == (503, "opening")
        await it.until_loading(["slow"])
        for path in ("/embed", "/quick", "/nowhere", "/mounted/x", "/-/docs", "/"):
            status, head, body = await it.ask(path, method="POST", body=b'"eel"')
            assert (status, json.loads(body)["title"]) == (503, "The server is starting"), path
            assert b"\r\nretry-after: 1" in head
        it.may_start.set()
        await it.started.wait()
        assert (await it.ask("/-/readyz"))[0] == 200
        assert (await it.ask("/embed", method="POST", body=b'"eel"'))[::2] == (200, b"3")


async def test_a_websocket_and_http_2_are_refused_for_a_time():
    async with starting() as it:
        async with Client(await it.connect()) as client:
            await client.send_all(upgrade())
            assert (await read_all(client)).startswith(b"HTTP/1.1 503")
        client = Http2Client(Client(await it.connect()))
        for path, status in ((b"/embed", b"503"), (b"/-/healthz", b"200")):
            asked = client.ask(path)
            await client.flush()
            event = await client.wait_for(h2.events.ResponseReceived, asked)
            assert dict(event.headers)[b":status"] == status
        await client.stream.aclose()
        it.may_start.set()
        await it.started.wait()


async def test_a_shutdown_while_it_starts_closes_its_connections():
    async with starting() as it, Client(await it.connect()) as idle:
        await idle.send_all(request("/-/healthz"))
        assert (await idle.receive_some()).startswith(b"HTTP/1.1 200")
        it.stop.set()
        assert await read_all(idle) == b""
    assert not it.drained.started


async def test_a_start_that_fails_closes_its_connections():
    it = Starting()
    it.failure = LookupError("no weights")

    async def fail():
        async with Client(await it.connect()) as idle:
            await idle.send_all(request("/-/healthz"))
            assert (await idle.receive_some()).startswith(b"HTTP/1.1 200")
            it.may_start.set()
            assert await read_all(idle) == b""

    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail)
            with pytest.raises(LifespanFailed, match="LookupError: no weights"):
                await it.serve()
    with pytest.raises(OSError):
        await it.connect()


class Lifespan:
    """A mounted application whose lifespan takes a while."""

    def __init__(self):
        self.began, self.may_start = anyio.Event(), anyio.Event()

    async def __call__(self, scope, receive, send):
        assert scope["type"] == "lifespan"
        await receive()
        self.began.set()
        await self.may_start.wait()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})


async def test_it_is_not_ready_before_a_mounted_application_has_started():
    it = Starting()
    mounted = Lifespan()
    it.app.mount("/other", mounted, lifespan=True)
    it.may_start.set()
    async with starting(it):
        await mounted.began.wait()
        assert (await it.ask("/-/readyz"))[0] == 503
        assert (await it.ask("/embed", method="POST", body=b'"eel"'))[0] == 503
        mounted.may_start.set()
        await it.started.wait()
        assert (await it.ask("/-/readyz"))[0] == 200


@pytest.mark.slow
async def test_what_is_needed_later_is_loaded_in_a_thread_once_clients_can_connect(monkeypatch):
    monkeypatch.setattr("shoal.server.server._LOADED_AFTER_S", 0.0)
    happened = []
    is_loaded = anyio.Event()

    def load():
        happened.append(("loads", threading.get_ident() == loop))
        anyio.from_thread.run_sync(is_loaded.set)

    loop = threading.get_ident()
    with anyio.fail_after(HANG_S):
        await serve(
            EchoApp(),
            HttpOptions(port=0),
            shutdown=is_loaded.wait,
            on_listening=lambda _: happened.append("is up"),
            load_later=load,
        )
    assert happened == ["is up", ("loads", False)]


@pytest.mark.slow
async def test_what_can_not_be_loaded_then_is_logged_and_ends_nothing(monkeypatch, caplog):
    monkeypatch.setattr("shoal.server.server._LOADED_AFTER_S", 0.0)
    has_failed = anyio.Event()

    def load():
        anyio.from_thread.run_sync(has_failed.set)
        raise OSError(errno.EMFILE, "Too many open files")

    async def shutdown():
        await has_failed.wait()
        await until_quiet()

    with anyio.fail_after(HANG_S):
        drained = await serve(EchoApp(), HttpOptions(port=0), shutdown=shutdown, load_later=load)
    assert drained.failure is None
    [line] = caplog.messages
    assert line.startswith("can't load a part of the server: [Errno 24]")


USED = """
import sys

import anyio
import shoal
from shoal.http.app.router import load_the_rest
from shoal.testing.asgi import ask

load_the_rest()


OURS = ("shoal.", "prometheus_client", "starlette")


def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


async def main():
    app = shoal.App()
    async with app.lifespan():
        known = set(sys.modules)
        await app.controller.create_backend("one", double)
        await app.controller.create_endpoint("one", backend="one", route="/one")
        assert (await ask(app, "/one", 1)).json() == 2
        assert (await ask(app, "/-/metrics", method="GET")).status == 200
        print(*sorted(name for name in set(sys.modules) - known if name.startswith(OURS)))


anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_then_endpoints_and_metrics_load_nothing_more(backend):
    command = [sys.executable, "-c", USED, backend]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert (ran.stdout, ran.stderr) == ("\n", "")
