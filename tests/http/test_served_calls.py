"""Calls that an App makes for the server itself: it returns meanwhile, and answers when resumed."""

from __future__ import annotations

import json
import logging

import anyio
import anyio.lowlevel
import pytest
from held_app import answers_counted, counted, served, statistics
from live_server import request
from server_in_memory import asked, serving
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount

import shoal
from shoal.http.admin.api import AdminApi
from shoal.http.admin.mount import AdminListener
from shoal.http.app.admin_mount import AppAdmin
from shoal.testing import settle

pytestmark = pytest.mark.anyio


# Where it is not possible, since other code takes the application's return for the end.


class Watching:
    """Passes on what it gets as it is, and notes what the client had when that returned."""

    clients = ()

    def __init__(self, app):
        self.app = app
        self.had = []

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)
        self.had.append([client.statuses for client in self.clients])


class Instrumented(Watching):
    """Has all attributes of what it wraps, as the wrappers of some instrumentations do."""

    @property
    def __class__(self):
        return type(self.app)

    def __getattr__(self, name):
        return getattr(self.app, name)


def admin_of(app):
    return AdminListener(AdminApi(app.controller, token="x" * 32, allowed_modules=()), behind=app)


def around(app):
    watching = Watching(app)
    return watching, watching


def around_starlette(app):
    watching = Watching(Starlette(routes=[Mount("/ml", app=app)]))
    return watching, watching


def in_starlette(app):
    watching = Watching(app)
    return Starlette(routes=[Mount("/ml", app=watching)]), watching


def as_starlettes_middleware(app):
    made = []

    def make(inner):
        made.append(Watching(inner))
        return made[0]

    starlette = Starlette(routes=[Mount("/ml", app=app)], middleware=[Middleware(make)])
    starlette.middleware_stack = starlette.build_middleware_stack()
    return starlette, made[0]


def in_an_app(app):
    watching = Watching(app)
    outer = shoal.App()
    outer.mount("/ml", watching)
    return outer, watching


def behind_the_admin_api(app):
    watching = Watching(app)
    return AppAdmin(app, token="x" * 32, allowed_modules=(), behind=watching), watching


def around_the_admin_api(app):
    watching = Watching(AppAdmin(app, token="x" * 32, allowed_modules=()))
    return watching, watching


def around_the_admin_api_with_its_attributes(app):
    watching = Instrumented(AppAdmin(app, token="x" * 32, allowed_modules=()))
    return watching, watching


def around_the_admin_listener_with_its_attributes(app):
    watching = Instrumented(admin_of(app))
    return watching, watching


WRAPPED = [
    around,
    around_starlette,
    in_starlette,
    as_starlettes_middleware,
    in_an_app,
    behind_the_admin_api,
    around_the_admin_api,
    around_the_admin_api_with_its_attributes,
    around_the_admin_listener_with_its_attributes,
]


@pytest.mark.parametrize("wrap", WRAPPED)
async def test_what_wraps_the_application_does_not_see_a_call_end_before_its_answer(
    app, held, wrap
):
    path = "/ml/held" if "starlette" in wrap.__name__ or wrap is in_an_app else "/held"
    async with app.lifespan():
        outermost, watching = wrap(app)
        async with serving(outermost) as server:
            watching.clients = [server.connect()]
            for _ in range(2):
                watching.clients[0].ask(path, 1)
                await settle()
                assert len(held.batches) > len(watching.had)
                held.go.set()
                await settle()
                held.go = anyio.Event()
    assert watching.had == [[[200]], [[200, 200]]]


async def test_middleware_does_not_see_a_call_end_before_its_answer(held):
    made = []

    def make(inner):
        made.append(Watching(inner))
        return made[0]

    app = shoal.App(middleware=[make])
    app.endpoint("/held", name="held")(held)
    async with served(app) as server:
        made[0].clients = [server.connect()]
        made[0].clients[0].ask("/held", 1)
        await settle()
        assert made[0].had == []
        held.go.set()
        await settle()
        assert made[0].had == [[[200]]]


async def test_a_subclass_that_wraps_calls_does_not_see_one_end_before_its_answer(held):
    had = []

    class Own(shoal.App):
        async def __call__(self, scope, receive, send):
            await super().__call__(scope, receive, send)
            had.append([client.statuses for client in clients])

    app = Own()
    app.endpoint("/held", name="held")(held)
    clients = []
    async with served(app) as server:
        clients.append(server.connect())
        clients[0].ask("/held", 1)
        await settle()
        assert had == []
        held.go.set()
        await settle()
        assert had == [[[200]]]


async def test_the_access_log_has_the_status_of_the_answer(app, held, caplog):
    caplog.set_level(logging.INFO, "shoal.access")
    async with served(app, access_log=True) as server:
        server.connect().ask("/held", 1)
        await settle()
        assert caplog.records == []
        held.go.set()
        await settle()
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "shoal.access"]
    assert [(line["status"], line["bytes"]) for line in lines] == [(200, 1)]


# Where it is.


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


@pytest.mark.parametrize(
    ("version", "headers", "closes"),
    [
        ("1.1", (), False),
        ("1.1", ("Connection: close",), True),
        ("1.0", (), True),
    ],
)
async def test_an_answer_says_whether_the_connection_ends(app, held, version, headers, closes):
    held.go.set()
    async with served(app) as server:
        client = server.connect()
        client.ask("/held", 1, version=version, headers=headers)
        await settle()
        assert client.statuses == [200]
        assert (b"\r\nconnection: close\r\n" in client.wire.sent) == closes
        assert client.wire.is_open != closes


async def test_head_gets_the_length_of_the_answer_alone(held):
    held.go.set()
    app = shoal.App()

    @app.endpoint("/held", methods=("GET",))
    async def double(items: list[bytes]) -> list[str]:
        return ["answer"] * len(items)

    async with served(app) as server:
        client = server.connect()
        client.ask("/held", method="HEAD")
        await settle()
        assert client.wire.sent.startswith(b"HTTP/1.1 200 OK\r\n")
        assert client.wire.sent.endswith(b"\r\n\r\n")
        assert b"content-length: 8\r\n" in client.wire.sent
        assert client.wire.is_open


async def test_a_body_that_is_too_large_is_refused_though_it_came_whole():
    app = shoal.App(max_body_bytes=9)

    @app.endpoint("/size")
    async def size(items: list[bytes]) -> list[int]:
        return [len(item) for item in items]

    async with served(app) as server:
        for length, status in ((9, 200), (10, 413)):
            chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (length, bytes(length))
            head = request("/size", method="POST", headers=["Transfer-Encoding: chunked"])
            client = server.connect()
            client.say(head + chunked)
            await settle()
            assert client.statuses == [status]


# Calls that have a task.


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


async def test_a_call_that_is_split_is_answered():
    parts = []
    app = shoal.App()

    @app.endpoint(
        "/same",
        name="same",
        max_batch_size=2,
        batch_size_fn=len,
        split=lambda item, _room: [item[:2], item[2:]],
        join=lambda parts: parts[0] + parts[1],
    )
    async def same(items: list[list[int]]) -> list[list[int]]:
        parts.extend(items)
        return items

    async with served(app) as server:
        client = server.connect()
        for item in ([1, 2, 3], [4]):
            client.ask("/same", item)
            await settle()
        assert client.answers == [(200, b"[1,2,3]"), (200, b"[4]")]
        assert parts == [[1, 2], [3], [4]]
        assert counted(app, "same") == (2, 0)


async def test_a_call_with_a_shadow_is_answered_and_compared(app, held):
    compared = []

    def compare(result, of_copy):
        compared.append((result, of_copy))
        return True

    async def copy(items: list[int]) -> list[int]:
        return [-item for item in items]

    app.backend("copy", copy)
    app.shadow("held", "copy", 1.0, compare=compare)
    held.go.set()
    async with served(app) as server:
        client = server.connect()
        client.ask("/held", 3)
        await settle()
        assert client.answers == [(200, b"3")]
        assert compared == [(3, -3)]
        assert server.counts() == (1, 1)


async def test_a_stream_is_answered():
    app = shoal.App()

    @app.endpoint("/steps", name="steps")
    async def steps(items: list[int]):
        for number in range(3):
            yield [number] * len(items)

    async with served(app) as server:
        client = server.connect()
        client.ask("/steps", 1, headers=["Accept: application/x-ndjson"])
        await settle()
        assert client.wire.sent.count(b'{"item":') == 3
        assert client.wire.sent.endswith(b"0\r\n\r\n")
        assert server.counts() == (1, 1)
