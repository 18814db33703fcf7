"""What a server loads once clients can connect."""

import errno
import subprocess
import sys
import threading

import anyio
import pytest
from echo_app import EchoApp
from live_server import until_quiet

from shoal.asgi.http_options import HttpOptions
from shoal.server.server import serve
from time_limits import HANG_S

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


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


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_then_endpoints_and_metrics_load_nothing_more(backend):
    command = [sys.executable, "-c", USED, backend]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert (ran.stdout, ran.stderr) == ("\n", "")
