"""An `App` on real sockets, under each server that can run it, and mounted in another app."""

import json
import re
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

pytestmark = pytest.mark.real_time

HERE = Path(__file__).parent
HANG_S = 20

COMMANDS = {
    "shoal": ["shoal", "serve", "{app}", "--port", "0"],
    "asyncio": ["shoal", "serve", "{app}", "--port", "0", "--event-loop", "asyncio"],
    # without workers: a process that is killed leaves them behind
    "hypercorn": ["hypercorn", "-w", "0", "-k", "trio", "-b", "fd://{fd}", "{app}"],
    "uvicorn": ["uvicorn", "--lifespan", "on", "--fd", "{fd}", "{app}"],
}


@contextmanager
def serving(server, app):
    """Run an app in a process of its own; gives its port."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        bound.listen()
        words = [word.format(app=app, fd=bound.fileno()) for word in COMMANDS[server]]
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=HERE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[bound.fileno()],
        )
        with process:
            try:
                if server in ("shoal", "asyncio"):
                    for line in process.stderr:
                        if found := re.search(r" on http://127\.0\.0\.1:(\d+)", line):
                            port = int(found[1])
                            break
                yield port
            finally:
                process.kill()


@pytest.fixture(
    scope="module",
    params=[
        "shoal app",
        "asyncio app",
        "hypercorn app",
        "uvicorn app",
        "shoal site",
        "uvicorn site",
    ],
)
def base(request):
    server, app = request.param.split()
    with serving(server, f"served_app:{app}") as port:
        yield f"http://127.0.0.1:{port}" + ("/ml" if app == "site" else "")


@pytest.fixture
def client(base):
    with httpx.Client(base_url=base, timeout=HANG_S) as client:
        yield client


@pytest.fixture
def name():
    return uuid4().hex


@contextmanager
def raw_call(base, path, item):
    """Make a call on a socket of its own; gives the socket."""
    url = httpx.URL(base)
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


def figures(client, endpoint):
    text = client.get("/-/metrics").text
    found = re.findall(
        rf'^shoal_(\w+){{backend="{endpoint}",method="__call__"(?:,outcome="(\w+)")?}} (.+)',
        text,
        re.MULTILINE,
    )
    return {outcome or metric: float(value) for metric, outcome, value in found}


def until(condition):
    """Ask again and again; what another process counts can't be waited for."""
    while not condition():
        pass


def test_a_call_is_answered(client):
    for item in range(3):
        assert client.post("/double", json=item).json() == 2 * item


def test_its_own_routes_are_there(client):
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


def test_a_connection_is_kept_over_many_streams(base, client, name):
    tell(client, name)
    limits = httpx.Limits(max_connections=1)
    accept = {"accept": "application/x-ndjson"}
    with httpx.Client(base_url=base, timeout=HANG_S, limits=limits, headers=accept) as one:
        one.get("/-/healthz")
        connection = one._transport._pool.connections[0]
        for _ in range(20):
            assert one.post("/steps", json=name).text.splitlines()[-1] == '{"end":true}'
        assert one._transport._pool.connections == [connection]


def test_a_client_that_leaves_the_line_never_reaches_the_handler(base, client, name):
    first, left, last = (f"{name}{number}" for number in range(3))
    with ThreadPoolExecutor(2) as threads:
        holding = threads.submit(client.post, "/held", json=first)
        when(client, f"{first} runs")
        with raw_call(base, "/held", left):
            until(lambda: figures(client, "held")["queued_requests"] == 1)
        until(lambda: figures(client, "held")["queued_requests"] == 0)
        waiting = threads.submit(client.post, "/held", json=last)
        until(lambda: figures(client, "held")["queued_requests"] == 1)
        tell(client, last)
        tell(client, first)
        assert holding.result().json() == first
        assert waiting.result().json() == last
    assert client.post("/seen", json=name).json() == [[first], [last]]


def test_a_client_that_leaves_the_handler_leaves_its_mate(base, client, name):
    cancelled = figures(client, "pair")["cancelled"]
    with ThreadPoolExecutor(1) as threads:
        mate = threads.submit(client.post, "/pair", json=f"{name}1")
        with raw_call(base, "/pair", f"{name}2"):
            when(client, f"{name} runs")
        until(lambda: figures(client, "pair")["cancelled"] == cancelled + 1)
        tell(client, name)
        assert mate.result().json() == f"{name}1"


def test_a_client_that_leaves_in_mid_stream_ends_the_generator(base, client, name):
    with raw_call(base, "/steps", name) as connection:
        received = b""
        while b"data: 1" not in received:
            received += connection.recv(4096)
    when(client, f"{name} ended")


def test_a_client_that_resets_in_mid_stream_ends_the_generator(base, client, name):
    with raw_call(base, "/steps", name) as connection:
        received = b""
        while b"data: 1" not in received:
            received += connection.recv(4096)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    when(client, f"{name} ended")
    assert client.post("/double", json=1).json() == 2
