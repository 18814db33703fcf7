"""Calls over one WebSocket: against a server that does as it is told, and against our own."""

from __future__ import annotations

import importlib.util
import json
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import anyio.to_thread
import numpy as np
import pytest
import wsproto.connection
from raw_server import raw_server
from served import served
from socket_server import PROBLEM, SocketServer

import shoal
from shoal import errors
from shoal.http_client import RetryOptions, connect
from shoal.http_client.websocket.frames import Frames
from shoal.http_client.websocket.socket import _Link
from shoal.testing import settle

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

RETRIES = RetryOptions(first_delay_s=0.01)


@asynccontextmanager
async def opened(server, *, max_requests=64, **options):
    """A WebSocket to a server that does as it is told."""
    options = {"retries": RETRIES, "timeout_s": None, **options}
    async with (
        served(server, lifespan=False) as url,
        connect(url, **options) as client,
        client.websocket("/x", max_requests=max_requests) as socket,
    ):
        yield socket


class Calls:
    """Makes calls in tasks; their results or errors by their items."""

    def __init__(self, tasks, socket):
        self.tasks = tasks
        self.socket = socket
        self.results = {}
        self._changed = anyio.Event()

    async def ended(self, number):
        """Waits until so many calls have ended."""
        while len(self.results) < number:
            self._changed = anyio.Event()
            await self._changed.wait()

    def start(self, item, **options):
        self.tasks.start_soon(self._call, item, options)

    async def _call(self, item, options):
        try:
            self.results[item] = await self.socket.call(item, **options)
        except Exception as error:
            self.results[item] = error
        self._changed.set()


@asynccontextmanager
async def calls_on(server, **options):
    async with opened(server, **options) as socket, anyio.create_task_group() as tasks:
        yield Calls(tasks, socket)


async def test_calls_are_answered_in_any_order():
    server = SocketServer()
    async with calls_on(server) as calls:
        for item in ("a", "b", "c"):
            calls.start(item)
        asked = [await server.next() for _ in range(3)]
        assert [sorted(one) for one in asked] == [["id", "item", "timeout_s"]] * 3  # of the test
        for one in reversed(asked):
            await server.say(id=one["id"], result=one["item"] * 2)
    assert calls.results == {"a": "aa", "b": "bb", "c": "cc"}
    await server.closed.wait()


async def test_bytes_and_arrays_go_in_binary_messages():
    server = SocketServer()
    async with calls_on(server) as calls:
        calls.start(b"x\ny")
        head, item = await server.next()
        assert item == b"x\ny"
        await server.say(id=head["id"], result=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(calls.socket.call, np.arange(3))
            head, item = await server.next()
            assert item.startswith(b"\x93NUMPY")
            await server.say(id=head["id"], result=1)


async def test_options_of_a_call_are_sent_along():
    server = SocketServer()
    async with calls_on(server) as calls:
        calls.start(1, timeout_s=5, priority=2)
        message = await server.next()
        assert message["priority"] == 2
        assert 4 < message["timeout_s"] <= 5
        await server.say(id=message["id"], result=None)
        for wrong, error in ((0, ValueError), ("1", TypeError)):
            with pytest.raises(error, match="priority"):
                await calls.socket.call(1, priority=wrong)
            with pytest.raises(error, match="priority"):
                calls.socket.stream(1, priority=wrong)
    assert calls.results == {1: None}


async def test_the_handshake_has_the_headers_of_the_client():
    server = SocketServer()
    async with (
        served(server, lifespan=False) as url,
        connect(url, token="secret", headers={"X-A": "1"}) as client,
        client.websocket("/x", headers={"X-B": "2"}),
    ):
        await server.is_open.wait()
    headers = server.headers
    assert (headers["x-a"], headers["x-b"]) == ("1", "2")
    assert headers["authorization"] == "Bearer secret"
    assert headers["sec-websocket-protocol"] == "shoal.v1"


async def test_a_call_that_is_cancelled_is_cancelled_at_the_server_and_no_other():
    server = SocketServer()
    async with calls_on(server, max_requests=2) as calls:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(calls.socket.call, "left")
                left = await server.next()
                scope.cancel()
        assert await server.next() == {"id": left["id"], "cancel": True}
        calls.start("a")
        first = await server.next()
        calls.start("b")
        await anyio.wait_all_tasks_blocked()
        assert server.received == []  # until the server has ended the one that was left
        await server.say(id=left["id"], error={"type": f"{PROBLEM}cancelled", "status": 499})
        second = await server.next()
        assert (first["item"], second["item"]) == ("a", "b")
        for one in (first, second):
            await server.say(id=one["id"], result=one["item"])
    assert calls.results == {"a": "a", "b": "b"}


async def test_a_call_whose_time_is_over_is_cancelled_too():
    server = SocketServer()
    async with calls_on(server) as calls:
        calls.start(1, timeout_s=0.05)
        message = await server.next()
        assert await server.next() == {"id": message["id"], "cancel": True}
        await calls.ended(1)
        assert type(calls.results[1]) is errors.DeadlineExceeded


async def test_errors_are_those_of_calls_over_http():
    server = SocketServer()
    problems = {
        "item-too-large": errors.ItemTooLarge,
        "invalid-item": errors.HttpProblem,
        "replica-died": errors.ReplicaDied,
    }
    async with calls_on(server) as calls:
        for kind in problems:
            calls.start(kind)
            message = await server.next()
            problem = {"type": PROBLEM + kind, "title": "No", "status": 422}
            await server.say(id=message["id"], error=problem)
    assert {kind: type(error) for kind, error in calls.results.items()} == problems
    assert "/x answered 422: No" in str(calls.results["invalid-item"])


@pytest.mark.parametrize("kind", ["overloaded", "too-many-requests"])
async def test_what_was_refused_is_made_again(kind):
    server = SocketServer()
    async with calls_on(server) as calls:
        calls.start(5)
        first = await server.next()
        await server.say(id=first["id"], error={"type": PROBLEM + kind, "status": 503})
        second = await server.next()
        assert second["id"] != first["id"]
        await server.say(id=second["id"], result=6)
    assert calls.results == {5: 6}


async def test_a_stream_gives_its_items_and_credit_for_more():
    server = SocketServer()
    async with opened(server) as socket, anyio.create_task_group() as tasks:

        async def serve():
            message = await server.next()
            for number in range(32):
                await server.say(id=message["id"], next=number)
            assert await server.next() == {"id": message["id"], "credit": 32}
            await server.say(id=message["id"], next=32)
            await server.say(id=message["id"], end=True)

        tasks.start_soon(serve)
        async with socket.stream("x") as stream:
            assert [item async for item in stream] == list(range(33))
            with pytest.raises(StopAsyncIteration):
                await anext(stream)


async def test_a_stream_that_is_left_is_cancelled_and_its_items_dropped():
    server = SocketServer()
    async with opened(server) as socket, anyio.create_task_group() as tasks:

        async def serve():
            message = await server.next()
            await server.say(id=message["id"], next=0)
            assert await server.next() == {"id": message["id"], "cancel": True}
            await server.say(id=message["id"], next=1)
            await server.say(id=message["id"], error={"status": 499})
            other = await server.next()
            await server.say(id=other["id"], result="still open")

        tasks.start_soon(serve)
        async with socket.stream("x") as stream:
            assert await anext(stream) == 0
        assert await socket.call("y") == "still open"


@pytest.mark.parametrize("timeout_s", [None, 30])
async def test_a_stream_that_another_task_closes_ends_for_the_one_that_reads(timeout_s):
    server, read, has_read = SocketServer(), [], anyio.Event()

    async def serve():
        message = await server.next()
        await server.say(id=message["id"], next=0)

    async def read_all(stream):
        async for item in stream:
            read.append(item)
            has_read.set()
        read.append("end")

    async with opened(server) as socket, anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        async with socket.stream("x", timeout_s=timeout_s) as stream:
            tasks.start_soon(read_all, stream)
            await has_read.wait()
            await settle()
            await stream.aclose()
    assert read == [0, "end"]


@pytest.mark.filterwarnings("ignore:a stream of")
@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_stream_that_nobody_refers_to_is_cancelled(in_thread):
    server = SocketServer()
    async with opened(server) as socket, anyio.create_task_group() as tasks:

        async def serve():
            message = await server.next()
            await server.say(id=message["id"], next=0)
            assert await server.next() == {"id": message["id"], "cancel": True}

        tasks.start_soon(serve)
        held = [await socket.stream("x").__aenter__()]
        if in_thread:
            await anyio.to_thread.run_sync(held.clear)
        else:
            with pytest.warns(ResourceWarning, match="a stream of .*/x was not closed"):
                held.clear()


async def test_a_stream_that_fails_gives_what_came_before():
    server = SocketServer()
    async with opened(server) as socket, anyio.create_task_group() as tasks:

        async def serve():
            refused = await server.next()
            await server.say(id=refused["id"], error={"type": f"{PROBLEM}overloaded"})
            message = await server.next()
            await server.say(id=message["id"], next=0)
            problem = {"type": f"{PROBLEM}overloaded", "title": "Late", "status": 503}
            await server.say(id=message["id"], error=problem)

        tasks.start_soon(serve)
        async with socket.stream("x") as stream:
            assert await anext(stream) == 0
            with pytest.raises(errors.Overloaded, match="503: Late"):
                await anext(stream)


async def test_a_stream_has_a_time_limit_if_it_is_given_one():
    server = SocketServer()
    async with opened(server) as socket, anyio.create_task_group() as tasks:

        async def serve():
            message = await server.next()
            await server.say(id=message["id"], next=0)
            assert await server.next() == {"id": message["id"], "cancel": True}

        tasks.start_soon(serve)
        async with socket.stream("x", timeout_s=0.2) as stream:
            assert await anext(stream) == 0
            with pytest.raises(errors.DeadlineExceeded):
                await anext(stream)


async def test_the_wrong_kind_of_call_is_told():
    server = SocketServer()
    async with opened(server) as socket, anyio.create_task_group() as tasks:

        async def serve():
            await server.say(id=(await server.next())["id"], next=0)
            assert "cancel" in await server.next()
            await server.say(id=(await server.next())["id"], result=0)

        tasks.start_soon(serve)
        with pytest.raises(TypeError, match=r"use socket\.stream"):
            await socket.call("x")
        with pytest.raises(TypeError, match=r"use socket\.call"):
            async with socket.stream("x"):
                pass


# What a server does wrong, and the end


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "5", '{"id": 99, "result": 1}', '{"id": 1}', '{"result": 1}'),
        *('{"id": true, "result": 1}', '{"id": [1], "result": 1}', '{"id": "1", "result": 1}'),
        *("[" * 100_000, "x" * 2000, "\u00fc" * 600),
    ],
)
async def test_a_message_of_another_protocol_ends_all_calls(text):
    server = SocketServer()
    async with calls_on(server, max_answer_bytes=1000) as calls:
        calls.start("a")
        calls.start("b")
        for _ in range(2):
            await server.next()
        await server.say_text(text)
        await calls.ended(2)
        for error in calls.results.values():
            assert type(error) is ConnectionError
            assert "may have run" in str(error)
        assert calls.results["a"] is not calls.results["b"]
        with pytest.raises(ConnectionError, match="may have run"):
            await calls.socket.call("c")


async def test_a_message_that_is_too_large_is_not_kept():
    server = SocketServer()
    async with calls_on(server, max_answer_bytes=1000) as calls:
        calls.start("a")
        await server.say(id=(await server.next())["id"], result="x" * 2000)
        await calls.ended(1)
    assert "more than 1000 bytes" in str(calls.results["a"])


async def test_a_server_that_sends_more_than_it_may_is_left():
    server = SocketServer()
    async with opened(server) as socket, anyio.create_task_group() as tasks:

        async def serve():
            message = await server.next()
            for number in range(65):
                await server.say(id=message["id"], next=number)

        tasks.start_soon(serve)
        async with socket.stream("x") as stream:
            await server.closed.wait()
            assert [await anext(stream) for _ in range(64)] == list(range(64))
            with pytest.raises(ConnectionError, match="more of a stream than it may"):
                await anext(stream)


async def test_a_binary_message_is_none_of_a_server():
    server = SocketServer()
    async with calls_on(server) as calls:
        calls.start("a")
        await server.next()
        await server.send({"type": "websocket.send", "bytes": b"{}"})
        await calls.ended(1)
    assert "binary" in str(calls.results["a"])


async def test_a_server_that_closes_is_named():
    server = SocketServer()
    async with calls_on(server) as calls:
        calls.start("a")
        await server.next()
        await server.send({"type": "websocket.close", "code": 1012, "reason": "the server ends"})
        await calls.ended(1)
    assert type(calls.results["a"]) is ConnectionError
    assert "closed the WebSocket with 1012, the server ends" in str(calls.results["a"])


async def test_what_the_block_raises_is_no_group():
    async with served(SocketServer(), lifespan=False) as url, connect(url) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.websocket("/x"):
                raise ZeroDivisionError
        with anyio.move_on_after(0.05) as scope:
            async with client.websocket("/x"):
                await anyio.sleep_forever()
        assert scope.cancelled_caught


async def test_calls_end_with_the_scope_of_the_websocket_whoever_makes_them():
    server = SocketServer()
    is_open, failed = anyio.Event(), anyio.Event()
    sockets, scope = [], anyio.CancelScope()

    async def hold(client):
        with scope:
            async with client.websocket("/x") as socket:
                sockets.append(socket)
                is_open.set()
                with anyio.move_on_after(5, shield=True):
                    await failed.wait()

    async def call():
        with pytest.raises(ConnectionError, match="may have run"):
            await sockets[0].call("a")
        failed.set()

    async with (
        served(server, lifespan=False) as url,
        connect(url, timeout_s=None) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(hold, client)
        await is_open.wait()
        tasks.start_soon(call)
        await server.next()
        scope.cancel()


def test_the_pieces_of_a_message_are_bounded():
    frames = Frames(5)
    assert list(frames.received(b"\x01\x02\xc3\xbc" + 1000 * b"\x00\x00" + b"\x80\x01x")) == [
        "\u00fcx"
    ]
    with pytest.raises(ConnectionError, match="more than 5 bytes"):
        list(frames.received(b"\x81\x06" + 3 * b"\xc3\xbc"))


async def test_a_stream_on_a_websocket_takes_the_limits_of_other_streams():
    server = SocketServer()
    async with opened(server) as socket, anyio.create_task_group() as tasks:

        async def serve():
            await server.say(id=(await server.next())["id"], end=True)

        for wrong, error in ((-1, ValueError), ("1", TypeError)):
            with pytest.raises(error, match="timeout_s"):
                socket.stream("x", timeout_s=wrong)
        tasks.start_soon(serve)
        async with socket.stream("x", timeout_s=None) as stream:
            assert [item async for item in stream] == []


async def test_a_websocket_is_entered_once_and_used_within():
    server = SocketServer()
    async with served(server, lifespan=False) as url, connect(url) as client:
        socket = client.websocket("/x")
        with pytest.raises(RuntimeError, match="not open"):
            await socket.call(1)
        async with socket:
            stream = socket.stream(1)
            with pytest.raises(RuntimeError, match="enter the stream first"):
                await anext(stream)
        with pytest.raises(RuntimeError, match="not open"):
            socket.stream(1)
        with pytest.raises(RuntimeError, match="entered once"):
            await socket.__aenter__()


async def test_a_handshake_that_was_refused_is_made_again():
    server = SocketServer()
    server.refuses = [503, 503]
    async with opened(server):
        await server.is_open.wait()
    assert server.refuses == []


async def test_a_server_that_speaks_no_shoal_is_named():
    async with served(SocketServer(None), lifespan=False) as url, connect(url) as client:
        with pytest.raises(ConnectionError, match=r"/x does not speak shoal\.v1"):
            await client.websocket("/x").__aenter__()


async def test_an_answer_to_another_handshake_is_none():
    async def answer(stream):
        await stream.receive()
        await stream.send(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
            b"Connection: upgrade\r\nSec-WebSocket-Accept: AAAA\r\n"
            b"Sec-WebSocket-Protocol: shoal.v1\r\n\r\n"
        )
        await anyio.sleep_forever()

    async with raw_server(answer) as url, connect(url) as client:
        with pytest.raises(ConnectionError, match="did not accept"):
            await client.websocket("/x").__aenter__()


async def test_our_own_server_speaks_it():
    if importlib.util.find_spec("shoal.http.websocket") is None:
        pytest.skip("this server has no endpoints over WebSocket")
    held, left = anyio.Event(), anyio.Event()

    async def doubled(items: list[int]) -> list[int]:
        if items == [13]:
            held.set()
            try:
                await anyio.sleep_forever()
            finally:
                left.set()
        return [2 * item for item in items]

    async def steps(items: list[int]):
        for number in range(items[0]):
            yield [number]

    app = shoal.App()
    app.endpoint("/doubled", name="doubled", max_batch_size=1)(doubled)
    app.endpoint("/steps", name="steps", max_batch_size=1)(steps)
    async with served(app) as url, connect(url) as client:
        async with client.websocket("/doubled") as socket:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(socket.call, 13)
                await held.wait()
                tasks.cancel_scope.cancel()
            await left.wait()
            results = {}

            async def call(number):
                results[number] = await socket.call(number)

            async with anyio.create_task_group() as tasks:
                for number in range(100, 300):
                    tasks.start_soon(call, number)
            assert results == {number: 2 * number for number in range(100, 300)}
            with pytest.raises(errors.HttpProblem, match="422"):
                await socket.call("no")
        async with client.websocket("/steps") as socket, socket.stream(500) as stream:
            assert [item async for item in stream] == list(range(500))
        with pytest.raises(errors.HttpProblem, match="404"):
            await client.websocket("/none").__aenter__()
        wrong = {"X-Request-Timeout": "soon"}
        with pytest.raises(errors.HttpProblem, match="400: The time limit is invalid"):
            await client.websocket("/doubled", headers=wrong).__aenter__()


def test_a_message_has_an_item_and_the_rest():
    sent = []
    requests = shoal.http_client.websocket.requests.SocketRequests(
        lambda text, is_binary: sent.append((text, is_binary)), 5
    )

    async def begin():
        await requests.begin(b'"i"', False, dict)
        await requests.begin(b'{"a":1}', False, lambda: {"timeout_s": 2.5, "priority": 1})

    anyio.run(begin)
    assert [json.loads(text) for text, _ in sent] == [
        {"id": 1, "item": "i"},
        {"id": 2, "item": {"a": 1}, "timeout_s": 2.5, "priority": 1},
    ]


class Network:
    """A connection to a server that sends pings, and reads when it is told to."""

    def __init__(self, pings):
        self.pings = pings
        self.written = b""
        self.reads = anyio.Event()

    async def read(self, _size):
        if not self.pings:
            await anyio.sleep_forever()
        payload = self.pings.pop(0)
        return b"\x89%c%b" % (len(payload), payload)

    async def write(self, data, *, timeout):
        await self.reads.wait()
        self.written += data


class Answer:
    url = "http://x"

    def __init__(self, network):
        self.network = network


async def test_of_the_pings_of_a_server_that_does_not_read_the_latest_is_answered():
    network = Network([b"%d" % number for number in range(1000)])
    link = _Link(Answer(network), 1, 1000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.read)
        tasks.start_soon(link.write)
        while network.pings:
            await anyio.lowlevel.checkpoint()
        await settle()
        network.reads.set()
        await settle()
        tasks.cancel_scope.cancel()
    server = wsproto.connection.Connection(wsproto.connection.ConnectionType.SERVER)
    server.receive_data(network.written)
    assert [event.payload for event in server.events()] in ([b"999"], [b"0", b"999"])
