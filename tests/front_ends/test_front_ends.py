"""A server with workers that speak HTTP for it: real processes, real sockets, one batcher."""

import gc
import os
import re
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import pytest
from held_app import counted, statistics
from held_requests import asking, held_request, read_answer
from live_server import live, read_until, request

from handlers import app_of
from time_limits import HANG_S
from worker_processes import children_of, kill, until, workers_of

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


async def test_batches_are_as_large_with_many_workers_as_with_one(held_app, held):
    """The mean batch is the same, since there is one queue; of many, each would have a part."""
    async with live(held_app, workers=2) as server, asking(server, 1):
        await until(lambda: held.batches)
        async with asking(server, 32) as clients:
            await until(lambda: statistics(held_app).queued == 32)
            held.go.set()
            assert [await read_answer(client) for client in clients] == [(200, 7)] * 32
    assert [len(batch) for batch in held.batches] == [1, 32]


async def test_a_killed_worker_is_replaced_and_its_requests_are_cancelled(held_app, held):
    async with live(held_app, workers=2) as server:
        dead, other = workers_of()
        kill(other, signal.SIGSTOP)  # so that this one accepts the clients
        async with asking(server, 3) as lost:
            await until(lambda: statistics(held_app).running + statistics(held_app).queued == 3)
            kill(other, signal.SIGCONT)
            kill(dead)
            await until(lambda: statistics(held_app).queued == 0 and held.cancelled == 1)
            assert await lost[0].receive_some() == b""
        # Others go on, and another worker takes the place of the dead one.
        held.go.set()
        async with asking(server, 1) as [client]:
            assert await read_answer(client) == (200, 7)
        await until(lambda: len(set(workers_of()) - {dead}) == 2)
        assert other in workers_of()


@pytest.fixture
def impatient(monkeypatch):
    of = "shoal.front_ends.listener"
    monkeypatch.setattr(f"{of}._ASKED_EVERY_S", 0.05)
    monkeypatch.setattr(f"{of}._LOOK_S", 0.1)


async def test_a_stopped_worker_is_killed_and_replaced(held_app, held, impatient, caplog):
    async with live(held_app, workers=2) as server:
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
async def test_a_worker_stopped_before_it_is_ready_is_replaced(held_app, impatient, monkeypatch):
    of = "shoal.front_ends.listener"
    async with live(held_app, workers=2):
        with monkeypatch.context() as hurried:
            hurried.setattr(f"{of}._LOOKS_AT_START", 10)
            stopped = await stopped_at_start()
            await until(lambda: stopped not in workers_of())
        await until(lambda: len(workers_of()) == 2)


@pytest.mark.one_loop
@pytest.mark.parametrize("is_ready", [True, False])
async def test_a_stopped_worker_does_not_hold_up_the_end(held_app, impatient, is_ready):
    async with live(held_app, workers=2, graceful_timeout_s=HANG_S) as server:
        if is_ready:
            kill(workers_of()[0], signal.SIGSTOP)
        else:
            await stopped_at_start()
        server.stop.set()
        with anyio.fail_after(HANG_S / 2):
            await until(lambda: server.drained is not None)
    assert workers_of() == []


@pytest.mark.one_loop
async def test_a_stopped_worker_is_killed_when_the_time_for_requests_is_over(held_app, monkeypatch):
    monkeypatch.setattr("shoal.front_ends.listener._LOOK_S", HANG_S)  # nothing else kills it
    async with live(held_app, workers=1, graceful_timeout_s=0.05) as server:
        [stopped] = workers_of()
        kill(stopped, signal.SIGSTOP)
    assert server.drained is not None
    assert workers_of() == []


async def test_workers_live_on_while_the_servers_event_loop_is_held(held_app, held, impatient):
    async with live(held_app, workers=2) as server:
        workers = workers_of()
        for _ in range(2):  # the second time, workers are asked
            time.sleep(1.1)  # noqa: ASYNC251 - it is held
            await anyio.sleep(0.01)
        held.go.set()
        async with asking(server, 1) as [client]:
            assert await read_answer(client) == (200, 7)
        assert workers_of() == workers


@pytest.mark.one_loop
async def test_the_memory_shared_with_a_worker_that_is_gone_is_freed_at_once(held_app, held):
    """Not when the garbage collector looks next, which a server at rest does not have look."""
    held.go.set()
    gc.collect()
    gc.disable()
    try:
        async with live(held_app, workers=1) as server:
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


async def test_a_worker_that_is_terminated_lets_its_requests_finish(held_app, held):
    async with live(held_app, workers=1) as server:
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


@pytest.mark.one_loop
async def test_each_worker_serves_and_its_pages_speak_for_all_though_one_is_stopped(held_app, held):
    held.go.set()
    async with live(held_app, workers=2) as server:
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
        assert counted(held_app) == (8, 0)


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
async def test_the_connections_of_all_workers_are_counted(held_app, held):
    async with live(held_app, workers=2, max_connections=100) as server:
        dead, other = workers_of()
        kill(other, signal.SIGSTOP)
        async with asking(server, 3):
            await until(lambda: statistics(held_app).running + statistics(held_app).queued == 3)
            kill(dead, signal.SIGSTOP)
            kill(other, signal.SIGCONT)
            async with asking(server, 2) as clients:
                await until(lambda: statistics(held_app).running + statistics(held_app).queued == 5)
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


async def test_a_request_that_is_running_is_finished_at_the_end(held_app, held):
    async with live(held_app, workers=2) as server, asking(server, 4) as clients:
        await until(lambda: statistics(held_app).running + statistics(held_app).queued == 4)
        server.stop.set()
        await until(lambda: not held.go.is_set())
        held.go.set()
        assert [await read_answer(client) for client in clients] == [(200, 7)] * 4
    assert (server.drained.served, server.drained.cut) == (4, 0)
    assert workers_of() == []


async def test_no_client_waits_at_the_end_for_a_worker_that_has_closed_its_socket(held_app):
    async with live(held_app, workers=1) as server:
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


async def test_a_request_that_does_not_end_is_told_so_at_the_end(held_app, held):
    serving = live(held_app, workers=1, graceful_timeout_s=0.1)
    async with serving as server, asking(server, 1) as [client]:
        await until(lambda: held.batches)
        server.stop.set()
        status, problem = await read_answer(client)
    assert (status, problem["status"]) == (503, 503)
    assert server.drained.cut == 1
    assert workers_of() == []


@pytest.mark.one_loop
async def test_workers_that_cannot_start_any_more_end_the_server(held_app, tmp_path, monkeypatch):
    """It does not start others for ever."""
    from shoal.front_ends import listener

    monkeypatch.setattr("shoal.front_ends.listener.random.random", lambda: 0.0)
    broken = tmp_path / "broken"
    program = (
        "import os, runpy, sys\n"
        f"if os.path.exists({os.fspath(broken)!r}): sys.exit(7)\n"
        "runpy.run_module('shoal.commands.server.front_end', run_name='__main__', alter_sys=True)\n"
    )

    start_front_ends = listener.front_ends

    def with_program(*given):
        return partial(start_front_ends(*given), count=1, command=[sys.executable, "-c", program])

    monkeypatch.setattr(listener, "front_ends", with_program)
    of_others = set(children_of(os.getpid()))
    with anyio.fail_after(HANG_S):
        async with live(held_app, workers=1) as server:
            broken.touch()
            [pid] = set(children_of(os.getpid())) - of_others
            kill(pid)
            await until(lambda: server.drained is not None)
    assert "exited with code 7 before it could serve" in server.drained.failure


@pytest.mark.one_loop
async def test_the_limit_of_connections_is_shared(held_app, held):
    async with live(held_app, workers=2, max_connections=2) as server, asking(server, 3):
        await until(lambda: statistics(held_app).running + statistics(held_app).queued == 2)
        await anyio.sleep(0.1)
        assert statistics(held_app).running + statistics(held_app).queued == 2


SIZE = 64 * 2**20


def memory_of(pid):
    """The memory of a process, without what it shares, in bytes."""
    return 1024 * int(re.search(r"RssAnon:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read in /proc")
@pytest.mark.parametrize(
    "middleware",
    [
        pytest.param((), id="direct"),
        pytest.param((lambda app: app,), id="by ASGI", marks=pytest.mark.one_loop),
    ],
)
async def test_a_large_answer_to_a_client_that_does_not_read_is_held_once(middleware):
    large = bytes(SIZE)

    async def whole(items: list[int]) -> list[bytes]:
        return [large for _ in items]

    app = app_of(whole, "/whole", settings={"middleware": middleware})
    async with live(app, workers=1, send_timeout_s=20) as server, await server.connect() as client:
        await client.send_all(request("/-/healthz"))
        await read_until(client, b"alive")
        [worker] = workers_of()
        before = memory_of(worker)
        await client.send_all(request("/whole", method="POST", body=b"1"))
        await read_until(client, b"\r\n\r\n")
        # What it takes beside that does not grow with the answer.
        assert memory_of(worker) - before < 1.25 * SIZE
