"""The access log of a server with workers: each writes the lines of its clients, as one would."""

import h2.events
import pytest
from live_server import Http2Client, live, request, upgrade

from observe.spans import new_spans, traced_app  # noqa: F401

pytestmark = [pytest.mark.real_time, pytest.mark.one_loop, pytest.mark.slow]

SAME = ("protocol", "method", "path", "status", "bytes", "request_id")


async def ask_all(server):
    """Requests of all kinds, one after the other; returns how many. Those of HTTP/1.1 have ids."""
    mine = "X-Request-ID: mine"
    unsized = [mine, "Transfer-Encoding: chunked"]
    ask = [
        request("/double/a", method="POST", body=b"21", headers=[mine], close=True),
        request("/double/a", method="POST", body=b'"x"', headers=[mine], close=True),
        request("/double/a", method="POST", headers=unsized, close=True) + b"2\r\n21\r\n0\r\n\r\n",
        request("/letters", method="POST", body=b'"abc"', headers=[mine], close=True),
        request("/double/a", headers=[mine], close=True),
        request("/nowhere", headers=[mine], close=True),
        request("/double/a", method="HEAD", headers=[mine], close=True),
        request("/-/healthz", headers=[mine], close=True),
        upgrade(mine),
    ]
    for sent in ask:
        await server.talk(sent)
    client = Http2Client(await server.connect())
    stream = client.ask(b"/nowhere")
    await client.flush()
    await client.wait_for(h2.events.StreamEnded, stream)
    await client.stream.aclose()
    return len(ask) + 1


def within_a_copying_middleware(app):
    async def copying(scope, receive, send):
        await app(dict(scope), receive, send)

    return copying


@pytest.mark.parametrize("around", [lambda app: app, within_a_copying_middleware])
@pytest.mark.parametrize("workers", [None, 1])
async def test_a_line_has_the_ids_of_its_span(spans, logged, workers, around):
    app = around(traced_app(spans))
    async with live(app, workers=workers, access_log=True) as server:
        count = await ask_all(server)
    found = logged()
    assert len(found) == count
    of_spans = {
        (f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}")
        for span in spans.exporter.get_finished_spans()
        if span.kind.name == "SERVER"
    }
    traced = [line for line in found if line["path"] != "/-/healthz"]
    assert {(line["trace_id"], line["span_id"]) for line in traced} == of_spans
    assert len(of_spans) == count - 1
    assert [line for line in found if line["path"] == "/-/healthz" and "trace_id" in line] == []


async def test_a_line_says_the_same_with_workers(spans, logged):
    app = traced_app(spans)
    said = []
    for workers in (None, 1):
        async with live(app, workers=workers, access_log=True) as server:
            await ask_all(server)
        found = [{name: line[name] for name in SAME} for line in logged()]
        [of_http2] = [line for line in found if line["protocol"] == "HTTP/2"]
        assert of_http2.pop("request_id")  # another one each time
        said.append(found)
    here, there = said
    assert here == there
