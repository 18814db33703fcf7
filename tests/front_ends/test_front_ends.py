"""A server with workers that speak HTTP for it: real processes, real sockets, one batcher."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path

import anyio
import anyio.lowlevel
import h2.events
import pytest
from held_app import counted, statistics
from live_server import HANG_S, http2, live, read_until, request, upgrade

import shoal
from shoal.front_ends.listener import FrontEnds
from worker_processes import children_of, kill, until, workers_of

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

ITEM = b"7"
CLOSE = ("Connection: close",)


def held_request(path="/held", body=ITEM, headers=()):
    return request(path, method="POST", body=body, headers=headers)


def answer_of(received):
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@asynccontextmanager
async def asking(server, count, sent=None):
    """So many clients, each of which has sent a request."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await server.connect()) for _ in range(count)]
        for client in clients:
            await client.send_all(held_request() if sent is None else sent)
        yield clients


async def read_answer(client):
    """Reads one answer with a length."""
    received = await read_until(client, b"\r\n\r\n")
    head, _, body = received.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].split()[0])
    while len(body) < size:
        body += await client.receive_some()
    return int(head.split()[1]), json.loads(body)


async def test_batches_are_as_large_with_many_workers_as_with_one(app, held):
    """The mean batch is the same, since there is one queue; of many, each would have a part."""
    async with live(app, workers=2) as server, asking(server, 1):
        await until(lambda: held.batches)
        async with asking(server, 32) as clients:
            await until(lambda: statistics(app).queued == 32)
            held.go.set()
            assert [await read_answer(client) for client in clients] == [(200, 7)] * 32
    assert [len(batch) for batch in held.batches] == [1, 32]


@pytest.mark.one_loop
async def test_each_worker_serves(app, held):
    """So the test above is one of several processes: none of them can serve all alone."""
    async with live(app, workers=2) as server:
        stopped, _ = workers_of()
        kill(stopped, signal.SIGSTOP)
        try:
            async with asking(server, 1):
                await until(lambda: held.batches)
        finally:
            kill(stopped, signal.SIGCONT)


async def test_a_killed_worker_is_replaced_and_its_requests_are_cancelled(app, held):
    async with live(app, workers=2) as server:
        dead, other = workers_of()
        kill(other, signal.SIGSTOP)  # so that this one accepts the clients
        async with asking(server, 3) as lost:
            await until(lambda: statistics(app).running + statistics(app).queued == 3)
            kill(other, signal.SIGCONT)
            kill(dead)
            await until(lambda: statistics(app).queued == 0 and held.cancelled == 1)
            assert await lost[0].receive_some() == b""
        # Others go on, and another worker takes the place of the dead one.
        held.go.set()
        async with asking(server, 1) as [client]:
            assert await read_answer(client) == (200, 7)
        await until(lambda: len(set(workers_of()) - {dead}) == 2)
        assert other in workers_of()


@pytest.fixture
def impatient(monkeypatch):
    """Workers are asked for a sign of life often."""
    of = "shoal.front_ends.remote_front_end"
    monkeypatch.setattr(f"{of}._ASKED_EVERY_S", 0.05)
    monkeypatch.setattr(f"{of}._LOOK_S", 0.1)


async def test_a_stopped_worker_is_killed_and_replaced(app, held, impatient, caplog):
    async with live(app, workers=2) as server:
        stopped, other = workers_of()
        kill(other, signal.SIGSTOP)  # so that this one accepts the clients
        async with asking(server, 1) as [lost]:
            await until(lambda: held.batches)
            kill(other, signal.SIGCONT)
            kill(stopped, signal.SIGSTOP)
            await until(lambda: held.cancelled == 1)
            assert await lost.receive_some() == b""
        held.go.set()
        async with asking(server, 1) as [client]:
            assert await read_answer(client) == (200, 7)
        await until(lambda: len(set(workers_of()) - {stopped}) == 2)
    assert f"the worker {stopped} did not answer for 1 s, and is killed" in caplog.text


async def stopped_at_start():
    """A worker that takes the place of a killed one, and is stopped before it is ready."""
    before = workers_of()
    kill(before[0])
    await until(lambda: set(workers_of()) - set(before))
    [stopped] = set(workers_of()) - set(before)
    kill(stopped, signal.SIGSTOP)
    return stopped


@pytest.mark.one_loop
async def test_a_worker_that_is_stopped_before_it_is_ready_is_killed_and_replaced(
    app, impatient, monkeypatch
):
    of = "shoal.front_ends.remote_front_end"
    async with live(app, workers=2):
        with monkeypatch.context() as hurried:
            hurried.setattr(f"{of}._LOOKS_AT_START", 10)
            stopped = await stopped_at_start()
            await until(lambda: stopped not in workers_of())
        await until(lambda: len(workers_of()) == 2)


@pytest.mark.parametrize("is_ready", [True, pytest.param(False, marks=pytest.mark.one_loop)])
async def test_a_stopped_worker_does_not_hold_up_the_end(app, impatient, is_ready):
    async with live(app, workers=2, graceful_timeout_s=HANG_S) as server:
        if is_ready:
            kill(workers_of()[0], signal.SIGSTOP)
        else:
            await stopped_at_start()
        server.stop.set()
        with anyio.fail_after(HANG_S / 2):
            await until(lambda: server.drained is not None)
    assert workers_of() == []


async def test_workers_live_on_while_the_servers_event_loop_is_held(app, held, impatient):
    async with live(app, workers=2) as server:
        workers = workers_of()
        for _ in range(2):  # the second time, workers are asked
            time.sleep(1.1)  # noqa: ASYNC251 - it is held
            await anyio.sleep(0.01)
        held.go.set()
        async with asking(server, 1) as [client]:
            assert await read_answer(client) == (200, 7)
        assert workers_of() == workers


@pytest.mark.one_loop
async def test_the_memory_shared_with_a_worker_that_is_gone_is_freed_at_once(app, held):
    """Not when the garbage collector looks next, which a server at rest does not have look."""
    held.go.set()
    gc.collect()
    gc.disable()
    try:
        async with live(app, workers=1) as server:
            before = files_open()
            async with asking(server, 1, held_request(body=b"7" + b" " * 100_000)) as [client]:
                assert await read_answer(client) == (200, 7)
            [dead] = workers_of()
            kill(dead)
            await until(lambda: workers_of() not in ([], [dead]))
            async with asking(server, 1) as [client]:  # so the last one can serve
                await read_answer(client)
            assert files_open() == before
    finally:
        gc.enable()


def files_open():
    """How many files this process has open that shared memory, processes or channels take."""
    there = Path("/proc/self/fd")
    found = []
    for name in os.listdir(there):
        with suppress(OSError):  # that of the folder
            found.append(os.readlink(there / name).partition(":")[0])
    return {kind: found.count(kind) for kind in ("/memfd", "anon_inode", "socket")}


async def test_a_worker_that_is_terminated_lets_its_requests_finish(app, held):
    async with live(app, workers=1) as server:
        [old] = workers_of()
        async with asking(server, 1) as [client]:
            await until(lambda: held.batches)
            kill(old, signal.SIGTERM)
            await until(lambda: len(workers_of()) == 1)
            held.go.set()
            assert await read_answer(client) == (200, 7)
        await until(lambda: workers_of() not in ([], [old]))
        async with asking(server, 1) as [client]:
            assert await read_answer(client) == (200, 7)


async def test_a_client_that_leaves_cancels_its_request(app, held):
    async with live(app, workers=1) as server:
        async with asking(server, 1):
            await until(lambda: held.batches)
        await until(lambda: held.cancelled == 1)


@pytest.mark.one_loop
async def test_the_pages_speak_for_all_workers(app, held):
    held.go.set()
    async with live(app, workers=2) as server:
        async with asking(server, 8) as clients:
            for client in clients:
                assert await read_answer(client) == (200, 7)
        for stopped in workers_of():  # the other one answers
            kill(stopped, signal.SIGSTOP)
            received = await server.talk(request("/-/metrics", close=True))
            kill(stopped, signal.SIGCONT)
            assert (
                b'shoal_request_seconds_count{endpoint="held",outcome="ok",protocol="json"} 8.0'
                in received
            )
        assert b"200 OK" in await server.talk(request("/-/readyz", close=True))
        # The server says that its address is this machine's own.
        asked = request("/-/dashboard", close=True).replace(b"shoal.test", b"localhost")
        assert b"200 OK" in await server.talk(asked)
        document = await server.talk(request("/-/openapi.json", close=True))
        assert b'"/held"' in document
        assert counted(app) == (8, 0)


async def connections_told(server):
    """What the metrics say of connections, by the address and the end of the name."""
    received = await server.talk(request("/-/metrics", close=True))
    found = {}
    for line in received.decode().splitlines():
        name, _, value = line.partition(" ")
        metric, _, label = name.partition('{listener="')
        if label == 'main"}':
            found[metric.removeprefix("shoal_")] = float(value)
    return found


@pytest.mark.one_loop
async def test_the_connections_of_all_workers_are_counted(app, held):
    async with live(app, workers=2, max_connections=100) as server:
        dead, other = workers_of()
        kill(other, signal.SIGSTOP)
        async with asking(server, 3):
            await until(lambda: statistics(app).running + statistics(app).queued == 3)
            kill(dead, signal.SIGSTOP)
            kill(other, signal.SIGCONT)
            async with asking(server, 2) as clients:
                await until(lambda: statistics(app).running + statistics(app).queued == 5)
                kill(dead, signal.SIGCONT)
                first = await connections_told(server)
                assert first["connections"] == 6
                assert first["connection_limit"] == 100
                assert first["accepted_connections_total"] == 6
                assert first["received_bytes_total"] >= 5 * len(held_request())
                held.go.set()
                for client in clients:
                    await read_answer(client)
            kill(dead)
            await until(lambda: len(set(workers_of()) - {dead}) == 2)
            # It had the connections of three; those that it has accepted were accepted.
            while (told := await connections_told(server))["connections"] > 1:  # noqa: ASYNC110
                await anyio.sleep(0.005)
            assert told["connections"] == 1
            assert told["accepted_connections_total"] >= 7
            assert told["received_bytes_total"] > first["received_bytes_total"]
            assert told["sent_bytes_total"] > first["sent_bytes_total"]


@pytest.mark.one_loop
async def test_the_metrics_do_not_wait_long_for_a_worker_that_is_stopped(app):
    async with live(app, workers=2) as server:
        assert (await connections_told(server))["connections"] == 1
        stopped, _ = workers_of()
        kill(stopped, signal.SIGSTOP)
        try:
            told = await connections_told(server)
        finally:
            kill(stopped, signal.SIGCONT)
        assert told["accepted_connections_total"] in (1, 2)


@pytest.mark.one_loop
async def test_an_endpoint_that_is_created_while_they_serve_is_served(app, held):
    held.go.set()
    async with live(app, workers=1) as server:
        assert (await server.talk(held_request("/new", headers=CLOSE))).startswith(b"HTTP/1.1 404 ")
        await app.controller.create_endpoint("new", route="/new", methods=["POST"], backend="held")
        async with asking(server, 1, held_request("/new")) as [client]:
            assert await read_answer(client) == (200, 7)
        await app.controller.delete_endpoint("new")
        assert (await server.talk(held_request("/new", headers=CLOSE))).startswith(b"HTTP/1.1 404 ")


@pytest.mark.one_loop
async def test_bodies_of_all_sizes_come_whole_there_and_back():
    app = shoal.App()

    @app.endpoint("/echo")
    async def echo(items: list[str]) -> list[str]:
        return items

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

    async with live(app, workers=1) as server, await server.connect() as client:
        for size in (1000, 20_000, 600_000, 5_000_000):
            text = ("abcdefghijklmnopqrstuvwxyz" * (size // 26 + 1))[:size]
            for is_chunked in (False, True, False, True):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(client.send_all, sent(text, is_chunked))
                    assert await read_answer(client) == (200, text)


async def test_a_client_that_does_not_read_its_stream_holds_up_only_that(app, held):
    steps = []

    @app.endpoint("/stream", max_batch_size=1, max_concurrent_batches=4)
    async def stream(items: list[int]):
        for nth in range(items[0]):
            steps.append(nth)
            yield ["x" * 100_000]

    lines = ("Accept: application/x-ndjson",)
    held.go.set()
    async with live(app, workers=1, send_timeout_s=60) as server:
        async with asking(server, 1, held_request("/stream", b"1000", lines)) as [client]:
            await until(lambda: steps)
            before = -1
            while before != len(steps):
                before = len(steps)
                async with asking(server, 1) as [other]:
                    assert await read_answer(other) == (200, 7)
                await anyio.sleep(0.2)
            assert len(steps) < 200
            received = 0
            while received < 1000 * 100_000:
                received += len(await client.receive_some())
        assert len(steps) == 1000


async def test_a_stream_is_sent_as_it_is_made(app):
    go = {1: anyio.Event(), 2: anyio.Event()}

    @app.endpoint("/stream", max_batch_size=1)
    async def stream(items: list[int]):
        yield ["first"]
        await go[items[0]].wait()
        yield ["second"]

    async with live(app, workers=1) as server:
        for item, accept in (b"1", "text/event-stream"), (b"2", "application/x-ndjson"):
            sent = held_request("/stream", item, (f"Accept: {accept}",))
            async with asking(server, 1, sent) as [client]:
                assert b"second" not in await read_until(client, b"first")
                go[int(item)].set()
                assert b"second" in await read_until(client, b"0\r\n\r\n")


@pytest.mark.one_loop
async def test_a_silent_stream_gets_heartbeats(app):
    app = shoal.App(heartbeat_s=0.05)

    @app.endpoint("/stream")
    async def stream(items: list[int]):
        yield ["first"]
        await anyio.sleep_forever()

    sent = held_request("/stream", b"1", ("Accept: text/event-stream",))
    async with live(app, workers=1) as server, asking(server, 1, sent) as [client]:
        await read_until(client, b"first")
        await read_until(client, b":")


async def test_http2_is_spoken(app, held):
    async with live(app, workers=1) as server, http2(server) as client:
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


async def test_a_request_that_is_running_is_finished_at_the_end(app, held):
    async with live(app, workers=2) as server, asking(server, 4) as clients:
        await until(lambda: statistics(app).running + statistics(app).queued == 4)
        server.stop.set()
        await until(lambda: not held.go.is_set())
        held.go.set()
        assert [await read_answer(client) for client in clients] == [(200, 7)] * 4
    assert (server.drained.served, server.drained.cut) == (4, 0)
    assert workers_of() == []


async def test_no_client_waits_at_the_end_for_a_worker_that_has_closed_its_socket(app):
    async with live(app, workers=1) as server:
        refused = []

        def connect():
            time.sleep(1)  # the worker has closed its socket
            try:
                socket.create_connection(("127.0.0.1", server.port)).close()
            except ConnectionRefusedError:
                refused.append(True)

        other = threading.Thread(target=connect)
        other.start()
        server.stop.set()
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        other.join()  # the event loop of the server's process is held
        assert refused


async def test_a_request_that_does_not_end_is_told_so_at_the_end(app, held):
    serving = live(app, workers=1, graceful_timeout_s=0.1)
    async with serving as server, asking(server, 1) as [client]:
        await until(lambda: held.batches)
        server.stop.set()
        status, problem = await read_answer(client)
    assert (status, problem["status"]) == (503, 503)
    assert server.drained.cut == 1
    assert workers_of() == []


@pytest.mark.one_loop
async def test_workers_that_cannot_start_any_more_end_the_server(app, tmp_path, monkeypatch):
    """It does not start others for ever."""
    from shoal.commands.server import workers

    monkeypatch.setattr("shoal.front_ends.listener.random.random", lambda: 0.0)
    broken = tmp_path / "broken"
    program = (
        "import os, runpy, sys\n"
        f"if os.path.exists({os.fspath(broken)!r}): sys.exit(7)\n"
        "runpy.run_module('shoal.commands.server.front_end', run_name='__main__', alter_sys=True)\n"
    )

    start_front_ends = workers.front_ends

    def with_program(*given):
        [options] = start_front_ends(*given).args
        return partial(
            FrontEnds, replace(options, count=1, command=[sys.executable, "-c", program])
        )

    monkeypatch.setattr(workers, "front_ends", with_program)
    of_others = set(children_of(os.getpid()))
    with anyio.fail_after(HANG_S):
        async with live(app, workers=1) as server:
            broken.touch()
            [pid] = set(children_of(os.getpid())) - of_others
            kill(pid)
            await until(lambda: server.drained is not None)
    assert "exited with code 7 before it could serve" in server.drained.failure


@pytest.mark.one_loop
async def test_the_limit_of_connections_is_shared(app, held):
    async with live(app, workers=2, max_connections=2) as server, asking(server, 3):
        await until(lambda: statistics(app).running + statistics(app).queued == 2)
        await anyio.sleep(0.1)
        assert statistics(app).running + statistics(app).queued == 2


# The tasks of the server's process, which answer one request after another.


async def answered_in_turn(app, paths):
    """The statuses of requests of one client, to a server with one worker."""
    async with live(app, workers=1) as server, await server.connect() as client:
        found = []
        for path in paths:
            await client.send_all(request(path))
            found.append((await read_answer(client))[0])
    return found


@pytest.mark.one_loop
async def test_each_request_has_its_own_head_however_many_there_are():
    """More than are kept, and some that are too long to be kept; some of them twice."""

    async def app(scope, receive, send):
        if scope["type"] == "http":
            given = [scope["path"], dict(scope["headers"])[b"x-number"].decode()]
            # What it does with them concerns no other request.
            scope["headers"].clear()
            body = json.dumps(given).encode()
            length = (b"content-length", b"%d" % len(body))
            await send({"type": "http.response.start", "status": 200, "headers": [length]})
            await send({"type": "http.response.body", "body": body})

    paths = ["/" + "x" * (8000 * (nth % 100 == 0)) for nth in range(1100)]
    async with live(app, workers=1) as server, await server.connect() as client:
        for nth, path in [*enumerate(paths), *enumerate(paths[:200])]:
            await client.send_all(request(path, headers=(f"X-Number: {nth}",)))
            assert await read_answer(client) == (200, [path, str(nth)])


def not_picklable(kind):
    def refuse(_self, _protocol):
        raise TypeError

    return type("Own", (kind,), {"__slots__": (), "__reduce_ex__": refuse})


OwnBytes, OwnText, OwnPair = map(not_picklable, (bytes, str, tuple))


@pytest.mark.one_loop
async def test_an_answer_may_have_other_types_of_bytes_texts_and_numbers():
    async def app(scope, receive, send):
        if scope["type"] == "http":
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

    assert await answered_in_turn(app, ["/"] * 3) == [202] * 3


@pytest.mark.one_loop
async def test_a_websocket_message_that_cannot_be_sent_ends_nothing_else(caplog):
    async def app(scope, receive, send):
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": OwnBytes(b"x")})
        elif scope["type"] == "http":
            await send_null(send)

    async with live(app, workers=1) as server, await server.connect() as client:
        await client.send_all(upgrade())
        received = await read_until(client, b"\r\n\r\n")
        assert received.startswith(b"HTTP/1.1 101 ")
        async with asking(server, 1, request("/")) as [other]:
            assert await read_answer(other) == (200, None)
    assert "the application failed" in caplog.text


async def send_null(send):
    length = (b"content-length", b"4")
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": b"null"})


async def test_what_a_request_leaves_is_not_met_by_the_next(caplog):
    user = ContextVar("user", default="nobody")
    met = []

    async def app(scope, receive, send):
        if scope["type"] == "http":
            met.append(user.get())
            user.set(scope["path"])
            await anyio.lowlevel.checkpoint()
            if scope["path"] == "/leave":
                left = anyio.CancelScope()
                left.__enter__()
                left.cancel()
            if scope["path"] == "/fail":
                raise ValueError
            await send_null(send)

    paths = ["/leave", "/", "/leave", "/leave", "/", "/fail", "/", "/fail", "/"]
    async with live(app, workers=1) as server:
        for path in paths:
            received = await server.talk(request(path, close=True))
            assert received.startswith(b"HTTP/1.1 %d " % (500 if path == "/fail" else 200))
    assert met == ["nobody"] * len(paths)
