"""Requests that outlast the server's graceful time: each gets an explicit end."""

import json
from contextlib import asynccontextmanager

import anyio
import h2.events
import pytest
from echo_app import EchoApp
from live_server import Http2Client, live, read_all, read_until, request, upgrade
from test_websocket_limits import both_protocols
from wsproto.events import CloseConnection

from handlers import app_of
from shoal.server.shared import Shared
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling
from time_limits import HANG_S

on_sockets = pytest.mark.real_time

GRACEFUL_S = 0.05
START = {"type": "http.response.start", "status": 200, "headers": []}
LINES = ("accept", "application/x-ndjson")
EVENTS = ("accept", "text/event-stream")


class Http1:
    """A client with one request under way."""

    def __init__(self, client):
        self._client = client

    async def ask(self, path="/", *, whole=True):
        asked = request(path, method="POST", body=b"1234")
        await self._client.send_all(asked if whole else asked[:-1])

    async def until(self, text):
        await read_until(self._client, text)

    async def answer(self):
        """The status and the body; what is left of them after `until`."""
        answer = await read_all(self._client)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"connection: close" in head
        return int(head.split()[1]), body


class Http2(Http1):
    def __init__(self, client):
        super().__init__(client)
        self._peer = Http2Client(client)

    async def ask(self, path="/", *, whole=True):
        self._stream = self._peer.ask(path.encode(), method=b"POST", end=False)
        self._peer.connection.send_data(self._stream, b"1234", end_stream=whole)
        await self._peer.flush()

    async def until(self, text):
        while text not in (await self._peer.wait_for(h2.events.DataReceived, self._stream)).data:
            pass

    async def answer(self):
        status, body = 0, b""
        while True:
            data = await self._client.receive_some()
            assert data, f"closed after {body!r}"
            for event in self._peer.connection.receive_data(data):
                match event:
                    case h2.events.ResponseReceived():
                        status = int(dict(event.headers)[b":status"])
                    case h2.events.DataReceived():
                        body += event.data
                    case h2.events.StreamEnded():
                        return status, body
                    case _:
                        pass


@pytest.fixture(params=[Http1, Http2], ids=["HTTP/1.1", "HTTP/2"])
def speaking(request):
    return request.param


class Told:
    """An application that asks to be told; what it does then is the test's."""

    def __init__(self, then):
        self._then = then
        self.entered = anyio.Event()
        self.told = anyio.Event()
        self.tellings = 0
        self.calls = 0
        self.ended = anyio.Event()

    async def __call__(self, scope, receive, send):
        assert scope["type"] == "http"  # it has no lifespan
        self.calls += 1
        while (await receive())["more_body"]:
            pass
        offered = scope["extensions"]["shoal.disconnect"]
        self.when_left, self.is_cut_off = offered["when_left"], offered["is_cut_off"]
        if scope["path"] == "/begin":
            await send(START)
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        assert not self.is_cut_off()
        self.when_left(self._tell)
        self.entered.set()
        await self.told.wait()
        await self._then(self, receive, send)
        self.ended.set()

    def _tell(self):
        self.tellings += 1
        self.told.set()


async def say_goodbye(app, _receive, send):
    assert app.is_cut_off()
    await send({**START, "status": 503})
    await send({"type": "http.response.body", "body": b"goodbye"})


async def end_the_answer(app, _receive, send):
    assert app.is_cut_off()
    await send({"type": "http.response.body", "body": b"goodbye"})


async def say_nothing(_app, _receive, _send):
    pass


@asynccontextmanager
async def cut_off(app, speaking, path="/", *, whole=True):
    """A client whose call is cut off, and the server, where that is told once the call runs."""
    async with live(app, graceful_timeout_s=GRACEFUL_S) as server, await server.connect() as client:
        asker = speaking(client)
        await asker.ask(path, whole=whole)
        await app.entered.wait()
        server.stop.set()
        yield asker, server


@on_sockets
@pytest.mark.parametrize(
    ("path", "whole"), [("/forever", True), ("/disconnect", True), ("/", False)]
)
async def test_a_call_that_is_cut_off_is_answered_with_503(speaking, path, whole, monkeypatch):
    """And the server goes on as soon as its client was told."""
    monkeypatch.setattr(Shared, "last_words_s", HANG_S * 2)
    app = EchoApp()
    async with cut_off(app, speaking, path, whole=whole) as (asker, server):
        assert await asker.answer() == (503, b"")
    assert app.running == 0
    assert (server.drained.finished, server.drained.cut) == (0, 1)
    assert app.lifespan_events == ["lifespan.startup", "lifespan.shutdown"]


async def ask_again(app, receive, send):
    told_again = anyio.Event()
    app.when_left(told_again.set)
    assert told_again.is_set()  # at once
    await say_goodbye(app, receive, send)


@on_sockets
@pytest.mark.parametrize("then", [say_goodbye, ask_again])
async def test_an_application_that_is_told_may_answer(speaking, then):
    app = Told(then)
    async with cut_off(app, speaking) as (asker, _):
        status, body = await asker.answer()
    assert status == 503
    assert b"goodbye" in body
    assert app.ended.is_set()
    assert app.tellings == 1


@on_sockets
async def test_an_application_that_is_told_may_end_its_answer(speaking):
    app = Told(end_the_answer)
    async with cut_off(app, speaking, "/begin") as (asker, _):
        await asker.until(b"goodbye")


@on_sockets
async def test_for_an_application_that_is_told_and_does_not_answer_the_server_does(speaking):
    app = Told(say_nothing)
    async with cut_off(app, speaking) as (asker, _):
        assert await asker.answer() == (503, b"")


@on_sockets
async def test_a_call_whose_client_has_left_is_not_cut_off(speaking):
    async def look(app, _receive, _send):
        assert not app.is_cut_off()

    app = Told(look)
    async with live(app) as server:
        async with await server.connect() as client:
            await speaking(client).ask()
            await app.entered.wait()
        await app.ended.wait()


@on_sockets
async def test_a_client_that_leaves_after_the_cut_is_not_told_of_twice(speaking):
    async def go_on(app, receive, _send):
        was_told.set()
        with anyio.CancelScope(shield=True):  # the server cancels it when all clients are gone
            assert (await receive())["type"] == "http.disconnect"
        assert not app.is_cut_off()

    app, was_told = Told(go_on), anyio.Event()
    async with cut_off(app, speaking):
        await was_told.wait()
    assert app.ended.is_set()
    assert app.tellings == 1


@on_sockets
async def test_last_words_have_a_limit(monkeypatch):
    async def hesitate(_app, _receive, _send):
        await anyio.sleep_forever()

    monkeypatch.setattr(Shared, "last_words_s", 0.05)
    app = Told(hesitate)
    async with live(app, graceful_timeout_s=GRACEFUL_S) as server, await server.connect() as client:
        await client.send_all(request("/"))
        await app.entered.wait()
        server.stop.set()
        assert await read_all(client) == b"<reset>"
    assert app.tellings == 1


@on_sockets
async def test_a_request_after_the_cut_is_refused():
    app = Told(end_the_answer)
    async with live(app, graceful_timeout_s=GRACEFUL_S) as server, await server.connect() as client:
        await client.send_all(request("/begin"))
        await read_until(client, b"begun")
        server.stop.set()
        await read_until(client, b"0\r\n\r\n")
        await client.send_all(request("/"))
        answer = await read_all(client)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in answer
    assert app.calls == 1


class Accepting:
    """An application that accepts a WebSocket when it is released."""

    def __init__(self):
        self.entered = anyio.Event()
        self.release = anyio.Event()

    async def __call__(self, scope, receive, send):
        assert scope["type"] == "websocket"
        await receive()
        self.entered.set()
        await self.release.wait()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass


@on_sockets
@both_protocols
async def test_a_websocket_that_is_accepted_during_the_drain_is_told_of_it(kind):
    async def end():
        await app.entered.wait()
        server.stop.set()
        await anyio.wait_all_tasks_blocked()
        app.release.set()

    app = Accepting()
    async with live(app) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(end)
        peer = await kind.open(server)
        async with peer.stream:
            closing = await peer.next_event()
    assert isinstance(closing, CloseConnection)
    assert closing.code == 1012


@on_sockets
async def test_a_websocket_that_is_cut_off_before_it_is_accepted_is_refused():
    app = Accepting()
    async with live(app, graceful_timeout_s=GRACEFUL_S) as server, await server.connect() as client:
        await client.send_all(upgrade())
        await app.entered.wait()
        server.stop.set()
        answer = await read_all(client)
    assert answer.startswith(b"HTTP/1.1 503 ")


class Server:
    """The extension of a server that cuts a call off."""

    def __init__(self, call, *, tells=True):
        self._callback = None
        self.has_cut_off = False
        offered = {
            "when_left": self._when_left,
            "send_timeout_s": 10.0,
            "whole_body": lambda _: None,
            "respond": lambda *_: False,
        }
        if tells:
            offered["is_cut_off"] = lambda: self.has_cut_off
        call.scope["extensions"] = {"shoal.disconnect": offered}

    def cut_off(self):
        self.has_cut_off = True
        self._callback()

    def _when_left(self, callback):
        self._callback = callback


class Held:
    """A handler, for calls or streams, that is never done."""

    def __init__(self):
        self.cancelled = 0
        self.entered = anyio.Event()

    async def call(self, items: list[int]) -> list[int]:
        self.entered.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled += 1

    async def stream(self, items: list[int]):
        try:
            for item in items:
                if item:
                    yield items
            await anyio.sleep_forever()
        finally:
            self.cancelled += 1


@pytest.fixture
def held():
    return Held()


@pytest.fixture
def app(held):
    app = app_of(held.call, "/call", name="call", max_batch_size=1)
    app.endpoint("/stream", name="stream", max_batch_size=1)(held.stream)
    return app


@pytest.mark.parametrize("path", ["/call", "/stream"])
async def test_a_call_that_is_cut_off_is_answered_with_a_problem(app, held, path):
    call = Call(app, path, item=0)
    server = Server(call)
    async with app.lifespan(), calling(call):
        await settle()
        server.cut_off()
        await call.returned.wait()
        metrics = (await ask(app, "/-/metrics", method="GET")).body.decode()
    problem = call.answer.json()
    assert call.answer.status == problem["status"] == 503
    assert problem["type"] == "urn:shoal:problem:closed"
    assert call.headers["retry-after"] == "1"
    assert held.cancelled == 1
    of = f'endpoint="{path[1:]}",outcome="unavailable",protocol="json"'
    assert f"request_seconds_count{{{of}}} 1.0" in metrics


async def test_a_queued_call_that_is_cut_off_is_answered_with_a_problem(app, held):
    first, queued = (Call(app, "/call", item=0) for _ in range(2))
    server = Server(queued)
    async with app.lifespan(), calling(first) as tasks:
        await settle()
        tasks.start_soon(queued.run)
        await settle()
        server.cut_off()
        await queued.returned.wait()
        assert queued.answer.json()["type"] == "urn:shoal:problem:closed"
        assert first.sent == []
        assert held.cancelled == 0


@pytest.mark.parametrize(
    ("form", "before"), [(LINES, b'{"error":'), (EVENTS, b"event: error\ndata: ")]
)
async def test_a_stream_that_is_cut_off_gets_its_error_event(app, held, form, before):
    call = Call(app, "/stream", item=7, headers=[form])
    server = Server(call)
    async with app.lifespan(), calling(call):
        await call.until_sent(b"7")
        server.cut_off()
        await call.returned.wait()
    _, _, error = call.answer.body.partition(before)
    problem, _ = json.JSONDecoder().raw_decode(error.decode())
    assert (problem["status"], problem["type"]) == (503, "urn:shoal:problem:closed")
    assert held.cancelled == 1


@pytest.mark.parametrize(("path", "sent"), [("/call", 0), ("/stream", 2)])
async def test_where_the_server_does_not_say_so_a_cut_is_as_a_departure(app, held, path, sent):
    call = Call(app, path, item=7)
    server = Server(call, tells=False)
    async with app.lifespan(), calling(call):
        await settle()
        server.cut_off()
        await call.returned.wait()
    assert len(call.sent) == sent
    assert held.cancelled == 1
