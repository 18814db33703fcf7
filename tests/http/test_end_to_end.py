"""``shoal serve`` as a process of its own: real sockets, real signals, clients that are httpx's."""

import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest
import trio

from progress_lines import first_line

pytestmark = [pytest.mark.trio, pytest.mark.real_time]

HERE = Path(__file__).parent
HANG_S = 15
CLIENTS = 32
LOOPS = ["trio", "asyncio"]


class Served:
    """A running ``shoal serve drained_app:app``."""

    def __init__(self, process):
        self.process = process
        line = first_line(process.stderr)
        found = re.fullmatch(r"Shoal serving drained_app:app on (http://\S+)\n", line)
        assert found, line + process.stderr.read()
        self.url = found[1]

    def signal(self, signum):
        self.process.send_signal(signum)

    async def wait_draining(self):
        line = await trio.to_thread.run_sync(self.process.stdout.readline)
        assert line == "draining\n"

    async def end(self):
        """Wait for its end; gives the exit code, and what it said on both ways."""
        out, err = await trio.to_thread.run_sync(self.process.communicate)
        return self.process.returncode, out.splitlines(), err


@contextmanager
def serving(*options):
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal", "serve", "drained_app:app", "--port", "0", *options],
        cwd=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Served(process)
        finally:
            process.kill()


@pytest.fixture(params=LOOPS)
def served(request):
    with serving("--event-loop", request.param) as served:
        yield served


@asynccontextmanager
async def http_client(served):
    """A client, and a nursery for what it does at once."""
    with trio.fail_after(HANG_S):
        async with (
            httpx.AsyncClient(base_url=served.url, timeout=HANG_S) as client,
            trio.open_nursery() as nursery,
        ):
            yield client, nursery


class Call:
    """One request; its answer, or the error that took its place."""

    def __init__(self, client, path, item):
        self._asked = (client, path, item)
        self.answer = None

    async def run(self):
        client, path, item = self._asked
        try:
            self.answer = await client.post(path, json=item)
        except httpx.TransportError as error:
            self.answer = error


async def until_there(client, endpoint, count):
    """Ask again and again until so many requests are queued or running; says how many."""
    queued = running = 0
    while queued + running < count:
        state = (await client.get("/-/readyz")).json()["endpoints"][endpoint]
        queued, running = state["queued"], state["running"]
    return queued, running


BY_SIGNALS = pytest.mark.parametrize(
    ("served", "signum"),
    [("trio", signal.SIGTERM), ("asyncio", signal.SIGINT)],
    indirect=["served"],
)


@BY_SIGNALS
async def test_a_signal_lets_queued_and_running_requests_finish(served, signum):
    async with http_client(served) as (client, nursery):
        calls = [Call(client, "/work", f"{number}") for number in range(CLIENTS)]
        for call in calls:
            nursery.start_soon(call.run)
        queued, running = await until_there(client, "work", CLIENTS)
        assert queued > 0 < running
        served.signal(signum)
    code, _, err = await served.end()
    assert code == 0
    assert [call.answer.json() for call in calls] == [f"{number}" for number in range(CLIENTS)]
    assert {call.answer.headers.get("connection") for call in calls} == {"close"}
    assert f": {CLIENTS} finished, 0 cut off\n" in err
    served_in_all = re.search(r"^Shoal served ([\d,]+) requests, ", err, re.MULTILINE)
    assert int(served_in_all[1].replace(",", "")) >= CLIENTS


async def test_a_second_signal_ends_at_once(served):
    async with http_client(served) as (client, nursery):
        calls = [Call(client, "/held", f"{number}") for number in range(2)]
        for call in calls:
            nursery.start_soon(call.run)
        await until_there(client, "held", 2)
        served.signal(signal.SIGTERM)
        await served.wait_draining()
        served.signal(signal.SIGTERM)
    code, out, err = await served.end()
    assert (code, out, err) == (128 + signal.SIGTERM, [], "")
    assert all(isinstance(call.answer, httpx.TransportError) for call in calls)


async def test_readiness_turns_503_while_draining(served):
    """A stream that begins before the drain and ends in it; on its connection readyz is next."""
    probe = b"GET /-/readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"POST /steps HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    asked = head + b'Content-Length: 3\r\n\r\n"a"'
    url = httpx.URL(served.url)
    with trio.fail_after(HANG_S):
        async with await trio.open_tcp_stream(url.host, url.port) as connection:
            await connection.send_all(asked)
            talk = b""
            while b"data: " not in talk:
                talk += await connection.receive_some()
            await connection.send_all(probe)
            served.signal(signal.SIGTERM)
            async for data in connection:
                talk += data
        code, _, err = await served.end()
    stream, _, readiness = talk.partition(b"event: end")
    assert stream.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 503" in readiness
    assert b'"status":"draining"' in readiness
    assert (code, err.count("2 finished, 0 cut off")) == (0, 1)
