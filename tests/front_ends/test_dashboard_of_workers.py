"""The feed of the dashboard through a worker: its figures are those of the server's process."""

import json
import signal
from contextlib import asynccontextmanager

import anyio
import pytest
from held_app import statistics
from live_server import http2, live, read_until, request, upgrade

import shoal
from observe.spans import new_spans, traced_app  # noqa: F401
from shoal.http.dashboard.dashboard import DASHBOARD
from worker_processes import kill, until, workers_of

pytestmark = [pytest.mark.real_time, pytest.mark.one_loop, pytest.mark.slow]

# The server says that its address is this machine's own.
LOOK = request(f"{DASHBOARD}/feed", close=True).replace(b"shoal.test", b"localhost")


def accept_at(*workers):
    """Has these workers accept all clients: the others stop."""
    for worker in workers_of():
        kill(worker, signal.SIGCONT if worker in workers else signal.SIGSTOP)


class Viewer:
    """Reads the feed: its messages so far, and what they say."""

    def __init__(self, client, received):
        self._client = client
        self._received = received
        self.messages = []

    @property
    def state(self):
        return [message["state"] for message in self.messages if "state" in message][-1]

    @property
    def rows(self):
        lanes = [lane for message in self.messages for lane in message["lanes"]]
        return [row for lane in lanes for row in lane["rows"]]

    async def until(self, is_so):
        while not is_so():
            data = await self._client.receive_some()
            assert data, "closed"
            self._received += data
            # A message is a chunk of the answer.
            *whole, self._received = self._received.split(b"\n\n\r\n")
            self.messages += [json.loads(one.partition(b"data: ")[2]) for one in whole]


@asynccontextmanager
async def viewing(server):
    async with await server.connect() as client:
        await client.send_all(LOOK)
        head, _, rest = (await read_until(client, b"\r\n\r\n")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        viewer = Viewer(client, rest)
        await viewer.until(lambda: viewer.messages)
        yield viewer


async def ask(server):
    assert (await server.talk(request("/held", method="POST", body=b"7", close=True)))[-1:] == b"7"


async def test_a_viewer_at_one_worker_sees_what_another_has_passed_on(held_app, held):
    async with live(held_app, workers=2) as server, anyio.create_task_group() as tasks:
        one, other = workers_of()
        accept_at(one)
        tasks.start_soon(ask, server)
        await until(lambda: statistics(held_app).running == 1)
        tasks.start_soon(ask, server)
        await until(lambda: statistics(held_app).queued == 1)
        accept_at(other)
        tasks.start_soon(ask, server)
        await until(lambda: statistics(held_app).queued == 2)
        async with viewing(server) as viewer:
            [backend] = viewer.state["backends"]
            assert (backend["tag"], backend["ongoing"], backend["queued"]) == ("held", 1, 2)
            held.go.set()
            await viewer.until(lambda: [row for row in viewer.rows if row[1] == 2])
            _, _, _, size, limit, *_ = viewer.rows[-1]
            assert (size, limit) == (2, 100)  # one request of each worker
        accept_at(one, other)


async def test_viewers_at_all_workers_share_places_until_they_or_the_workers_go(
    held_app, monkeypatch
):
    monkeypatch.setattr("shoal.http.dashboard.feed.MOST_PUBLIC", 1)
    async with live(held_app, workers=2) as server:
        observers = held_app.controller.observers
        one, other = workers_of()
        accept_at(one)
        async with viewing(server):
            assert len(observers.all) == 1
            accept_at(other)
            async with await server.connect() as refused:
                await refused.send_all(LOOK)
                assert (await read_until(refused, b"\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
            accept_at(one, other)
        await until(lambda: observers.all == ())
        accept_at(one)
        async with viewing(server):
            kill(one)
            await until(lambda: observers.all == ())
        kill(other, signal.SIGCONT)


# The access log of a server with workers: each writes the lines of its clients, as one would


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
    async with http2(server) as client:
        await client.fetch(b"/nowhere")
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


@pytest.mark.parametrize("workers", [None, 1])
async def test_a_line_counts_no_body_for_head(logged, workers):
    async with live(shoal.App(), workers=workers, access_log=True) as server:
        await server.talk(request("/nowhere", method="HEAD", close=True))
    assert [line["bytes"] for line in logged()] == [0]
