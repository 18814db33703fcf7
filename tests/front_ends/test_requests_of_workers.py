"""Requests that workers pass on, and the channel that they take to the server's process."""

import json
import os
import socket
from contextlib import asynccontextmanager
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any

import anyio
import h2.events
import pytest
from echo_app import EchoApp
from held_app import statistics
from held_requests import asking, held_request, read_answer
from live_server import http2, live, read_until, request, upgrade
from starlette.responses import Response

import shoal
from event_loops import one_loop_for_the_file  # noqa: F401
from shoal.front_ends.front_end import FrontEnd
from shoal.front_ends.wire import Channel
from shoal.replicas.process.wire.frames import FrameReader
from shoal.replicas.process.wire.shared_memory import Region, SharedMemory, new_memory
from time_limits import HANG_S
from worker_processes import until

pytestmark = pytest.mark.real_time

CLOSE = ("Connection: close",)


class Shared:
    """A server with one worker that several tests share, whose endpoints do what a test says."""

    held = steps = None

    def __init__(self):
        self.app = shoal.App(heartbeat_s=0.05)

        @self.app.endpoint("/held", name="held", max_batch_size=1)
        async def held(items: list[int]) -> list[int]:
            return await self.held(items)

        @self.app.endpoint("/stream", max_batch_size=1, max_concurrent_batches=4)
        async def stream(items: list[int]):
            async for results in self.steps(items):
                yield results

        @self.app.endpoint("/echo")
        async def echo(items: list[str]) -> list[str]:
            return items


@pytest.fixture(scope="module")
async def running(anyio_backend):
    shared = Shared()
    async with live(shared.app, workers=1, send_timeout_s=60, hang_s=120) as server:
        server.shared = shared
        yield server


@pytest.fixture
def server(running, held):
    """A server with one worker, whose handler is held."""
    running.shared.held = held
    return running


async def test_a_client_that_leaves_cancels_its_request(server, held):
    async with asking(server, 1):
        await until(lambda: held.batches)
    await until(lambda: held.cancelled == 1)


@pytest.mark.one_loop
async def test_an_endpoint_that_is_created_while_they_serve_is_served(server, held):
    held.go.set()
    controller = server.shared.app.controller
    assert (await server.talk(held_request("/new", headers=CLOSE))).startswith(b"HTTP/1.1 404 ")
    await controller.create_endpoint("new", route="/new", methods=["POST"], backend="held")
    async with asking(server, 1, held_request("/new")) as [client]:
        assert await read_answer(client) == (200, 7)
    await controller.delete_endpoint("new")
    assert (await server.talk(held_request("/new", headers=CLOSE))).startswith(b"HTTP/1.1 404 ")


@pytest.mark.one_loop
async def test_bodies_of_all_sizes_come_whole_there_and_back(server):
    def sent(text, is_chunked):
        body = json.dumps(text).encode()
        if not is_chunked:
            return held_request("/echo", body)
        head = ("Transfer-Encoding: chunked", "Content-Type: application/json")
        whole = request("/echo", method="POST", headers=head)
        for start in range(0, len(body), 65_000):
            part = body[start : start + 65_000]
            whole += b"%x\r\n%b\r\n" % (len(part), part)
        return whole + b"0\r\n\r\n"

    async with await server.connect() as client:
        for size in (1000, 20_000, 600_000, 3_000_000):
            text = ("abcdefghijklmnopqrstuvwxyz" * (size // 26 + 1))[:size]
            for is_chunked in (False, True, False):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(client.send_all, sent(text, is_chunked))
                    assert await read_answer(client) == (200, text)


async def test_a_client_that_does_not_read_its_stream_holds_up_only_that(server, held):
    steps = []

    async def stream(items):
        for nth in range(items[0]):
            steps.append(nth)
            yield ["x" * 100_000]

    server.shared.steps = stream
    lines = ("Accept: application/x-ndjson",)
    held.go.set()
    async with asking(server, 1, held_request("/stream", b"400", lines)) as [client]:
        await until(lambda: steps)
        before = -1
        while before != len(steps):
            before = len(steps)
            async with asking(server, 1) as [other]:
                assert await read_answer(other) == (200, 7)
            await anyio.sleep(0.2)
        assert len(steps) < 200
        received = 0
        while received < 400 * 100_000:
            received += len(await client.receive_some())
    assert len(steps) == 400


async def test_a_stream_is_sent_as_it_is_made(server):
    go = {1: anyio.Event(), 2: anyio.Event()}

    async def stream(items):
        yield ["first"]
        await go[items[0]].wait()
        yield ["second"]

    server.shared.steps = stream
    for item, accept in (b"1", "text/event-stream"), (b"2", "application/x-ndjson"):
        sent = held_request("/stream", item, (f"Accept: {accept}",))
        async with asking(server, 1, sent) as [client]:
            assert b"second" not in await read_until(client, b"first")
            if accept == "text/event-stream":
                await read_until(client, b":")  # a heartbeat
            go[int(item)].set()
            assert b"second" in await read_until(client, b"0\r\n\r\n")


async def test_http2_is_spoken(server, held):
    app = server.shared.app
    async with http2(server) as client:
        one = client.ask(b"/held", method=b"POST", end=False)
        client.connection.send_data(one, b"1")
        client.connection.send_data(one, b"5", end_stream=True)
        await client.flush()
        await until(lambda: held.batches == [[15]])
        left = client.ask(b"/held", method=b"POST", end=False)
        client.connection.send_data(left, b"6", end_stream=True)
        await client.flush()
        await until(lambda: statistics(app).queued == 1)
        client.connection.reset_stream(left)
        await client.flush()
        await until(lambda: statistics(app).queued == 0)
        held.go.set()
        answered = await client.wait_for(h2.events.DataReceived, one)
        assert answered.data == b"15"


@pytest.fixture(scope="module")
async def serving(anyio_backend):
    """Has a server with one worker serve an application of ASGI from now on."""
    apps = []

    async def app(scope, receive, send):
        if scope["type"] != "lifespan":
            await apps[-1](scope, receive, send)

    async with live(app, workers=1, hang_s=120) as server:

        def serve(app):
            apps.append(app)
            return server

        yield serve


@pytest.mark.one_loop
async def test_each_request_has_its_own_head_however_many_there_are(serving):
    """More than are kept, and some that are too long to be kept; some of them twice."""

    async def app(scope, receive, send):
        given = [scope["path"], dict(scope["headers"])[b"x-number"].decode()]
        # What it does with them concerns no other request.
        scope["headers"].clear()
        await EchoApp().answer(send, 200, json.dumps(given).encode())

    paths = ["/" + "x" * (8000 * (nth % 100 == 0)) for nth in range(1100)]
    async with await serving(app).connect() as client:
        for nth, path in [*enumerate(paths), *enumerate(paths[:200])]:
            await client.send_all(request(path, headers=(f"X-Number: {nth}",)))
            assert await read_answer(client) == (200, [path, str(nth)])


def not_picklable(kind):
    def refuse(_self, _protocol):
        raise TypeError

    return type("Own", (kind,), {"__slots__": (), "__reduce_ex__": refuse})


OwnBytes, OwnText, OwnPair, OwnNumber = map(not_picklable, (bytes, str, tuple, int))


@pytest.mark.one_loop
async def test_an_answer_may_have_other_types_of_bytes_texts_and_numbers(serving):
    async def app(scope, receive, send):
        start, part = OwnText("http.response.start"), OwnText("http.response.body")
        headers = [
            [bytearray(b"content-length"), memoryview(b"4")],
            (OwnBytes(b"x-own"), b"mine"),
            OwnPair((b"x-pair", b"mine")),
        ]
        status = HTTPStatus.ACCEPTED
        await send({"type": start, "status": status, "headers": headers})
        body = bytearray(b"nu")
        await send({"type": part, "body": body, "more_body": 1, "x": object()})
        body[:] = b"xx"
        await send({"type": part, "body": OwnBytes(b"ll")})

    async with await serving(app).connect() as client:
        for _ in range(3):
            await client.send_all(request("/"))
            assert await read_answer(client) == (202, None)


@pytest.mark.one_loop
async def test_a_response_of_an_endpoint_may_have_other_types_of_bytes_and_numbers():
    app = shoal.App()

    class Own(Response):
        def init_headers(self, headers=None):
            self.raw_headers = [(OwnBytes(b"content-type"), OwnBytes(b"x/own"))]

    @app.endpoint("/own")
    async def own(items: list[int]) -> list[Any]:
        return [Own(b"null", OwnNumber(201)) for _ in items]

    async with live(app, workers=1) as server, await server.connect() as client:
        for _ in range(3):
            await client.send_all(held_request("/own"))
            assert await read_answer(client) == (201, None)


@pytest.mark.one_loop
async def test_a_websocket_message_that_cannot_be_sent_ends_nothing_else(serving, caplog):
    async def app(scope, receive, send):
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": OwnBytes(b"x")})
        else:
            await EchoApp().answer(send, 200, b"null")

    server = serving(app)
    async with await server.connect() as client:
        await client.send_all(upgrade())
        assert (await read_until(client, b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        async with asking(server, 1, request("/")) as [other]:
            assert await read_answer(other) == (200, None)
    assert "the application failed" in caplog.text


async def test_what_a_request_leaves_is_not_met_by_the_next(serving, caplog):
    user = ContextVar("user", default="nobody")
    met = []

    async def app(scope, receive, send):
        met.append(user.get())
        user.set(scope["path"])
        await anyio.lowlevel.checkpoint()
        if scope["path"] == "/leave":
            left = anyio.CancelScope()
            left.__enter__()
            left.cancel()
        if scope["path"] == "/fail":
            raise ValueError
        await EchoApp().answer(send, 200, b"null")

    paths = ["/leave", "/", "/leave", "/leave", "/", "/fail", "/", "/fail", "/"]
    server = serving(app)
    for path in paths:
        received = await server.talk(request(path, close=True))
        assert received.startswith(b"HTTP/1.1 %d " % (500 if path == "/fail" else 200))
    assert met == ["nobody"] * len(paths)


MEMORY = 2**20


class End:
    """One end, and what it has received."""

    def __init__(self, sock, outgoing, incoming):
        self.failures = []
        reader = FrameReader()
        self.channel = Channel(sock, reader, outgoing, incoming, self.failures.append)
        self.received = []
        self._came = anyio.Event()

    def take(self, messages):
        self.received += messages
        self._came.set()

    async def wait_for(self, count):
        while len(self.received) < count:
            self._came = anyio.Event()
            await self._came.wait()


@asynccontextmanager
async def connected(*, shares_memory):
    ours, theirs = socket.socketpair()
    fd = new_memory(MEMORY) if shares_memory else None
    memory = SharedMemory(fd, MEMORY)
    if fd is not None:
        os.close(fd)
    here, there = memory.requests, memory.replies
    ends = End(ours, here, there), End(theirs, there, here)
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            for end in ends:
                tasks.start_soon(end.channel.run, end.take)
            yield ends
            tasks.cancel_scope.cancel()
    for end in ends:
        end.channel.close()


@pytest.mark.parametrize("shares_memory", [True, False], ids=["with shared memory", "without"])
async def test_messages_of_all_sizes_come_whole_and_in_order(shares_memory):
    sizes = [0, 1, 16_383, 65_536, 70_000, 5, 3 * MEMORY, 2, *[1000] * 300, 100_000, 0]
    posted = [("last", id_, b"d" * size) for id_, size in enumerate(sizes)]
    async with connected(shares_memory=shares_memory) as (one, other):
        for name, id_, content in posted:
            one.channel.post(name, id_, content, len(content))
        await other.wait_for(len(sizes))
    assert other.received == posted


@pytest.mark.parametrize("shares_memory", [True, False], ids=["with shared memory", "without"])
async def test_memory_is_given_back(shares_memory):
    """Ten times as much as there is passes, in both directions."""
    data = b"x" * (MEMORY // 4)
    async with connected(shares_memory=shares_memory) as (one, other):
        for nth in range(1, 41):
            one.channel.post("request", nth, data, len(data))
            await other.wait_for(nth)
            other.channel.post("last", nth, data, len(data))
            await one.wait_for(nth)
    assert {content for _, _, content in one.received} == {data}


async def test_what_is_no_frame_ends_the_channel():
    ours, theirs = socket.socketpair()
    end = End(theirs, Region(), Region())
    with ours, anyio.fail_after(HANG_S):
        ours.sendall(b"\xff" * 64)
        await end.channel.run(end.take)
    [failure] = end.failures
    assert isinstance(failure, Exception)
    end.channel.close()


@pytest.mark.one_loop
async def test_a_request_that_comes_once_the_servers_process_is_gone_is_told_so():
    ours, theirs = socket.socketpair()
    theirs.close()
    end = End(ours, Region(), Region())
    front_end = FrontEnd(end.channel, tuple, 1)
    await end.channel.run(front_end.take)
    front_end.lose()
    async with live(front_end) as server:
        answer = await server.talk(held_request("/", headers=CLOSE))
    assert answer.startswith(b"HTTP/1.1 503 ")
    end.channel.close()


@pytest.mark.one_loop
@pytest.mark.parametrize("options", [{}, {"workers": 1}])
async def test_an_answer_to_head_of_unknown_length_names_none(options):
    app = shoal.App()

    async def mounted(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app.mount("/mounted", mounted)

    @app.endpoint("/stream", methods=["GET"])
    async def stream(items: list[int]):
        yield items

    async with live(app, **options) as server:
        for path in ("/mounted", "/stream?items=1"):
            told = await server.talk(request(path, method="HEAD", close=True))
            assert told.startswith(b"HTTP/1.1 200 "), told
            assert b"content-length" not in told
