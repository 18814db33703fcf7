"""Workers that end while the server starts: real processes, which are killed."""

import os
import signal
import sys
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest
import sniffio
from held_app import statistics
from live_server import LiveServer, request

from shoal.asgi.http_options import HttpOptions
from shoal.commands.server.process import WORKER
from shoal.front_ends.listener import FrontEnds, front_ends
from shoal.replicas.process import worker
from shoal.server.run import WorkersFailed
from shoal.server.server import serve
from time_limits import HANG_S
from worker_processes import children_of, kill, until, workers_of

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

OPTIONS = HttpOptions(port=0, allowed_hosts=["*"])


class Loading:
    """An application that is loaded for as long as it is told."""

    def __init__(self, app):
        self.app = app
        self.goes_on = anyio.Event()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await self.goes_on.wait()
        await self.app(scope, receive, send)


def dying_workers(count, program):
    own = "runpy.run_module('shoal.commands.server.front_end', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", f"import os, runpy, signal\n{program}\n{own}"]
    given = WORKER, count, OPTIONS, sniffio.current_async_library(), "error"
    return partial(front_ends(*given), command=command)


KILL_IT = "os.kill(os.getpid(), signal.SIGKILL)"


@asynccontextmanager
async def loading(app):
    """A server that waits for its application, which `goes_on`."""
    server, loads = LiveServer(2), Loading(app)
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            is_up = anyio.Event()

            async def run():
                await tasks.start(partial(server.run, loads, OPTIONS))
                is_up.set()

            tasks.start_soon(run)
            await until(lambda: len(workers_of()) == 2)
            yield server, loads, is_up
            server.stop.set()


async def is_served(app, held, server):
    held.go.set()
    answer = await server.talk(request("/held", method="POST", body=b"7", close=True))
    assert answer.endswith(b"\r\n\r\n7")
    assert statistics(app).finished == 1


async def test_workers_killed_while_the_application_loads_are_replaced(held_app, held):
    async with loading(held_app) as (server, loads, is_up):
        first = workers_of()
        for pid in first:
            kill(pid)
        await until(lambda: len(set(workers_of()) - set(first)) == 2)
        loads.goes_on.set()
        await is_up.wait()
        await is_served(held_app, held, server)
        await until(lambda: len(workers_of()) == 2)
        assert not set(first) & set(workers_of())


@pytest.mark.one_loop
async def test_a_worker_killed_before_it_is_ready_is_replaced(held_app, held, tmp_path):
    once = os.fspath(tmp_path / "once")
    program = f"try: os.mkdir({once!r})\nexcept FileExistsError: pass\nelse: {KILL_IT}"
    server = LiveServer()
    server._front_ends = lambda _: dying_workers(2, program)
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            await tasks.start(partial(server.run, held_app, OPTIONS))
            await is_served(held_app, held, server)
            server.stop.set()


async def test_one_that_is_killed_each_time_it_starts_ends_the_server(
    held_app, tmp_path, monkeypatch
):
    """Also if another one could serve: the server can't have as many as wanted."""
    monkeypatch.setattr("shoal.front_ends.listener.random.random", lambda: 0.0)
    good = os.fspath(tmp_path / "good")
    program = f"try: os.mkdir({good!r})\nexcept FileExistsError: {KILL_IT}"
    of_others = set(children_of(os.getpid()))
    with (
        anyio.fail_after(HANG_S),
        pytest.raises(WorkersFailed, match="was killed by SIGKILL before it could serve"),
    ):
        await serve(
            held_app, OPTIONS, shutdown=anyio.sleep_forever, front_ends=dying_workers(2, program)
        )
    await until(lambda: not set(children_of(os.getpid())) - of_others)


@pytest.mark.one_loop
async def test_a_worker_whose_program_is_not_there_ends_the_server_with_a_reason(held_app):
    given = front_ends(WORKER, 1, OPTIONS, sniffio.current_async_library(), "error")
    absent = partial(given, command=["/absent/python"])
    with pytest.raises(WorkersFailed, match="a worker can't be started: No such file"):
        await serve(held_app, OPTIONS, shutdown=anyio.sleep_forever, front_ends=absent)


@pytest.mark.one_loop
async def test_a_server_that_is_shut_down_while_it_starts_kills_stopped_workers(
    held_app, monkeypatch
):
    monkeypatch.setattr("shoal.front_ends.listener._LOOK_S", HANG_S)  # nothing else kills them
    stopping = anyio.Event()

    def stop(_front_ends, worker):
        os.kill(worker.pid, signal.SIGSTOP)
        stopping.set()

    monkeypatch.setattr(FrontEnds, "_serve_by", stop)  # once a worker is ready
    with anyio.fail_after(HANG_S):
        drained = await serve(
            Loading(held_app),
            OPTIONS,
            shutdown=stopping.wait,
            front_ends=dying_workers(1, ""),
        )
    assert not drained.started
    assert workers_of() == []


async def test_a_cancelled_server_ends_stopped_workers_where_there_is_no_pidfd(
    held_app, monkeypatch
):
    monkeypatch.setattr(worker, "_pidfd", lambda _: None)
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            await tasks.start(partial(LiveServer(2).run, held_app, OPTIONS))
            for pid in workers_of():
                os.kill(pid, signal.SIGSTOP)
            tasks.cancel_scope.cancel()
    assert workers_of() == []
