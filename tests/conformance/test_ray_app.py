"""What Ray Serve's tests assert of services over HTTP, and of the end of a server (RI, RC)."""

import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from live_server import live, read_all, read_until, request
from starlette.applications import Starlette
from starlette.routing import Mount

import shoal
from batching.callers import outcome, outcomes
from batching.scenes import Held, Recorder, settle
from conformance.replica_scenes import chain, service
from shoal.asgi.http_options import HttpOptions
from shoal.asgi.lifespan import AppLifespan
from shoal.errors import ShutDown
from shoal.replicas.code.definition import accept_batch
from shoal.server.server import serve
from shoal.serving.controller.controller import Controller
from shoal.testing.asgi import Answer, Call, ask, calling
from time_limits import HANG_S
from worker_processes import until

LINES = [("accept", "application/x-ndjson")]
CALL = request("/held", method="POST", body=b'"item"')


class Steps:
    """A generator that yields its item, waits for its gate, and yields it again."""

    def __init__(self) -> None:
        self.gate = anyio.Event()
        self.closed = False

    async def __call__(self, items: list[str]) -> AsyncIterator[list[str]]:
        try:
            yield items
            await self.gate.wait()
            yield items
        finally:
            self.closed = True


@asynccontextmanager
async def opened(**settings: Any) -> AsyncGenerator[tuple[shoal.App, Controller]]:
    """Opens an application without endpoints, and gives it with its controller."""
    app = shoal.App(**settings)
    async with app.lifespan():
        yield app, app.controller


async def ask_all(app: Any, path: str, *items: Any) -> list[Answer]:
    return await outcomes(*(ask(app, path, item) for item in items))


async def readiness(app: Any) -> tuple[int, dict[str, Any]]:
    answer = await ask(app, "/-/readyz", method="GET")
    return answer.status, answer.json()


async def becomes(app: Any, status: int) -> None:
    """Asks for readiness until it has a status."""
    with anyio.fail_after(2):
        while (await readiness(app))[0] != status:  # noqa: ASYNC110 - a server is only asked
            await anyio.sleep(0.01)


# RI: whole requests.


async def test_ri3_a_handler_that_returns_a_number_is_an_error_that_does_not_show_it():
    async def handler(items: list[int]) -> Any:
        return 5150

    async with opened() as (app, controller):
        await service(controller, "only", accept_batch(handler))
        (answer,) = await ask_all(app, "/only", 1)
    assert answer.status == 500
    assert b"5150" not in answer.body


# RC1-RC9: clients that leave.


@pytest.mark.parametrize("mounted", [False, True])
async def test_rc1_a_client_that_leaves_cancels_the_handler_and_what_it_calls(mounted):
    async with opened() as (app, controller), chain(controller) as (_, outer, inner):
        site = Starlette(routes=[Mount("/ml", app=app)]) if mounted else app
        call = Call(site, "/ml/outer" if mounted else "/outer", item="item")
        async with calling(call):
            await settle()
            assert inner.batches == [["item"]]
            await anyio.sleep(0.5)
            assert inner.cancelled == []
            call.leave()
            await settle()
            assert outer.cancelled == inner.cancelled == [["item"]]
            assert call.status == 499


async def test_rc7_rc24_a_generator_is_closed_when_its_client_leaves_and_not_before():
    steps = Steps()
    async with opened(heartbeat_s=0.5) as (app, controller):
        await service(controller, "only", steps)
        call = Call(app, "/only", item="hi", headers=LINES)
        async with calling(call):
            await call.until_sent(b'{"item":"hi"}')
            await anyio.sleep(100)
            assert not steps.closed
            call.leave()
            await call.returned.wait()
            await settle()
            assert steps.closed
    assert call.body.split() == [b'{"item":"hi"}']


# RC10-RC12: overload.


@pytest.mark.parametrize(
    ("settings", "status", "retry_after"),
    [({}, 503, "1"), ({"overload_status": 429, "retry_after_s": 7}, 429, "7")],
)
async def test_rc10_rc11_above_the_bound_calls_are_refused_at_once(settings, status, retry_after):
    held = Held()
    async with opened(**settings) as (app, controller):
        bound = {"max_ongoing_requests": 1, "max_batch_size": 1, "max_queued_requests": 1}
        await service(controller, "only", held, **bound)
        running, queued = (Call(app, "/only", item=item) for item in ("running", "queued"))
        async with calling(running) as tasks:
            await settle()
            tasks.start_soon(queued.run)
            await settle()
            with anyio.fail_after(1):
                started = anyio.current_time()
                refused = await ask_all(app, "/only", *range(10))
                assert anyio.current_time() == started
            held.gate.set()
            await running.returned.wait()
            await queued.returned.wait()
    assert {answer.status for answer in refused} == {status}
    assert {answer.headers["retry-after"] for answer in refused} == {retry_after}
    assert {answer.json()["type"] for answer in refused} == {"urn:shoal:problem:overloaded"}
    assert [running.answer.json(), queued.answer.json()] == ["running", "queued"]
    assert held.batches == [["running"], ["queued"]]


# RC31: requests that come while the application drains.


async def test_rc31_what_still_comes_in_is_served_until_the_end_and_its_calls_with_it():
    async with opened() as (app, controller), chain(controller) as (handle, outer, inner):
        running, late = (Call(app, "/outer", item=item) for item in ("running", "late"))
        direct = Call(app, "/inner", item="direct")
        async with calling(running) as tasks:
            await settle()
            app.begin_drain()
            tasks.start_soon(late.run)
            await settle()
            assert (await readiness(app))[0] == 503
            tasks.start_soon(controller.shutdown)
            await settle()
            tasks.start_soon(direct.run)
            assert type(await outcome(handle.call("internal"))) is ShutDown
            await settle()
            inner.gate.set()
            for call in (running, late, direct):
                await call.returned.wait()
    assert [call.answer.json() for call in (running, late, direct)] == ["running", "late", "direct"]
    assert outer.cancelled == []


# RC33: health.


async def test_rc33_readiness_takes_no_slot_when_all_are_taken(held):
    async with opened() as (app, controller):
        await service(
            controller,
            "only",
            held,
            max_batch_size=1,
            max_queued_requests=0,
            health_check_period_s=0.1,
        )
        running = Call(app, "/only", item="running")
        async with calling(running):
            await settle()
            for _ in range(3):
                await anyio.sleep(1)  # ten health checks
                status, body = await readiness(app)
                assert status == 200
                state = body["endpoints"]["only"]
                assert (state["running"], state["queued"]) == (1, 0)
            held.gate.set()
            await running.returned.wait()
    assert running.answer.json() == "running"
    assert held.batches == [["running"]]


class Checked(Recorder):
    """Code that falls ill, and whose next replicas are not ready before it is repaired."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ill = False
        self.repaired = anyio.Event()
        self._starts = 0

    async def warm_up(self) -> None:
        self._starts += 1
        if self._starts > 1:
            await self.repaired.wait()

    async def health(self) -> None:
        if self.is_ill and not self.repaired.is_set():
            raise RuntimeError("ill")


class Hanging(Checked):
    """The same, but its health check does not come back."""

    async def health(self) -> None:
        if self.is_ill:
            await self.repaired.wait()


@pytest.mark.parametrize("code", [Checked, Hanging])
async def test_rc33_checks_that_fail_or_hang_turn_the_service_not_ready(code):
    checked = code()
    async with opened() as (app, controller):
        await service(
            controller, "only", checked, health_check_period_s=0.05, health_check_timeout_s=0.05
        )
        assert (await readiness(app))[0] == 200
        checked.is_ill = True
        fell_ill_at = anyio.current_time()
        await becomes(app, 503)
        # Three checks in a row, each within its own time-out; the first may be due at once.
        assert 0.09 < anyio.current_time() - fell_ill_at < 3 * (0.05 + 0.05) + 0.02
        checked.repaired.set()
        await becomes(app, 200)
        (answer,) = await ask_all(app, "/only", "again")
    assert answer.json() == "again"


class Ending(shoal.App):
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


@pytest.mark.real_time
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


@pytest.mark.real_time
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


@pytest.mark.real_time
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


@pytest.mark.real_time
async def test_rc30_an_idle_server_ends_without_waiting_out_a_time():
    times = {"graceful_timeout_s": HANG_S * 2, "keep_alive_timeout_s": HANG_S * 2}
    async with live(Ending(Held()), **times) as server, await server.connect() as client:
        await client.send_all(request("/-/healthz"))
        await read_until(client, b"alive")
        server.stop.set()  # the client's idle connection is still there
    assert (server.drained.finished, server.drained.cut) == (0, 0)
