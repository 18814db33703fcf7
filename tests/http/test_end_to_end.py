"""``shoal serve`` as a process of its own: real sockets, real signals, clients that are httpx's."""

import json
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
    """A running ``shoal serve load_app:app``."""

    def __init__(self, process):
        self.process = process
        line = first_line(process.stderr)
        found = re.fullmatch(r"Shoal serving load_app:app on (http://\S+)\n", line)
        assert found, line + process.stderr.read()
        self.url = found[1]

    def client(self, **options):
        return httpx.AsyncClient(base_url=self.url, timeout=HANG_S, **options)

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
        [sys.executable, "-m", "shoal", "serve", "load_app:app", "--port", "0", *options],
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
        async with served.client() as client, trio.open_nursery() as nursery:
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


def request(path, item, *headers):
    body = json.dumps(item)
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
        "",
        body,
    ]
    return "\r\n".join(lines).encode()


async def state(client, endpoint):
    return (await client.get("/-/readyz")).json()["endpoints"][endpoint]


async def until(client, endpoint, **counts):
    """Ask again and again until an endpoint has so many queued and running."""
    while not counts.items() <= (await state(client, endpoint)).items():
        pass


# Calls, and clients that leave.


# Requests that are refused.


# The end.


class Load:
    """Clients that ask ``/work`` again and again until they are sent away; what was answered."""

    def __init__(self, served):
        self._served = served
        self.sent = set()
        self.answered = set()
        self.is_on = trio.Event()
        self.is_ending = False

    async def keep(self):
        """Ask on one connection until told that it ends."""
        async with self._served.client(verify=False) as client:
            told = False
            while not told:
                item = self._next()
                try:
                    answer = await client.post("/work", json=item)
                except httpx.RemoteProtocolError:
                    # On a busy machine a client may take longer than a connection waits for its
                    # next request. The server has not heard of that one.
                    assert self.is_ending
                    return
                assert (answer.status_code, answer.json()) == (200, item)
                self._note(item)
                told = answer.headers.get("connection") == "close"

    async def come_again(self):
        """Ask on a connection of its own each time, until there is none to be had."""
        url = httpx.URL(self._served.url)
        while True:
            item = self._next()
            try:
                async with await trio.open_tcp_stream(url.host, url.port) as connection:
                    await connection.send_all(request("/work", item, "Connection: close"))
                    answer = b"".join([data async for data in connection])
            except OSError:
                return
            except trio.BrokenResourceError:
                # The kernel may let one in between the server's last look at who waits and the end
                # of listening, and resets it. The server has not heard of that one.
                continue
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.endswith(json.dumps(item).encode())
            self._note(item)

    def _next(self):
        item = f"item {len(self.sent)}"
        self.sent.add(item)
        return item

    def _note(self, item):
        self.answered.add(item)
        if len(self.answered) > 10 * CLIENTS:
            self.is_on.set()


BY_SIGNALS = pytest.mark.parametrize(
    ("served", "signum"),
    [("trio", signal.SIGTERM), ("asyncio", signal.SIGINT)],
    indirect=["served"],
)


@pytest.mark.slow
@BY_SIGNALS
async def test_a_signal_under_load_has_every_accepted_request_answered(served, signum):
    load = Load(served)
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(load.come_again if number % 4 == 0 else load.keep)
            await load.is_on.wait()
            load.is_ending = True
            served.signal(signum)
            await served.wait_draining()
        code, out, err = await served.end()
    assert code == 0
    assert re.search(
        r"^Shoal served \S+ requests, drained in \S+ s: \d+ finished, 0 cut off\n",
        err,
        re.MULTILINE,
    )
    report = json.loads(out[-1])
    answers = len(load.answered)
    assert sorted(report["received"]) == sorted(load.answered)
    assert report["shoal_request_seconds_count"]["ok"] == answers
    outcomes = {key: count for key, count in report["shoal_requests_total"].items() if count}
    assert outcomes == {"finished": answers}


@BY_SIGNALS
async def test_a_signal_lets_queued_and_running_requests_finish(served, signum):
    async with http_client(served) as (client, nursery):
        (await client.post("/wait-for-the-drain")).raise_for_status()
        calls = [Call(client, "/work", f"{number}") for number in range(CLIENTS)]
        for call in calls:
            nursery.start_soon(call.run)
        work = {"queued": 0, "running": 0}
        while work["queued"] + work["running"] < CLIENTS:
            work = await state(client, "work")
        assert work["queued"] > 0
        served.signal(signum)
    code, out, err = await served.end()
    assert code == 0
    assert [call.answer.json() for call in calls] == [f"{number}" for number in range(CLIENTS)]
    assert {call.answer.headers.get("connection") for call in calls} == {"close"}
    assert f": {CLIENTS} finished, 0 cut off\n" in err
    served_in_all = re.search(r"^Shoal served ([\d,]+) requests, ", err, re.MULTILINE)
    assert int(served_in_all[1].replace(",", "")) >= CLIENTS
    assert json.loads(out[-1])["shoal_request_seconds_count"]["ok"] == CLIENTS


async def test_a_second_signal_ends_at_once(served):
    async with http_client(served) as (client, nursery):
        calls = [Call(client, "/held", f"{number}") for number in range(2)]
        for call in calls:
            nursery.start_soon(call.run)
        await until(client, "held", running=1, queued=1)
        served.signal(signal.SIGTERM)
        await served.wait_draining()
        served.signal(signal.SIGTERM)
    code, out, err = await served.end()
    assert (code, out, err) == (128 + signal.SIGTERM, [], "")
    assert all(isinstance(call.answer, httpx.TransportError) for call in calls)


async def test_readiness_turns_503_while_draining(served):
    """A stream that begins before the drain and ends in it; on its connection readyz is next."""
    probe = b"GET /-/readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    url = httpx.URL(served.url)
    with trio.fail_after(HANG_S):
        async with await trio.open_tcp_stream(url.host, url.port) as connection:
            await connection.send_all(request("/steps", "draining"))
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
