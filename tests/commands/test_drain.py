"""The end of `shoal serve`, with requests of an application under way, on each event loop."""

import itertools
import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import ask, end_of

from time_limits import HANG_S
from worker_processes import children_of

pytestmark = pytest.mark.real_time

CLIENTS = 8
APP = """\
from collections.abc import AsyncIterator

import anyio
import shoal

draining = anyio.Event()


class DrainedApp(shoal.App):
    def begin_drain(self) -> None:
        super().begin_drain()
        draining.set()


app = DrainedApp()


@app.endpoint("/work", name="work", max_batch_size=2)
async def work(items: list[str]) -> list[str]:
    await draining.wait()
    return items


@app.endpoint("/steps", name="steps", max_batch_size=1)
async def steps(names: list[str]) -> AsyncIterator[list[str]]:
    yield names
    await draining.wait()
    yield names
"""


WITH_PROCESSES = """\
import time

import shoal

app = shoal.App()


class Work:
    def __call__(self, items: list[int]) -> list[int]:
        time.sleep(0.01)
        with open("ran", "a") as ran:
            ran.write("".join(f"{item}\\n" for item in items))
        return items


app.backend("work", Work, placement="process", num_replicas=2, max_batch_size=4)
app.route("work", backend="work", path="/work")
"""


@pytest.fixture(params=["trio", "asyncio"])
def served(terminal, request):
    (terminal.directory / "drained.py").write_text(APP)
    command = ("serve", "drained:app", "--port", "0", "--event-loop", request.param)
    with terminal.serving(*command) as (process, port):
        yield process, port


def until_some_run(port):
    """Asks until all requests are there, and some of them run; gives how many are queued."""
    while True:
        work = ask(port, "/-/readyz")[1]["endpoints"]["work"]
        if work["running"] and work["queued"] + work["running"] == CLIENTS:
            return work["queued"]


def test_a_signal_lets_queued_and_running_requests_finish(served):
    process, port = served
    with ThreadPoolExecutor(CLIENTS) as threads:
        answers = [threads.submit(ask, port, "/work", f"{nth}") for nth in range(CLIENTS)]
        assert until_some_run(port) > 0
        process.send_signal(signal.SIGTERM)
        assert [one.result() for one in answers] == [(200, f"{nth}") for nth in range(CLIENTS)]
    said = end_of(process)
    assert f": {CLIENTS} finished, 0 cut off\n" in said
    total = re.search(r"^Shoal served ([\d,]+) requests, ", said, re.MULTILINE)[1]
    assert int(total.replace(",", "")) >= CLIENTS


def test_readiness_turns_503_while_draining(served):
    """The next request on the connection of a stream that ends in the drain asks for readiness."""
    process, port = served
    head = b"POST /steps HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port), HANG_S) as client:
        client.sendall(head + b'Content-Length: 3\r\n\r\n"a"')
        talk = b""
        while b"data: " not in talk:
            talk += client.recv(2**16)
        client.sendall(b"GET /-/readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        process.send_signal(signal.SIGTERM)
        with client.makefile("rb") as rest:
            talk += rest.read()
    stream, _, readiness = talk.partition(b"event: end")
    assert stream.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 503" in readiness
    assert b'"status":"draining"' in readiness
    _, said = process.communicate(timeout=HANG_S)
    assert (process.returncode, said.count("2 finished, 0 cut off")) == (0, 1)


def test_under_load_each_request_that_was_taken_runs_once_and_no_replica_is_left(terminal):
    (terminal.directory / "loaded.py").write_text(WITH_PROCESSES)
    numbers, answered, is_warm = itertools.count(), [], threading.Event()

    def call_on(port):
        while True:
            number = next(numbers)
            try:
                assert ask(port, "/work", number) == (200, number)
            except OSError as error:  # it could not connect any more
                return error
            answered.append(number)
            if number > 4 * CLIENTS:
                is_warm.set()

    with terminal.serving("serve", "loaded:app", "--port", "0") as (process, port):
        with ThreadPoolExecutor(CLIENTS) as threads:
            ends = [threads.submit(call_on, port) for _ in range(CLIENTS)]
            assert is_warm.wait(HANG_S)
            replicas = children_of(process.pid)
            process.send_signal(signal.SIGTERM)
            kinds = {type(end.result()) for end in ends}
        process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert kinds <= {ConnectionRefusedError, ConnectionResetError}
    assert len(replicas) == 2
    assert not any(map(is_running, replicas))
    ran = (terminal.directory / "ran").read_text().split()
    assert sorted(map(int, ran)) == sorted(answered)


def is_running(pid):
    """Whether there is a process, and not only its name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
