"""An `App` on each server that can run it, and mounted, in processes as users start them."""

import importlib.util
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from time_limits import HANG_S

pytestmark = pytest.mark.real_time

HERE = Path(__file__).parent

SERVERS = {
    "shoal on asyncio": "shoal serve --port {port} --event-loop asyncio served_app:app",
    "hypercorn on trio": "hypercorn -k trio -b 127.0.0.1:{port} served_app:app",
    "hypercorn on asyncio": "hypercorn -k asyncio -b 127.0.0.1:{port} served_app:app",
    "uvicorn": "uvicorn --port {port} served_app:app",
    "granian": "granian --interface asgi --port {port} served_app:app",
    "shoal, mounted": "shoal serve --port {port} served_app:site",
}
SLOW = {"hypercorn on asyncio", "granian", "shoal, mounted"}
# What a server's command exits with after SIGTERM, where that is not 0.
EXIT_CODES = {"uvicorn": -signal.SIGTERM}


class Served:
    """An application in a process."""

    def __init__(self, name, process, port):
        self.name = name
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}" + ("/ml" if "mounted" in name else "")

    def wait_started(self):
        ends_at = time.monotonic() + HANG_S
        while self.process.poll() is None and time.monotonic() < ends_at:
            with suppress(httpx.HTTPError):
                return httpx.get(f"{self.url}/-/readyz").raise_for_status()
            time.sleep(0.02)
        raise AssertionError(f"{self.name} did not start")


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=[pytest.mark.slow] * (one in SLOW)) for one in SERVERS],
)
def served(request):
    name = request.param
    module = SERVERS[name].split()[0]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    with socket.socket() as reserved:
        # Until a socket listens at the port, both can be bound to it, and no other test gets it.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        # A session of its own, since some commands start processes that outlive them when killed.
        process = subprocess.Popen(
            [sys.executable, "-m", *SERVERS[name].format(port=port).split()],
            cwd=HERE,
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )
        with process:
            try:
                served = Served(name, process, port)
                served.wait_started()
                yield served
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def client(served):
    with httpx.Client(base_url=served.url, timeout=HANG_S) as client:
        yield client


@pytest.fixture
def name():
    return uuid4().hex


@contextmanager
def raw_call(served, path, item):
    """Make a call on a socket of its own; gives the socket."""
    url = httpx.URL(served.url)
    body = json.dumps(item).encode()
    head = (
        f"POST {url.path.rstrip('/')}{path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((url.host, url.port), timeout=HANG_S) as connection:
        connection.sendall(head.encode() + body)
        yield connection


def when(client, what):
    assert client.post("/when", json=what).json() is True


def tell(client, what):
    client.post("/tell", json=what).raise_for_status()


def test_calls_are_answered_and_its_own_routes_are_there(client):
    for item in range(3):
        assert client.post("/double", json=item).json() == 2 * item
    wrong = client.post("/double", json="two")
    assert wrong.status_code == 422
    assert wrong.headers["content-type"] == "application/problem+json"
    assert client.get("/-/healthz").json() == {"status": "alive"}
    assert client.get("/-/readyz").json()["status"] == "ready"
    assert "shoal_requests_total" in client.get("/-/metrics").text
    assert client.get("/nowhere").status_code == 404


def test_concurrent_calls_share_a_batch(client):
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda item: client.post("/together", json=item), range(4)))
    assert [answer.json() for answer in answers] == [4] * 4


def test_a_stream_arrives_item_by_item(client, name):
    with client.stream("POST", "/steps", json=name) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "data: 1"
        tell(client, name)
        assert list(lines) == ["", "data: 2", "", "event: end", "data: {}", ""]
    when(client, f"{name} ended")


def test_a_connection_is_kept_over_many_streams(served, client, name):
    tell(client, name)
    limits = httpx.Limits(max_connections=1)
    accept = {"accept": "application/x-ndjson"}
    with httpx.Client(base_url=served.url, timeout=HANG_S, limits=limits, headers=accept) as one:
        one.get("/-/healthz")
        connection = one._transport._pool.connections[0]
        for _ in range(20):
            assert one.post("/steps", json=name).text.splitlines()[-1] == '{"end":true}'
        assert one._transport._pool.connections == [connection]


def test_a_client_that_leaves_cancels_its_call(served, client, name):
    with raw_call(served, "/hang", name):
        when(client, f"{name} runs")
    when(client, f"{name} ended")


@pytest.mark.parametrize("resets", [False, True])
def test_a_client_that_leaves_in_mid_stream_ends_the_generator(served, client, name, resets):
    with raw_call(served, "/steps", name) as connection:
        received = b""
        while b"data: 1" not in received:
            received += connection.recv(4096)
        if resets:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    when(client, f"{name} ended")
    assert client.post("/double", json=1).json() == 2


def test_requests_on_a_websocket_are_answered_until_it_is_left(served, client, name):
    url = f"{served.url}/steps".replace("http", "ws", 1)
    left = uuid4().hex
    with connect(url, subprotocols=["shoal.v1"]) as socket:
        socket.send(json.dumps({"id": 1, "item": name}))
        assert json.loads(socket.recv(HANG_S)) == {"id": 1, "next": 1}
        tell(client, name)
        assert json.loads(socket.recv(HANG_S)) == {"id": 1, "next": 2}
        assert json.loads(socket.recv(HANG_S)) == {"id": 1, "end": True}
        socket.send(json.dumps({"id": 2, "item": left}))
        assert json.loads(socket.recv(HANG_S)) == {"id": 2, "next": 1}
    when(client, f"{left} ended")


def test_a_websocket_of_another_origin_is_refused(served):
    url = f"{served.url}/steps".replace("http", "ws", 1)
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(url, subprotocols=["shoal.v1"], origin="https://evil.test"),
    ):
        pass
    assert refused.value.response.status_code == 403


def test_a_signal_ends_the_process(served):
    """The last one: each server serves all tests of this file."""
    served.process.terminate()
    assert served.process.wait(HANG_S) == EXIT_CODES.get(served.name, 0)
