"""Spans of HTTP requests: they continue their callers' traces, and batches' spans are in them."""

import json
import logging
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio import to_thread
from live_server import live, request, until_quiet
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount
from websockets.sync.client import connect

from handlers import ask_once
from observe.spans import Spans, events, ids, linked, new_spans, traced_app  # noqa: F401
from shoal.http_client import HttpClient
from shoal.observe import instrument
from shoal.server.access_log import LOGGER
from shoal.testing.asgi import ask

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


def asked(path="/double/a", *headers, method="POST", body=b"1"):
    return request(path, method=method, body=body, headers=headers, close=True)


WAYS = pytest.mark.parametrize("way", ["direct", "middleware", "access log"])


@asynccontextmanager
async def traced_server(spans, way, **options):
    middleware = [lambda app: app] if way == "middleware" else []
    app = traced_app(spans, middleware=middleware, **options)
    async with live(app, access_log=way == "access log") as server:
        yield server


async def ended(spans, name):
    """The only span with a name, once the server's tasks have ended it."""
    while not spans.named(name):  # noqa: ASYNC110 - of which nobody tells
        await anyio.sleep(0.01)
    return spans.one(name)


@WAYS
@pytest.mark.real_time
async def test_a_request_continues_the_trace_of_its_caller(spans, way, caplog):
    caplog.set_level(logging.INFO, logger=LOGGER)
    async with traced_server(spans, way) as server:
        answer = await server.talk(
            asked("/double/a?token=secret", f"traceparent: {PARENT}", "tracestate: a=1")
        )
    assert answer.startswith(b"HTTP/1.1 200")
    span = spans.one("POST /double/{name}")
    assert f"{span.context.trace_id:032x}" == TRACE_ID
    assert span.parent.is_remote
    assert span.parent.span_id == 0xB7AD6B7169203331
    assert span.context.trace_state.to_header() == "a=1"
    attributes = dict(span.attributes)
    assert attributes.pop("server.port") == server.port
    assert attributes == {
        "http.request.method": "POST",
        "http.route": "/double/{name}",
        "http.response.status_code": 200,
        "url.path": "/double/a",
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "client.address": "127.0.0.1",
        "server.address": "127.0.0.1",
    }
    assert span.kind is trace.SpanKind.SERVER
    of_request, batch = spans.one("double"), spans.one("double batch")
    assert ids(of_request.parent) == ids(span)
    assert linked(batch) == {ids(of_request)}
    assert list(events(of_request)) == ["queue", "wait", "run"]
    assert of_request.attributes["shoal.request.id"]
    if way == "access log":
        (line,) = [json.loads(r.getMessage()) for r in caplog.records if r.name == LOGGER]
        assert (line["trace_id"], line["span_id"]) == (TRACE_ID, f"{span.context.span_id:016x}")


@WAYS
@pytest.mark.real_time
async def test_the_status_of_an_answer_is_noted(spans, way):
    async with traced_server(spans, way) as server:
        for path, body, name, status, error in (
            ("/double/a", b"0", "POST /double/{name}", 500, "500"),
            ("/double/a", b'"x"', "POST /double/{name}", 422, None),
            ("/nothing", b"1", "POST", 404, None),
            ("/letters", b'"abc"', "POST /letters", 200, None),
        ):
            answer = await server.talk(asked(path, body=body))
            assert answer.startswith(b"HTTP/1.1 %d" % status)
            span = await ended(spans, name)
            assert span.attributes["http.response.status_code"] == status
            assert span.attributes.get("error.type") == error
            assert span.status.status_code.name == ("UNSET" if error is None else "ERROR")
            spans.exporter.clear()


@WAYS
@pytest.mark.real_time
async def test_what_is_refused_before_it_is_a_request_of_a_batcher_has_one_span(spans, way):
    refused = [
        (asked("/double/a", body=b"1" * 2000), 413),
        (asked("/double/a", "X-Request-Timeout: x"), 400),
        (asked("/double/a", body=b"{"), 400),
    ]
    async with traced_server(spans, way, max_body_bytes=1000) as server:
        for sent, status in refused:
            assert (await server.talk(sent)).startswith(b"HTTP/1.1 %d" % status)
    found = spans.exporter.get_finished_spans()
    assert [span.name for span in found] == ["POST /double/{name}"] * 3
    statuses = [span.attributes["http.response.status_code"] for span in found]
    assert statuses == [status for _, status in refused]


@WAYS
@pytest.mark.real_time
async def test_what_the_queue_has_no_room_for_has_a_span_in_that_of_the_request(spans, way):
    async with traced_server(spans, way) as server, await server.connect() as client:
        await client.send_all(asked("/full"))
        await until_quiet()
        answer = await server.talk(asked("/full"))
    status = int(answer.split()[1])
    assert status in (429, 503)
    (refused,) = [
        one
        for one in spans.named("POST /full")
        if one.attributes.get("http.response.status_code") == status
    ]
    (left,) = [one for one in spans.named("full") if ids(one.parent) == ids(refused)]
    assert left.attributes["shoal.request.outcome"] == "rejected"
    assert left.attributes["shoal.request.id"]
    assert not left.events


@WAYS
@pytest.mark.real_time
async def test_a_client_that_leaves_ends_the_span(spans, way):
    async with traced_server(spans, way) as server:
        async with await server.connect() as client:
            await client.send_all(request("/held", method="POST", body=b"1"))
            await until_quiet()
            assert spans.named("POST /held") == []
        span = await ended(spans, "POST /held")
    assert span.attributes["error.type"] == "client_left"
    assert spans.one("held").attributes["shoal.request.outcome"] == "cancelled"


HOSTILE = [
    ["traceparent: " + "0" * 5_000],
    [f"traceparent: {PARENT}", f"traceparent: {PARENT}"],
    ["traceparent: 00-" + "0" * 32 + "-b7ad6b7169203331-01"],
    [f"traceparent: ff{PARENT[2:]}"],
    [f"traceparent: {PARENT.upper()}"],
    ["traceparent: \xff\xfe"],
    ["traceparent:"],
]


@pytest.mark.real_time
async def test_a_wrong_traceparent_begins_a_new_trace(spans, caplog):
    async with live(traced_app(spans)) as server:
        for headers in HOSTILE:
            answer = await server.talk(asked("/double/a", *headers, "baggage: %%%,=,user=me"))
            assert answer.startswith(b"HTTP/1.1 200")
    assert [one.parent for one in spans.named("POST /double/{name}")] == [None] * len(HOSTILE)
    assert caplog.records == []


async def test_a_wrong_tracestate_is_dropped(spans, caplog):
    app = traced_app(spans)
    many = ",".join(f"k{i}=1" for i in range(40))
    async with app.lifespan():
        for state in ("a" * 600 + "=1", "a=1,a", "=,,,", many, "a=\x7f"):
            headers = [("traceparent", PARENT), ("tracestate", state)]
            assert (await ask(app, "/double/a", 1, headers=headers)).status == 200
            span = spans.one("POST /double/{name}")
            assert f"{span.context.trace_id:032x}" == TRACE_ID
            assert span.context.trace_state.to_header() == ""
            spans.exporter.clear()
    assert caplog.records == []


async def test_pages_have_no_spans_and_mounted_applications_have(spans):
    app = traced_app(spans)
    app.mount("/other", Response(status_code=201))
    outer = Starlette(routes=[Mount("/ml", app=app)])
    async with app.lifespan():
        for path in ("/-/healthz", "/-/metrics", "/-/docs"):
            await ask(app, path, method="GET")
        await ask(outer, "/ml/-/readyz", method="GET")
        assert spans.exporter.get_finished_spans() == ()
        await ask(app, "/other/x", method="PUT")
        await ask(outer, "/ml/double/b", 1)
    assert spans.one("PUT").attributes["http.response.status_code"] == 201
    assert spans.one("POST /double/{name}").attributes["url.path"] == "/ml/double/b"


def double_on_a_websocket(port):
    with connect(f"ws://127.0.0.1:{port}/double/a", subprotocols=["shoal.v1"]) as socket:
        for item in (1, 2):
            socket.send(json.dumps({"id": item, "item": item}))
            assert json.loads(socket.recv(10)) == {"id": item, "result": 2 * item}


@pytest.mark.real_time
async def test_a_websocket_is_one_span_with_the_requests_on_it(spans):
    async with live(traced_app(spans)) as server:
        await to_thread.run_sync(double_on_a_websocket, server.port)
    span = spans.one("GET /double/{name}")
    assert span.attributes["network.protocol.name"] == "websocket"
    assert span.attributes["http.response.status_code"] == 101
    assert {ids(one.parent) for one in spans.named("double")} == {ids(span)}


async def test_an_unknown_method_is_not_a_name(spans):
    await ask_once(traced_app(spans), "/double/a", method="RANDOM1")
    assert spans.one("HTTP").attributes["http.request.method"] == "_OTHER"


@WAYS
@pytest.mark.real_time
async def test_an_unsampled_request_makes_no_spans(way):
    spans = Spans(ParentBased(ALWAYS_ON))
    async with traced_server(spans, way) as server:
        answer = await server.talk(asked("/double/a", f"traceparent: {PARENT[:-1]}0"))
        assert answer.startswith(b"HTTP/1.1 200")
        assert spans.exporter.get_finished_spans() == ()


@pytest.mark.real_time
async def test_what_a_handler_calls_by_http_is_in_its_trace(spans, app):
    inner = traced_app(spans)

    async with live(inner) as inner_server:

        @app.endpoint("/outer", name="outer", max_batch_size=2)
        async def outer(items: list[int]) -> list[int]:
            async with HttpClient(f"http://127.0.0.1:{inner_server.port}") as client:
                return [await client.call("/double/a", item) for item in items]

        instrument(app, tracer_provider=spans.provider)
        async with live(app) as server:
            answer = await server.talk(asked("/outer", f"traceparent: {PARENT}"))
    assert answer.endswith(b"2")
    span = spans.one("POST /double/{name}")
    assert f"{span.context.trace_id:032x}" == TRACE_ID
    assert ids(span.parent) == ids(spans.one("outer batch"))
