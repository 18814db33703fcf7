"""Calls over a server without sockets, what its clients get, and the batches that they share."""

import gc
import logging
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from held_app import answers_counted, counted, metrics_of, served, statistics
from server_in_memory import Wire, asked, serving
from starlette.responses import PlainTextResponse, Response

import shoal
from closed_loops import Sizes, think
from handlers import echo
from shoal.core.request import DispatchReason
from shoal.http.admin.api import AdminApi
from shoal.http.app.admin_mount import AdminMount, AppAdmin
from shoal.testing import settle


def admin_of(app):
    return AdminMount(AdminApi(app.controller, token="x" * 32, allowed_modules=()), behind=app)


def itself(app):
    return app


def with_the_admin_api(app):
    return AppAdmin(app, token="x" * 32, allowed_modules=())


@pytest.mark.parametrize("serve_it", [itself, with_the_admin_api, admin_of])
async def test_many_calls_wait_in_one_batch(held_app, held, serve_it):
    async with held_app.lifespan(), serving(serve_it(held_app)) as server:
        clients = await server.ask_together("/held", *[1] * 100)
        assert server.counts() == (100, 0)
        assert server.shared.running == 100
        await held.let_go()
        assert [client.answers for client in clients] == [[(200, b"1")]] * 100
        assert server.counts() == (100, 100)
        assert sum(len(batch) for batch in held.batches) == 100
        assert counted(held_app) == (100, 0)
        assert await answers_counted(held_app) == {"ok": 100}


async def test_the_next_request_of_a_connection_is_answered_after_the_first(held_app, held):
    async with served(held_app) as server:
        client = server.connect()
        client.say(asked("/held", 1) + asked("/held", 2) + asked("/-/healthz"))
        await settle()
        assert statistics(held_app).running == 1
        await held.let_go()
        assert [body for _, body in client.answers] == [b"1", b"2", b'{"status":"alive"}']
        assert server.counts() == (3, 3)


async def test_the_answer_to_head_has_the_length_of_the_body_that_it_leaves_out(held_app):
    async with served(held_app) as server:
        client = server.connect()
        client.say(asked("/-/healthz", method="HEAD") + asked("/-/healthz"))
        await settle()
        first, _, rest = client.wire.sent.partition(b"\r\n\r\n")
        second, _, body = rest.partition(b"\r\n\r\n")
        assert body == b'{"status":"alive"}'
        assert b"content-length: %d" % len(body) in first.split(b"\r\n")
        assert second.startswith(b"HTTP/1.1 200 OK")


async def test_an_application_that_two_servers_serve_answers_both(held_app, held):
    async with served(held_app) as one, serving(held_app) as other:
        clients = [one.connect(), other.connect()]
        for client in clients:
            client.ask("/held", 1)
        await settle()
        clients[0].leave()
        await held.let_go()
        assert [client.statuses for client in clients] == [[], [200]]
        assert one.counts() == other.counts() == (1, 1)


async def test_a_server_that_ends_leaves_the_calls_of_another(held_app, held):
    async with served(held_app) as one:
        async with serving(held_app) as other:
            client, left = one.connect(), other.connect()
            for each in (client, left):
                each.ask("/held", 1)
            await settle()
        assert left.releases == 1
        await held.let_go()
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


# Requests to an App that its server calls directly: however a client writes and sends them


FLOOD = 500
OF_ADMINS = [
    *("/-/api/status", "/-/api%2fstatus", "/%2d/api/status", "/-/%61pi/status", "/-%2Fapi/status"),
    *("/-/api/../api/status", "http://shoal.test/-/api/status"),
]
NOWHERE = ["/-/api", "/-/API/status", "/-/./api/status", "/-//api/status"]
OF_ENDPOINTS = ["//-/api/status", "/./-/api/status", "/a/../-/api/status"]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_the_admin_api_wants_its_token_however_its_path_is_written(method, app):
    @app.endpoint("/{any:path}", name="any", methods=("GET", "POST"))
    async def take(items: list[bytes]) -> list[str]:
        return ["taken"] * len(items)

    async with app.lifespan(), serving(with_the_admin_api(app)) as server:
        for status, targets in ((401, OF_ADMINS), (404, NOWHERE), (200, OF_ENDPOINTS)):
            for target in targets:
                client = await server.ask(target, method=method)
                assert (target, client.statuses) == (target, [status])


@pytest.mark.parametrize(
    ("request_of_flood", "status"),
    [
        (asked("/same", 1), 200),
        (asked("/same", "no number"), 422),
        (asked("/nowhere"), 404),
        (asked("/same", method="PUT"), 405),
        (asked("/same", method="OPTIONS"), 204),
        (asked("/cached", 1), 200),
    ],
    ids=["batched", "refused", "not found", "not allowed", "options", "cached"],
)
async def test_a_client_that_pipelines_is_answered_and_delays_nobody(request_of_flood, status, app):
    app.endpoint("/same", name="same")(echo)
    app.endpoint("/cached", name="cached", cache=shoal.Cache(max_size=9, ttl_s=60))(echo)
    async with served(app) as server:
        first, early, flood, late = (server.connect() for _ in range(4))
        first.ask("/cached", 1)
        await settle()
        answers_before = []

        def note(send, data):
            answers_before.append(flood.wire.sent.count(b"HTTP/1.1 "))
            return send(data)

        for other in (early, late):
            other.wire.send = partial(note, other.wire.send)
        early.ask("/cached", 1)
        flood.say(request_of_flood * FLOOD)
        late.ask("/cached", 1)
        while server.counts() != (FLOOD + 3, FLOOD + 3):
            await settle()
        assert [early.answers, late.answers] == [[(200, b"1")]] * 2
        assert max(answers_before) <= 1
        assert flood.wire.sent.count(b"HTTP/1.1 %d " % status) == FLOOD


# What is kept of calls that an App makes for the server itself: nothing


async def test_a_backend_that_is_deleted_is_not_kept_by_its_last_call(held, app):
    held.go.set()
    app.endpoint("/model", name="model")(echo)
    app.backend("next", held)
    async with served(app) as server:
        client = await server.ask("/model", 1)
        assert client.statuses == [200]
        batcher = weakref.ref(app.controller.backends["model"].method_batchers["__call__"].batcher)
        await app.controller.set_traffic("model", {"next": 1})
        await app.controller.delete_backend("model")
        await settle()
        gc.collect()
        assert batcher() is None


class Item:
    """An item, or a result, that a test can see being dropped."""


async def test_neither_an_item_nor_a_result_is_kept_after_the_answer(app):
    kept = []

    def reference(value):
        kept.append(weakref.ref(value))
        return value

    class Result(Item):
        def tolist(self):
            return 1

    @app.endpoint("/items", name="items")
    async def items(given: list[int]) -> list[object]:
        return [reference(Result()) for _ in given]

    gc.disable()
    try:
        async with served(app) as server:
            client = server.connect()
            for _ in range(3):
                client.ask("/items", 1)
                await settle()
            assert client.statuses == [200] * 3
            # The batcher's slot has the last batch until the next.
            assert [one() for one in kept][:-1] == [None, None]
    finally:
        gc.enable()


async def fail(items: list[int]) -> list[int]:
    raise ValueError("not this time")


async def unwritable(items: list[int]) -> list[object]:
    return [object() for _ in items]


async def response(items: list[int]) -> list[Response]:
    return [PlainTextResponse("text") for _ in items]


# The handler, the item, when the client leaves, and the status of the answer.
FLOWS = {
    "answer": (echo, 1, None, 200),
    "failure": (fail, 1, None, 500),
    "unwritable": (unwritable, 1, None, 500),
    "response": (response, 1, None, 200),
    "no JSON": (echo, ..., None, 400),
    "late": (None, 1, None, 504),
    "left at once": (None, 1, 0, None),
    "left": (None, 1, 1, None),
    "cached": (echo, 1, None, 200),
    "cached response": (response, 1, None, 200),
    "cached unwritable": (unwritable, 1, None, 500),
    "shared": (echo, 1, None, 200),
    "shared failure": (fail, 1, None, 500),
    "shared left at once": (None, 1, 0, None),
    "shared left": (None, 1, 1, None),
}
SHARING = {"cached": {"cache": shoal.Cache(max_size=9, ttl_s=600)}, "shared": {"dedupe": True}}
OF_REQUESTS = {"Call", "EndpointCall", "Exchange", "HttpMetadata", "Request"}


@pytest.mark.parametrize("flow", FLOWS)
async def test_a_request_leaves_nothing_to_the_garbage_collector(held, flow, monkeypatch, app):
    # pytest keeps the errors that are logged.
    for name in ("shoal.server", "shoal.http"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)
    handler, item, leaves_after_s, status = FLOWS[flow]
    sharing = SHARING.get(flow.partition(" ")[0], {})
    app.endpoint("/it", name="it", request_timeout_s=5, **sharing)(handler or held)
    async with served(app, keep_alive_timeout_s=600) as server:
        kept = server.connect()

        async def once():
            client = kept if leaves_after_s is None else server.connect()
            client.ask("/it", item, method="POST")
            if leaves_after_s is None:
                await anyio.sleep(6)
            else:
                await anyio.sleep(leaves_after_s)
                client.leave()
            await settle()
            assert server.shared.running == 0

        await once()
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                await once()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            found = [type(one).__qualname__ for one in gc.garbage]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert kept.statuses == ([] if status is None else [status] * 6)
    if leaves_after_s is not None:  # a connection that has ended does leave something
        found = [name for name in found if name in OF_REQUESTS]
    assert found == []


# Clients in closed loops stay in one batch over HTTP, too; see `batching/test_forming_batches.py`


MOST = 64


class Asking(Wire):
    """The wire of a client, which asks, and is told when its answer is there."""

    def __init__(self, server: Any, path: str) -> None:
        super().__init__()
        self._client = server.connect(self)
        self._path = path
        self._end = b""
        self._came: Callable[[], object] = lambda: None

    def ask(self, number: int, came: Callable[[], object]) -> None:
        self.sent = b""
        self._end = b"\r\n0\r\n\r\n" if self._path == "/steps" else b"\r\n\r\n%d" % number
        self._came = came
        self._client.ask(self._path, number)

    def send(self, data: bytes) -> bool:
        is_taken = super().send(data)
        if self.sent.endswith(self._end):
            assert self.sent.startswith(b"HTTP/1.1 200 ")
            self._came()
        return is_taken


async def in_loops(server: Any, path: str, clients: int, rounds: int) -> None:
    """Has clients ask again and again, each a moment after its last answer."""

    async def loop(number: int) -> None:
        wire = Asking(server, path)
        for nth in range(rounds):
            await think(number, nth, clients)
            came = anyio.Event()
            wire.ask(number, came.set)
            await came.wait()

    async with anyio.create_task_group() as tasks:
        for number in range(clients):
            tasks.start_soon(loop, number)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/results", "/steps"])
@pytest.mark.parametrize(
    ("clients", "rounds"), [pytest.param(16, 10, marks=pytest.mark.one_loop), (MOST, 10)]
)
async def test_clients_in_closed_loops_are_gathered_again(path, clients, rounds):
    means = {}
    for regather in (True, False):
        app, model = shoal.App(), Sizes()
        code = model.results if path == "/results" else model.steps
        app.endpoint(path, max_batch_size=MOST, placement="task", regather=regather)(code)
        async with served(app) as server:
            await in_loops(server, path, clients, rounds)
            metrics = await metrics_of(app)
        count = model.reasons.count(DispatchReason.REGATHER)
        labels = f'backend="{path[1:]}",method="__call__",reason="regather"'
        assert f"shoal_batches_total{{{labels}}} {float(count)}" in metrics
        means[regather] = model.mean() / min(clients, MOST)
    assert means[True] >= 0.85
    assert means[False] < 0.6
