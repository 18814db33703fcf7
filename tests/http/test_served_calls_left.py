"""Calls that an App makes for the server itself, whose client or server ends meanwhile."""

from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest
from held_app import answers_counted, counted, served, statistics
from live_server import live, until_quiet
from server_in_memory import asked
from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse, Response

import shoal
from shoal.asgi.http_options import HttpOptions
from shoal.server.server import serve
from shoal.testing import settle
from time_limits import HANG_S


async def settled(server, client, *, answers=0):
    """After the client has left: its call has ended, and its place is free."""
    await settle()
    assert server.shared.running == 0
    assert client.releases == 1
    assert len(client.answers) == answers


async def test_a_client_that_leaves_before_its_call_begins_frees_its_place(held_app, held, caplog):
    async with served(held_app) as server:
        client = server.connect()
        client.ask("/held", 1)
        client.leave()
        await settled(server, client)
        assert counted(held_app) == (0, 0)
        assert statistics(held_app).queued == statistics(held_app).running == 0
        held.go.set()
        assert (await server.ask("/held", 2)).statuses == [200]
        assert await answers_counted(held_app) == {"ok": 1}
    assert held.batches == [[2]]
    assert caplog.records == []


async def test_a_client_that_leaves_before_middleware_has_passed_its_request_on_has_no_call(held):
    passes_on = anyio.Event()

    def slow(inner):
        async def called(scope, receive, send):
            await passes_on.wait()
            await inner(scope, receive, send)

        return called

    app = shoal.App(middleware=[slow])
    app.endpoint("/held", name="held")(held)
    async with served(app) as server:
        client = await server.ask("/held", 1)
        client.leave()
        passes_on.set()
        await settled(server, client)
        assert statistics(app).cancelled == 1
        assert await answers_counted(app) == {"left": 1}
    assert held.batches == []


async def test_a_client_that_leaves_while_its_call_is_queued_frees_its_place(held, app):
    app.endpoint("/held", name="held", max_batch_size=1, max_concurrent_batches=1)(held)
    async with served(app) as server:
        first, client, last = [await server.ask("/held", number) for number in range(3)]
        assert statistics(app).queued == 2
        client.leave()
        await settle()
        assert client.releases == 1
        assert server.shared.running == 2
        await held.let_go()
        assert [each.statuses for each in (first, client, last)] == [[200], [], [200]]
        assert counted(app) == (3, 0)
        assert statistics(app).cancelled == 1
        assert await answers_counted(app) == {"ok": 2, "left": 1}
    assert held.batches == [[0], [2]]


@pytest.mark.parametrize(
    ("path", "item"),
    [
        ("/held", "a"),
        ("/v1/completions", {"model": "held", "prompt": "a"}),
        ("/v1/embeddings", {"model": "held", "input": "a"}),
    ],
)
async def test_a_client_that_leaves_while_its_call_runs_cancels_it(path, item):
    app, cancelled = shoal.App(protocols=["openai"]), []

    @app.endpoint("/held", name="held")
    async def held(texts: list[str]) -> list[str]:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(len(texts))

    async with served(app) as server:
        client = await server.ask(path, item)
        assert server.shared.running == 1
        client.leave()
        await settled(server, client)
        assert cancelled == [1]
        assert counted(app) == (1, 0)
        assert statistics(app).cancelled == 1
        assert await answers_counted(app) == {"left": 1}


@pytest.mark.parametrize("fails", [False, True])
async def test_a_client_that_leaves_once_its_call_has_ended_frees_its_place(fails, caplog, app):
    class LeaveAtTheEnd(shoal.statistics.BatchObserver):
        def batch_ended(self, record, requests):
            client.leave()

    app.observers.add(LeaveAtTheEnd())

    @app.endpoint("/left", name="left", max_batch_size=1)
    async def left(items: list[int]) -> list[int]:
        if fails:
            raise ValueError("not this time")
        return items

    async with served(app) as server:
        client = server.connect()
        client.ask("/left", 1)
        await settled(server, client)
        assert server.counts() == (1, 1)
        # Of a call that had failed nothing is left but that the client has left.
        assert counted(app, "left") == (1, 0)
    assert [record.name for record in caplog.records] == ["shoal.batches"] * fails


async def test_a_client_that_leaves_while_its_answer_is_on_its_way_frees_its_place(held_app, held):
    held.go.set()
    async with served(held_app) as server:
        client = server.connect()
        client.wire.takes = False
        client.ask("/held", 1)
        await settle()
        assert client.releases == 0
        client.leave()
        await settled(server, client)
        assert statistics(held_app).finished == 1
        assert await answers_counted(held_app) == {"ok": 1}


async def test_a_client_that_reads_late_gets_its_answer_and_the_next(held_app, held):
    held.go.set()
    async with served(held_app) as server:
        client = server.connect()
        client.wire.takes = False
        client.say(asked("/held", 1) + asked("/held", 2))
        await settle()
        assert server.counts()[0] == 1
        client.read_on()
        await settle()
        assert client.answers == [(200, b"1"), (200, b"2")]


async def test_a_client_that_leaves_while_its_background_task_runs_frees_its_place_after_it(app):
    go = anyio.Event()

    @app.endpoint("/later", name="later", max_batch_size=1)
    async def later(items: list[int]) -> list[Response]:
        return [PlainTextResponse("soon", background=BackgroundTask(go.wait)) for _ in items]

    async with served(app) as server:
        client = await server.ask("/later", 1)
        assert client.answers == [(200, b"soon")]
        assert (await server.ask("/-/healthz")).statuses == [200]
        client.leave()
        await settle()
        assert client.releases == 0
        go.set()
        await settled(server, client, answers=1)


async def test_a_client_that_leaves_while_its_call_waits_for_a_backend_frees_its_place(held, app):
    app.endpoint("/held", name="held")(held)
    async with served(app) as server:
        await app.controller.create_endpoint("later", backend=None, route="/later")
        client = await server.ask("/later", 1)
        assert server.counts() == (1, 0)
        client.leave()
        await settled(server, client)


async def test_a_client_that_leaves_before_its_body_has_come_frees_its_place(held_app):
    async with served(held_app) as server:
        client = server.connect()
        client.say(asked("/held", 1)[:-1])
        await settle()
        client.leave()
        await settled(server, client)


async def test_clients_that_all_leave_leave_nothing_behind(held_app, held):
    async with served(held_app) as server:
        clients = [server.connect() for _ in range(50)]
        for number, client in enumerate(clients):
            client.ask("/held", number)
            if number % 3 == 0:
                client.leave()
            elif number % 3 == 1:
                await anyio.lowlevel.checkpoint()
                client.leave()
        await settle()
        held.go.set()
        for client in clients:
            client.leave()
        await settle()
        assert [client.releases for client in clients] == [1] * 50
        begun, ended = server.counts()
        assert begun == ended
        assert statistics(held_app).queued == statistics(held_app).running == 0


async def test_a_call_is_answered_during_the_drain(held_app, held):
    async with served(held_app) as server:
        client = await server.ask("/held", 1)
        server.shared.drain()
        assert server.shared.running == 1
        await held.let_go()
        assert client.statuses == [200]
        assert b"connection: close" in client.wire.sent
        assert client.releases == 1


@pytest.mark.parametrize("steps", range(8))
async def test_a_call_that_is_cut_off_as_it_ends_is_answered_once(held_app, held, steps):
    async with served(held_app) as server:
        client = await server.ask("/held", 1)
        held.go.set()
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        server.shared.end_early()
        await settle()
        assert client.statuses in ([200], [503])
        assert server.counts() == (1, 1)


async def test_a_connection_that_is_aborted_ends_its_call(held_app, held):
    async with served(held_app) as server:
        client = await server.ask("/held", 1)
        server.abort()
        await settled(server, client)
        assert held.cancelled == 1


@pytest.mark.real_time
@pytest.mark.parametrize("is_queued", [False, True])
async def test_a_server_that_is_cancelled_cancels_its_calls_and_no_others(held, caplog, is_queued):
    app = shoal.App()
    app.endpoint("/held", name="held", max_batch_size=1, max_concurrent_batches=1)(held)
    with anyio.fail_after(HANG_S):
        async with served(app) as other:
            client = other.connect()
            if is_queued:
                client.ask("/held", 1)
            async with anyio.create_task_group() as tasks, connected(app, tasks) as stream:
                await stream.send(asked("/held", 2))
                await until_quiet()
                assert (statistics(app).queued, statistics(app).running) == (int(is_queued), 1)
                tasks.cancel_scope.cancel()
            await settle()
            assert statistics(app).cancelled == 1
            assert held.cancelled == (not is_queued)
            if not is_queued:
                client.ask("/held", 1)
            await held.let_go()
            assert client.statuses == [200]
    assert caplog.records == []


@asynccontextmanager
async def connected(app, tasks):
    """A client of a server that runs in these tasks, and does not run the lifespan."""
    urls, is_up = [], anyio.Event()

    def started(url):
        urls.append(url)
        is_up.set()

    options = HttpOptions(port=0, allowed_hosts=["*"])
    run = partial(serve, shutdown=anyio.sleep_forever, on_listening=started, lifespan=False)
    tasks.start_soon(run, app, options)
    await is_up.wait()
    async with await anyio.connect_tcp("127.0.0.1", int(urls[0].rpartition(":")[2])) as stream:
        yield stream


@pytest.mark.real_time
async def test_clients_that_ask_and_leave_at_once_do_not_use_up_the_places(held_app, held):
    held.go.set()
    async with live(held_app, max_connections=2) as server:
        for _ in range(5):
            server.connect_now(asked("/held", 1)).close()
        answer = await server.talk(asked("/held", 7, headers=["Connection: close"]))
        assert answer.endswith(b"\r\n\r\n7")
