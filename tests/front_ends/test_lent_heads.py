"""Requests that the server begins itself, once the application has lent what begins them."""

import gc
import json
import logging
import time
import weakref
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import h2.events
import numpy as np
import pytest
from held_app import answers_counted, kind_of, metrics_of, statistics
from held_app import counted as requests_and_errors
from live_server import http2, live, read_until, request
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel, field_serializer, field_validator
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import shoal
from shoal.front_ends.remote_call import RemoteCalls
from shoal.http.json.item_calls import ItemCall
from shoal.statistics import BatchObserver
from worker_processes import kill, until, workers_of

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


class Answer:
    def __init__(self, head, body):
        self.status = int(head.split()[1])
        lines = head.decode("latin-1").lower().split("\r\n")[1:]
        self.headers = dict(line.split(": ", 1) for line in lines)
        self.body = body

    def __iter__(self):
        return iter((self.status, json.loads(self.body)))

    def without_id(self):
        headers = {**self.headers}
        id_ = headers.pop("x-request-id").encode()
        del headers["content-length"]  # ids grow
        headers.pop("date", None)
        return self.status, headers, self.body.replace(id_, b"")


class Asker:
    """A connection to a server with one worker, and how often the application was called."""

    def __init__(self, client, called):
        self.client = client
        self._called = called

    async def ask(self, body, path="/x", *headers):
        await self.send(body, path, *headers)
        return await self.read()

    async def send(self, body, path="/x", *headers):
        await self.client.send_all(request(path, method="POST", body=body, headers=headers))

    async def read(self):
        head, _, body = (await read_until(self.client, b"\r\n\r\n")).partition(b"\r\n\r\n")
        answer = Answer(head, body)
        while len(answer.body) < int(answer.headers["content-length"]):
            answer.body += await self.client.receive_some()
        return answer

    async def ask_without(self, body, path="/x", *headers):
        """Asks until the application was not called, and returns that answer."""
        while True:
            before = len(self._called)
            answer = await self.ask(body, path, *headers)
            if len(self._called) == before:
                return answer
            await anyio.sleep(0.005)  # the worker builds the decoder in a thread

    async def calls_app(self, body, path="/x", *headers):
        """Asks some more times; returns whether the application is called each time."""
        before = len(self._called)
        for _ in range(3):
            await self.ask(body, path, *headers)
        return len(self._called) == before + 3


@pytest.fixture
def called(monkeypatch):
    """The paths of the requests for which applications were called."""
    call, paths = shoal.App.__call__, []

    async def counting(self, scope, receive, send):
        if scope["type"] == "http":
            paths.append(scope["path"])
        await call(self, scope, receive, send)

    monkeypatch.setattr(shoal.App, "__call__", counting)
    return paths


@pytest.fixture
def asking(called):
    @asynccontextmanager
    async def open_(app, outer=None, **config):
        async with (
            live(outer or app, workers=1, hang_s=60, **config) as server,
            await server.connect() as client,
        ):
            asker = Asker(client, called)
            asker.server = server
            yield asker

    return open_


@pytest.fixture
def front_ends(monkeypatch):
    """The requests of each front end that was started."""
    begin, made = RemoteCalls.__init__, []

    def noting(self, *args):
        made.append(self)
        begin(self, *args)

    monkeypatch.setattr(RemoteCalls, "__init__", noting)
    return made


def app_of(handler, name="x", app=None, **options):
    app = app or shoal.App()
    app.endpoint("/x", name=name, methods=("POST",), **options)(handler)
    return app


async def same(items: list[int]) -> list[int]:
    return items


async def test_each_caller_gets_its_own_result_and_is_counted(asking):
    app = app_of(same)
    async with asking(app) as asker:
        await asker.ask_without(b"1")
        before = sum(statistics(app, "x").batches.values())
        counts = requests_and_errors(app, "x")[0], (await answers_counted(app, "x"))["ok"]
        for n in range(20):
            answer = await asker.ask(b"%d" % n)
            assert tuple(answer) == (200, n)
            assert answer.headers["content-type"] == "application/json"
        assert sum(statistics(app, "x").batches.values()) == before + 20
        after = requests_and_errors(app, "x")[0], (await answers_counted(app, "x"))["ok"]
        assert after == (counts[0] + 20, counts[1] + 20)


async def test_a_handler_sees_the_request_as_always(asking):
    seen = []

    async def handler(items: list[int]) -> list[int]:
        [one] = shoal.current_batch().requests
        seen.append((dict(one.metadata), one.deadline - one.arrived_at))
        return items

    async with asking(app_of(handler, request_timeout_s=7)) as asker:
        first = await asker.ask(b"1", "/x?a=b", "X-Own: c")
        last = await asker.ask_without(b"1", "/x?a=b", "X-Own: c")
    (early, early_s), (late, late_s) = seen[0], seen[-1]
    assert early.pop("request_id") == first.headers["x-request-id"]
    assert late.pop("request_id") == last.headers["x-request-id"]
    assert early.pop("headers").items() == late.pop("headers").items()
    assert early == late
    assert early_s == pytest.approx(7) == late_s


class Odd:
    def __init__(self, cls):
        self._cls = cls

    def __getattr__(self, name):
        raise self._cls(name)


RESULTS = {
    "bytes": (lambda: b"abc", 200),
    "a response": (lambda: Response(b"abc", 418), 418),
    "a set in a list": (lambda: [{1}], 200),
    "no JSON": (lambda: [object()], 500),
    "what raises": (lambda: [Odd(ValueError)], 500),
    "what exits": (lambda: [Odd(SystemExit)], 500),
}


@pytest.mark.parametrize("kind", RESULTS)
async def test_results_of_all_kinds_are_answered_as_always(asking, kind):
    make, status = RESULTS[kind]

    async def handler(items: list[int]) -> list[Any]:
        return [make() if item else item for item in items]

    async with asking(app_of(handler)) as asker:
        first = await asker.ask(b"1")
        await asker.ask_without(b"0")
        assert (await asker.ask(b"1")).without_id() == first.without_id()
        assert first.status == status
        assert tuple(await asker.ask(b"0")) == (200, 0)


async def test_errors_are_the_same_problems_and_are_counted(asking):
    async def handler(items: list[int]) -> list[Any]:
        return [[1, ValueError("no"), HTTPException(404, "gone")][item] for item in items]

    app = app_of(handler)
    async with asking(app) as asker:
        early = {item: await asker.ask(b"%d" % item) for item in (1, 2)}
        await asker.ask_without(b"0")
        for item, status in ((1, 500), (2, 404)):
            errors = requests_and_errors(app, "x")[1]
            answer = await asker.ask(b"%d" % item)
            assert answer.status == status
            assert answer.without_id() == early[item].without_id()
            assert answer.headers["x-request-id"] in answer.body.decode()
            assert requests_and_errors(app, "x")[1] == errors + (status == 500)
        assert tuple(await asker.ask_without(b"0")) == (200, 1)


async def test_a_deadline_and_a_full_queue(asking, held):
    app = app_of(held, max_batch_size=1, max_queued_requests=1, request_timeout_s=0.5)
    async with asking(app) as asker:
        held.go.set()
        await asker.ask_without(b"1")
        held.go = anyio.Event()
        held.batches.clear()
        others = [await asker.server.connect() for _ in range(3)]
        sent = request("/x", method="POST", body=b"2")
        for n, other in enumerate(others[:2]):
            await other.send_all(sent)
            await until(lambda n=n: len(held.batches) + statistics(app, "x").queued == n + 1)
        refused = await asker.ask(b"2")
        assert (refused.status, kind_of((0, refused.body))) == (503, "overloaded")
        assert "retry-after" in refused.headers
        for other in others[:2]:
            late = await read_until(other, b"\r\n\r\n")
            assert late.startswith(b"HTTP/1.1 504 ")
        assert statistics(app, "x").rejected == 1
        counted = await answers_counted(app, "x")
        assert counted == {"ok": counted["ok"], "unavailable": 1, "timeout": 2}
        for other in others:
            await other.aclose()


async def test_a_client_that_leaves_ends_its_call(asking, held):
    app = app_of(held, max_batch_size=1)
    async with asking(app) as asker:
        held.go.set()
        await asker.ask_without(b"1")
        held.go = anyio.Event()
        held.batches.clear()
        async with await asker.server.connect() as running:
            await running.send_all(request("/x", method="POST", body=b"2"))
            await until(lambda: held.batches == [[2]])
            async with await asker.server.connect() as waiting:
                await waiting.send_all(request("/x", method="POST", body=b"3"))
                await until(lambda: statistics(app, "x").queued == 1)
            await until(lambda: not statistics(app, "x").queued)
        await until(lambda: held.cancelled == 1)
        held.go.set()
        assert tuple(await asker.ask(b"4")) == (200, 4)
        assert (await answers_counted(app, "x"))["left"] == 2
        assert [3] not in held.batches


async def test_a_killed_worker_ends_its_calls(asking, front_ends, held):
    app = app_of(held, max_batch_size=1)
    async with asking(app) as asker:
        held.go.set()
        await asker.ask_without(b"1")
        held.go = anyio.Event()
        await asker.send(b"2")
        await until(lambda: held.batches[-1] == [2])
        kill(workers_of()[0])
        await until(lambda: held.cancelled == 1)
        held.go.set()
        await until(lambda: not statistics(app, "x").running)
        await until(lambda: not front_ends[0].running)
        assert front_ends[0].shared.running == 0


async def test_what_runs_at_the_end_is_finished(asking, held):
    async with asking(app_of(held)) as asker:
        held.go.set()
        await asker.ask_without(b"1")
        held.go = anyio.Event()
        await asker.send(b"2")
        await until(lambda: held.batches[-1] == [2])
        asker.server.stop.set()
        await anyio.sleep(0.1)
        held.go.set()
        assert tuple(await asker.read()) == (200, 2)


async def test_what_does_not_end_is_told_so(asking, held):
    async with asking(app_of(held), graceful_timeout_s=0.2) as asker:
        held.go.set()
        await asker.ask_without(b"1")
        held.go = anyio.Event()
        await asker.send(b"2")
        await until(lambda: held.batches[-1] == [2])
        asker.server.stop.set()
        assert (await asker.read()).status == 503
        held.go.set()


async def other(items: list[int]) -> list[int]:
    return [-item for item in items]


async def test_changes_of_the_endpoint_count_from_the_next_request_on(asking):
    app = app_of(same)
    async with asking(app) as asker:
        await asker.ask_without(b"1")
        controller = app.controller
        await controller.create_backend("other", other)
        await controller.set_traffic("x", {"other": 1.0})
        assert tuple(await asker.ask(b"1")) == (200, -1)
        assert tuple(await asker.ask_without(b"1")) == (200, -1)
        await controller.set_traffic("x", {"other": 0.0, "x": 1.0})
        assert tuple(await asker.ask_without(b"1")) == (200, 1)
        await controller.shadow_traffic("x", "other", 1.0)
        assert await asker.calls_app(b"1")
        await until(lambda: statistics(app, "other").finished >= 5)
        await controller.delete_endpoint("x")
        assert (await asker.ask(b"1")).status == 404
        await controller.create_endpoint("y", route="/x", methods=["POST"], backend="other")
        assert tuple(await asker.ask(b"1")) == (200, -1)


class Converted:
    async def __call__(self, items: list[int]) -> list[int]:
        return items


async def decoded(request):
    return 100 + int(await request.body())


async def test_functions_that_are_set_later_are_called(asking):
    app = app_of(same)
    async with asking(app) as asker:
        await asker.ask_without(b"1")
        await app.controller.update_backend_config("x", {"decode": decoded})
        assert tuple(await asker.ask(b"1")) == (200, 101)


async def test_options_that_run_code_of_the_user_are_obeyed(asking):
    asked = []

    def cost(item):
        asked.append(item)
        if item == 3:
            raise SystemExit(3)
        return 1

    app = app_of(same)
    async with asking(app) as asker:
        await asker.ask_without(b"1")
        await app.controller.update_backend_config("x", {"batch_size_fn": cost})
        assert await asker.calls_app(b"2")
        assert asked == [2, 2, 2]
        assert (await asker.ask(b"3")).status == 500
        await app.controller.update_backend_config("x", {"batch_size_fn": None, "dedupe": True})
        assert await asker.calls_app(b"2")


async def test_headers_of_one_request_are_obeyed(asking):
    app = app_of(same)
    async with asking(app) as asker:
        await asker.ask_without(b"1")
        given = await asker.ask(b"1", "/x", "X-Request-Id: mine")
        assert given.headers["x-request-id"] == "mine"
        for header in ("X-Request-Id: mine", "X-Request-Timeout: 9", "Accept: application/msgpack"):
            assert await asker.calls_app(b"1", "/x", header)
        assert (await asker.ask(b"1", "/x", "X-Request-Timeout: soon")).status == 400
        assert (await asker.ask(b"1", "/x", "X-Serve-Call-Method: no")).status == 404


class Counting:
    """Middleware that keeps `receive` and `send`."""

    seen = 0

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        Counting.seen += 1
        await self.app(scope, receive, send)


class Point(BaseModel):
    x: float

    @field_validator("x")
    @classmethod
    def check(cls, x):
        if x == 3:
            raise SystemExit(3)
        if x == 4:
            VALIDATED.set(x)
        return x


VALIDATED = ContextVar("VALIDATED", default=0)


async def xs(points: list[Point]) -> list[float]:
    return [point.x + VALIDATED.get() for point in points]


async def test_items_of_a_class_of_the_user_are_made_by_the_server(asking):
    app = app_of(xs)
    async with asking(app, max_body_bytes=1000) as asker:
        bodies = [b'{"x": 1}', b'{"x": "no"}', b'{"y": 1}', b"[1", b'{"x": 3}']
        early = [await asker.ask(body) for body in bodies]
        assert [one.status for one in early] == [200, 422, 422, 400, 500]
        assert tuple(await asker.ask_without(b'{"x": 2}')) == (200, 2.0)
        for body, before in zip(bodies, early, strict=True):
            assert (await asker.ask(body)).without_id() == before.without_id()
        assert tuple(await asker.ask(b'{"x": 4}')) == (200, 4.0)
        assert tuple(await asker.ask_without(b'{"x": 5}')) == (200, 5.0)


async def test_bodies_that_are_too_large_or_empty_are_refused(asking):
    app = shoal.App(max_body_bytes=1000)

    async def sizes(items: list[bytes]) -> list[int]:
        return list(map(len, items))

    async with asking(app_of(sizes, app=app)) as asker:
        assert tuple(await asker.ask_without(b"x" * 10)) == (200, 10)
        for size in (1001, 2000):
            assert (await asker.ask(b"x" * size)).status == 413
        sized = request("/x", method="POST", headers=("Content-Length: 0",))
        await asker.client.send_all(sized)
        assert tuple(await asker.read()) == (200, 0)


async def test_an_array_is_json_where_the_worker_has_no_decoder(asking):
    async def zeros(points: list[Point]) -> list[Any]:
        return [np.full(500, point.x) for point in points]

    async with asking(app_of(zeros)) as asker:
        for _ in range(5):
            assert tuple(await asker.ask(b'{"x": 1}')) == (200, [1.0] * 500)


async def ask_often(asker):
    for _ in range(30):
        assert tuple(await asker.ask(b"1")) == (200, 1)
        await anyio.sleep(0.005)


@pytest.mark.parametrize("where", ["middleware", "outside", "subclass", "timed"])
async def test_what_is_around_the_application_sees_each_request(asking, called, where):
    class Own(shoal.App):
        async def __call__(self, scope, receive, send):
            Counting.seen += scope["type"] == "http"
            await super().__call__(scope, receive, send)

    Counting.seen = 0
    options = {"middleware": {"middleware": [Counting]}, "timed": {"server_timing": "always"}}
    app = app_of(same, app=(Own if where == "subclass" else shoal.App)(**options.get(where, {})))
    async with asking(app, Counting(app) if where == "outside" else None) as asker:
        await ask_often(asker)
    assert len(called) == 30
    assert Counting.seen >= 30 or where == "timed"


async def test_a_tracer_that_comes_later_makes_a_span_for_each_request(asking):
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    app = app_of(same)
    async with asking(app) as asker:
        await asker.ask_without(b"1")
        stop = app.trace_requests(provider.get_tracer("test"))
        assert await asker.calls_app(b"1")
        assert len(spans.get_finished_spans()) == 3
        stop()
        assert tuple(await asker.ask_without(b"1")) == (200, 1)


async def test_a_path_with_a_parameter_has_it(asking):
    seen = []
    app = shoal.App()

    @app.endpoint("/y/{n:int}", name="y")
    async def y(items: list[int]) -> list[int]:
        seen.extend(one.metadata["path_params"] for one in shoal.current_batch().requests)
        return items

    async with asking(app) as asker:
        for _ in range(20):
            await asker.ask(b"1", "/y/5")
            await anyio.sleep(0.005)
    assert seen == [{"n": 5}] * 20


async def test_nothing_of_a_request_is_kept(asking):
    items = []

    class Item(list):
        pass

    async def handler(items_: list[list[int]]) -> list[int]:
        items.extend(weakref.ref(one.context) for one in shoal.current_batch().requests)
        return [sum(item) for item in items_]

    async with asking(app_of(handler)) as asker:
        await asker.ask_without(b"[1]")
        gc.collect()
        gc.disable()
        try:
            items.clear()
            for _ in range(5):
                await asker.ask(b"[1]")
            assert [one() for one in items[:-1]] == [None] * 4
        finally:
            gc.enable()


async def test_many_clients_share_batches(asking, held):
    app = app_of(held, max_batch_size=64, max_concurrent_batches=1)
    async with asking(app) as asker:
        held.go.set()
        await asker.ask_without(b"1")
        held.go = anyio.Event()
        held.batches.clear()
        clients = [await asker.server.connect() for _ in range(9)]
        for n, client in enumerate(clients):
            await client.send_all(request("/x", method="POST", body=b"%d" % n))
            await until(lambda: held.batches == [[0]])
        await until(lambda: statistics(app, "x").queued == 8)
        held.go.set()
        for n, client in enumerate(clients):
            assert (await read_until(client, b"\r\n\r\n%d" % n)).startswith(b"HTTP/1.1 200 ")
            await client.aclose()
        assert len(held.batches) == 2, held.batches
    assert "shoal" in await metrics_of(app)


SEEN = ContextVar("SEEN", default=0)


class Noted(BaseModel):
    """Says what the last one has left in a context variable."""

    x: int

    @field_validator("x")
    @classmethod
    def check(cls, x):
        before = SEEN.get()
        SEEN.set(x)
        return before

    @field_serializer("x")
    def written(self, x):
        before = SEEN.get()
        SEEN.set(5)
        return [before, x]


async def test_no_request_sees_the_context_variables_of_another(asking):
    async def handler(items: list[Noted]) -> list[Any]:
        return [[item] for item in items]

    async with asking(app_of(handler)) as asker:
        await asker.ask_without(b'{"x": 1}')
        for _ in range(4):
            assert tuple(await asker.ask_without(b'{"x": 7}')) == (200, [{"x": [0, 0]}])


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("when", ["body that does not fit", "failed batch", "queued"])
async def test_nothing_is_kept_of_a_request_that_fails_or_whose_client_leaves_then(
    asking, front_ends, when, leaves
):
    go = anyio.Event()

    async def handler(items: list[int]) -> list[int]:
        if items != [1]:
            await go.wait()
            raise ValueError
        return items

    app = app_of(handler, max_batch_size=1)
    body = b"x" if when == "body that does not fit" else b"2"
    async with asking(app) as asker:
        await asker.ask_without(b"1")
        [calls] = front_ends
        logging.disable()  # pytest would keep the errors
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                go = anyio.Event()
                if not leaves:
                    go.set()
                    assert (await asker.ask(body)).status >= 400
                    continue
                with asker.server.connect_now(request("/x", method="POST", body=body)):
                    if when == "failed batch":
                        await until(lambda: statistics(app, "x").running)
                    else:
                        time.sleep(0.01)  # noqa: ASYNC251 - the server reads both at once
                time.sleep(0.02)  # noqa: ASYNC251 - it reads of the leaving as the batch ends
                go.set()
                await until(lambda: not calls.running)
                await anyio.sleep(0.01)
            go.set()
            await until(lambda: not statistics(app, "x").running)
            await anyio.sleep(0.01)
            assert not [one for one in gc.get_objects() if type(one) is ItemCall]
        finally:
            gc.enable()
            logging.disable(logging.NOTSET)
        assert calls.shared.running == 0


async def test_a_call_ends_in_the_time_of_the_application(asking, held):
    app = app_of(held, app=shoal.App(answer_timeout_s=0.3))
    async with asking(app) as asker:
        held.go.set()
        await asker.ask_without(b"1")
        held.go = anyio.Event()
        assert (await asker.ask(b"2")).status == 504
        held.go.set()
        metrics = (await metrics_of(app)).splitlines()
        [took] = [line for line in metrics if 'request_seconds_sum{endpoint="x",outcome="t' in line]
        assert float(took.split()[-1]) >= 0.3


async def test_bodies_of_the_same_head_differ_in_size(asking, called):
    app = shoal.App(max_body_bytes=1000)

    async def sizes(items: list[bytes]) -> list[int]:
        return list(map(len, items))

    async with asking(app_of(sizes, app=app)) as asker, http2(asker.server) as client:
        sizes_of_one_head = ((10, 200), (1000, 200), (1001, 413), (0, 200), (7, 200))
        for size, status in sizes_of_one_head:
            asked = client.ask(b"/x", method=b"POST", body=b"x" * size)
            await client.flush()
            answer = await client.wait_for(h2.events.ResponseReceived, asked)
            assert dict(answer.headers)[b":status"] == b"%d" % status
        assert called == ["/x"] * 3


async def test_bodies_that_come_in_pieces_are_read(asking):
    head = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
    head += b"Content-Type: application/json\r\n\r\n"
    async with asking(app_of(same)) as asker:
        for _ in range(3):
            await asker.client.send_all(head + b"1\r\n1\r\n0\r\n\r\n")
            assert tuple(await asker.read()) == (200, 1)
        large = b" " * 200_000 + b"2"
        for _ in range(3):
            assert tuple(await asker.ask(large)) == (200, 2)


async def test_streams_and_whole_requests_are_the_applications(asking):
    async def stream(items: list[int]):
        yield items

    async def whole(items: list[Request]) -> list[str]:
        return [item.method for item in items]

    app = app_of(whole)
    app.endpoint("/stream", name="stream", methods=("POST",))(stream)
    async with asking(app) as asker:
        for _ in range(4):
            assert tuple(await asker.ask(b"1")) == (200, "POST")
        for _ in range(4):
            asked = request("/stream", method="POST", body=b"1", close=True)
            answer = await asker.server.talk(asked)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"1" in answer.partition(b"\r\n\r\n")[2]


async def test_an_answer_to_head_has_no_body(asking):
    app = shoal.App()
    app.endpoint("/x", name="x", methods=("GET",))(same)
    asked = request("/x", method="HEAD", body=b"1")
    async with asking(app) as asker:
        for _ in range(3):
            await asker.client.send_all(asked)
            received = await read_until(asker.client, b"\r\n\r\n")
            assert received.startswith(b"HTTP/1.1 200 ")
            assert received.endswith(b"\r\n\r\n")


async def test_a_backend_that_is_deleted_is_freed(asking):
    app = app_of(same)
    async with asking(app) as asker:
        controller = app.controller
        await controller.create_backend("large", other)
        await controller.set_traffic("x", {"large": 1.0})
        assert tuple(await asker.ask_without(b"1")) == (200, -1)
        batcher = weakref.ref(controller.backends["large"].method_batchers["__call__"])
        await controller.set_traffic("x", {"x": 1.0})
        await controller.delete_backend("large")
        await asker.ask(b"10")  # another head
        gc.collect()
        assert batcher() is None


class Exits(BatchObserver):
    def request_left(self, *_):
        raise SystemExit(3)


async def test_an_observer_that_exits_fails_the_call_alone(asking, held):
    app = app_of(held, max_batch_size=1, max_queued_requests=0)
    app.observers.add(Exits())
    async with asking(app) as asker:
        held.go.set()
        await asker.ask_without(b"1")
        held.go = anyio.Event()
        async with await asker.server.connect() as other:
            await other.send_all(request("/x", method="POST", body=b"2"))
            await until(lambda: statistics(app, "x").running)
            assert (await asker.ask(b"3")).status == 500
            held.go.set()
            await read_until(other, b"\r\n\r\n2")
        assert tuple(await asker.ask(b"4")) == (200, 4)


async def test_nothing_new_begins_once_the_server_cuts_off_its_calls(asking, held):
    async with asking(app_of(held), graceful_timeout_s=0.2) as asker:
        held.go.set()
        await asker.ask_without(b"1")
        held.go = anyio.Event()
        async with await asker.server.connect() as other:
            await other.send_all(request("/x", method="POST", body=b"2"))
            await until(lambda: held.batches[-1] == [2])
            asker.server.stop.set()
            assert (await read_until(other, b"\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
            held.go.set()
            assert (await asker.ask(b"3")).status == 503
    assert held.batches[-1] == [2]
