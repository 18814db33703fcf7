"""What an application sees of requests, although the server begins others like them itself."""

import gc
import weakref
from contextvars import ContextVar
from typing import Any

import anyio
import h2.events
import numpy as np
import pytest
from held_app import statistics
from lent_heads import app_of, same
from live_server import http2, read_until, request
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel, field_serializer, field_validator
from starlette.requests import Request

import shoal
from worker_processes import until

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


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
