"""An `App` on other servers, and mounted in another application: processes as users start them."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

HERE = Path(__file__).parent
HANG_S = 20

SERVERS = {
    "hypercorn on trio": ("hypercorn", "-k", "trio", "-b", "127.0.0.1:{port}", "{module}:app"),
    "hypercorn on asyncio": (
        *("hypercorn", "-k", "asyncio", "-b", "127.0.0.1:{port}", "{module}:app"),
    ),
    "uvicorn": ("uvicorn", "--port", "{port}", "{module}:app"),
    "granian": ("granian", "--interface", "asgi", "--port", "{port}", "{module}:app"),
    "shoal, mounted": ("shoal", "serve", "--port", "{port}", "{module}:site"),
    "uvicorn, mounted": ("uvicorn", "--port", "{port}", "{module}:site"),
}
# What a server's command exits with after SIGTERM, where that is not 0.
EXIT_CODES = {"uvicorn": -signal.SIGTERM, "uvicorn, mounted": -signal.SIGTERM}


class Served:
    """An application in a process.

    Attributes:
        url: Its URL.
        process: The process that the command has started.
    """

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

    def post(self, path, item):
        return httpx.post(f"{self.url}{path}", json=item, timeout=HANG_S)


@contextmanager
def serving(name, module="served_app"):
    with socket.socket() as reserved:
        # Until a socket listens at the port, both can be bound to it, and no other test gets it.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        words = [word.format(port=port, module=module) for word in SERVERS[name]]
        # A session of its own, since some commands start processes that outlive them when killed.
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
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


@pytest.fixture(scope="module", params=SERVERS)
def served(request):
    module = SERVERS[request.param][0]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    with serving(request.param) as running:
        yield running


def test_a_call_is_answered(served):
    assert served.post("/double", 21).json() == 42


def test_a_stream_is_read_to_its_end(served):
    name = uuid4().hex
    with httpx.stream("POST", f"{served.url}/steps", json=name, timeout=HANG_S) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "data: 1"
        served.post("/tell", name)
        assert list(lines) == ["", "data: 2", "", "event: end", "data: {}", ""]
    assert served.post("/when", f"{name} ended").json() is True


def test_a_stream_that_is_left_ends_its_handler(served):
    name = uuid4().hex
    with httpx.stream("POST", f"{served.url}/steps", json=name, timeout=HANG_S) as answer:
        assert next(answer.iter_lines()) == "data: 1"
    assert served.post("/when", f"{name} ended").json() is True


def test_requests_on_a_websocket_are_answered(served):
    name = uuid4().hex
    url = f"{served.url}/steps".replace("http", "ws", 1)
    with connect(url, subprotocols=["shoal.v1"]) as socket:
        socket.send(json.dumps({"id": 1, "item": name}))
        assert json.loads(socket.recv(HANG_S)) == {"id": 1, "next": 1}
        served.post("/tell", name)
        assert json.loads(socket.recv(HANG_S)) == {"id": 1, "next": 2}
        assert json.loads(socket.recv(HANG_S)) == {"id": 1, "end": True}


def test_a_websocket_that_is_left_ends_its_handler(served):
    name = uuid4().hex
    url = f"{served.url}/steps".replace("http", "ws", 1)
    with connect(url, subprotocols=["shoal.v1"]) as socket:
        socket.send(json.dumps({"id": 1, "item": name}))
        assert json.loads(socket.recv(HANG_S)) == {"id": 1, "next": 1}
    assert served.post("/when", f"{name} ended").json() is True


def test_a_websocket_of_another_origin_is_refused(served):
    url = f"{served.url}/steps".replace("http", "ws", 1)
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(url, subprotocols=["shoal.v1"], origin="https://evil.test"),
    ):
        pass
    assert refused.value.response.status_code == 403


def test_an_item_that_does_not_fit_is_refused(served):
    answer = served.post("/double", "two")
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_path_that_is_not_there_is_not_found(served):
    assert served.post("/nowhere", 1).status_code == 404


def test_a_signal_ends_the_process(served):
    """The last one: each server serves all tests of this file."""
    served.process.terminate()
    assert served.process.wait(HANG_S) == EXIT_CODES.get(served.name, 0)
