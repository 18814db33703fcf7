"""Calls over a server without sockets, and what its clients get."""

import pytest
from held_app import answers_counted, counted, served, statistics
from server_in_memory import asked, serving

import shoal
from shoal.http.admin.api import AdminApi
from shoal.http.app.admin_mount import AdminListener, AppAdmin
from shoal.testing import settle


def admin_of(app):
    return AdminListener(AdminApi(app.controller, token="x" * 32, allowed_modules=()), behind=app)


def itself(app):
    return app


def with_the_admin_api(app):
    return AppAdmin(app, token="x" * 32, allowed_modules=())


@pytest.mark.parametrize("serve_it", [itself, with_the_admin_api, admin_of])
async def test_many_calls_wait_in_one_batch(app, held, serve_it):
    async with app.lifespan(), serving(serve_it(app)) as server:
        clients = [server.connect() for _ in range(100)]
        for client in clients:
            client.ask("/held", 1)
        await settle()
        assert server.counts() == (100, 0)
        assert server.shared.running == 100
        held.go.set()
        await settle()
        assert [client.answers for client in clients] == [[(200, b"1")]] * 100
        assert server.counts() == (100, 100)
        assert sum(len(batch) for batch in held.batches) == 100
        assert counted(app) == (100, 0)
        assert await answers_counted(app) == {"ok": 100}


async def test_the_next_request_of_a_connection_is_answered_after_the_first(app, held):
    async with served(app) as server:
        client = server.connect()
        client.say(asked("/held", 1) + asked("/held", 2) + asked("/-/healthz"))
        await settle()
        assert statistics(app).running == 1
        held.go.set()
        await settle()
        assert [body for _, body in client.answers] == [b"1", b"2", b'{"status":"alive"}']
        assert server.counts() == (3, 3)


async def test_an_application_that_two_servers_serve_answers_both(app, held):
    async with served(app) as one, serving(app) as other:
        clients = [one.connect(), other.connect()]
        for client in clients:
            client.ask("/held", 1)
        await settle()
        clients[0].leave()
        held.go.set()
        await settle()
        assert [client.statuses for client in clients] == [[], [200]]
        assert one.counts() == other.counts() == (1, 1)


async def test_a_server_that_ends_leaves_the_calls_of_another(app, held):
    async with served(app) as one:
        async with serving(app) as other:
            client, left = one.connect(), other.connect()
            for each in (client, left):
                each.ask("/held", 1)
            await settle()
        assert left.releases == 1
        held.go.set()
        await settle()
        assert client.statuses == [200]
    assert left.statuses == []


async def test_the_time_limit_of_a_call_is_that_of_its_backend_now():
    limits = []
    app = shoal.App(answer_timeout_s=90)

    @app.endpoint("/it", name="it", request_timeout_s=5)
    async def it(items):
        requests = shoal.current_batch().requests
        limits.extend(round(request.deadline - request.arrived_at) for request in requests)
        return items

    async with app.lifespan(), serving(app) as server:
        client = server.connect()
        for timeout_s in (5, 100, 100, None, 8):
            await app.controller.update_backend_config("it", {"request_timeout_s": timeout_s})
            client.ask("/it", 1)
            await settle()
    assert limits == [5, 100, 100, 90, 8]
