"""What Ray Serve's tests assert of the end of a server (group RC), on a real socket."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from live_server import live, read_all, read_until, request

import shoal
from batching.scenes import Held
from shoal.asgi.http_options import HttpOptions
from shoal.asgi.lifespan import AppLifespan
from shoal.server.server import serve
from time_limits import HANG_S
from worker_processes import until

pytestmark = pytest.mark.real_time

CALL = request("/held", method="POST", body=b'"item"')


class Ending(shoal.App):
    """Notes the steps of its end."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        self.steps: list[str] = []
        self.endpoint("/held", name="held")(held.__call__)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await super().__call__(scope, receive, send)
        if scope.get("path") == "/held":
            self.steps.append("answered")

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        async with super().lifespan():
            yield
            self.steps.append("lifespan")
        self.steps.append("closed")


async def until_refused(server: Any) -> None:
    with suppress(OSError):
        while True:
            await (await server.connect()).aclose()


async def test_rc25_rc28_the_steps_of_a_shutdown_come_in_order_and_share_one_budget(monkeypatch):
    budgets: list[float] = []
    stop = AppLifespan.stop

    async def noted_stop(lifespan: AppLifespan, timeout_s: float) -> None:
        budgets.append(timeout_s)
        await stop(lifespan, timeout_s)

    monkeypatch.setattr(AppLifespan, "stop", noted_stop)
    held = Held()
    app = Ending(held)
    async with live(app, graceful_timeout_s=HANG_S) as server, await server.connect() as client:
        await client.send_all(CALL)
        await until(lambda: held.batches)
        server.stop.set()
        await until_refused(server)
        assert app.steps == []
        held.gate.set()
        assert (await read_all(client)).startswith(b"HTTP/1.1 200 ")
    assert app.steps == ["answered", "lifespan", "closed"]
    assert (server.drained.finished, server.drained.cut) == (1, 0)
    assert 0 < budgets[0] < HANG_S
    assert math.isclose(budgets[0], HANG_S - server.drained.took_s)


async def test_rc26_what_does_not_end_in_time_is_cancelled_and_the_shutdown_completes(held):
    app = Ending(held)
    async with live(app, graceful_timeout_s=0.05) as server, await server.connect() as client:
        await client.send_all(CALL)
        await until(lambda: held.batches)
        server.stop.set()
        assert (await read_all(client)).startswith(b"HTTP/1.1 503 ")
    assert held.cancelled == [["item"]]
    assert app.steps == ["answered", "lifespan", "closed"]
    assert (server.drained.finished, server.drained.cut) == (0, 1)


async def test_rc27_a_server_that_never_started_only_ends():
    stop, app, announced = anyio.Event(), Ending(Held()), list[str]()

    @app.endpoint("/slow")
    class Slow:
        def __init__(self) -> None:
            anyio.from_thread.run_sync(stop.set)
            anyio.from_thread.run(anyio.sleep_forever)

        def __call__(self, items: list[str]) -> list[str]:
            return items

    with anyio.fail_after(HANG_S):
        drained = await serve(
            app, HttpOptions(port=0), shutdown=stop.wait, on_listening=announced.append
        )
    assert (drained.started, announced, app.steps) == (False, [], [])


async def test_rc30_an_idle_server_ends_without_waiting_out_a_time():
    times = {"graceful_timeout_s": HANG_S * 2, "keep_alive_timeout_s": HANG_S * 2}
    async with live(Ending(Held()), **times) as server, await server.connect() as client:
        await client.send_all(request("/-/healthz"))
        await read_until(client, b"alive")
        server.stop.set()  # the client's idle connection is still there
    assert (server.drained.finished, server.drained.cut) == (0, 0)
