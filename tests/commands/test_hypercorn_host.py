"""`shoal serve --server hypercorn`: an application on stock Hypercorn, on both event loops."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from processes import HANG_S, Terminal
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import shoal
from certificates import new_certificate
from shoal.serving.app_file.file import read_app_file

pytestmark = pytest.mark.real_time

APP = str(Path(__file__).parents[1] / "http" / "served_app.py")
LOOPS = ["trio", "asyncio"]


def on(loop):
    return "serve", APP, "--server", "hypercorn", "--event-loop", loop, "--port", "0"


class Served:
    """A server of the tests that leave it as it was."""

    def __init__(self, port, admin):
        self.url = f"http://127.0.0.1:{port}"
        self.admin = admin

    def post(self, path, item, **headers):
        return httpx.post(f"{self.url}{path}", json=item, headers=headers, timeout=HANG_S)

    def stream(self, path, item, **headers):
        url = f"{self.url}{path}"
        return httpx.stream("POST", url, json=item, headers=headers, timeout=HANG_S)

    def socket(self, path, **options):
        url = f"{self.url}{path}".replace("http", "ws", 1)
        return connect(url, subprotocols=["shoal.v1"], **options)


@pytest.fixture(scope="module", params=LOOPS)
def served(request, tmp_path_factory):
    terminal = Terminal(tmp_path_factory.mktemp(request.param))
    admin = str(terminal.directory / "admin.sock")
    with terminal.serving(*on(request.param), "--admin-socket", admin, hang_s=60) as (_, port):
        yield Served(port, admin)
    terminal.close()


def test_a_call_is_answered(served):
    answer = served.post("/double", 21)
    assert (answer.status_code, answer.json()) == (200, 42)
    assert served.post("/double", "two").status_code == 422


def test_concurrent_callers_share_a_batch(served):
    with ThreadPoolExecutor(4) as callers:
        sizes = [callers.submit(served.post, "/together", n) for n in range(4)]
        assert [size.result().json() for size in sizes] == [4] * 4


@pytest.mark.parametrize(
    ("media_type", "lines"),
    [
        (
            "text/event-stream",
            ["data: 1", "", "data: 2", "", "event: end", "data: {}", ""],
        ),
        ("application/x-ndjson", ['{"item":1}', '{"item":2}', '{"end":true}']),
    ],
)
def test_a_stream_is_sent_as_it_is_made(served, media_type, lines):
    name = uuid4().hex
    with served.stream("/steps", name, accept=media_type) as answer:
        assert answer.headers["content-type"].startswith(media_type)
        read = answer.iter_lines()
        first = next(read)
        served.post("/tell", name)
        assert [first, *read] == lines


def test_a_client_that_leaves_a_stream_cancels_its_call(served):
    name = uuid4().hex
    with served.stream("/steps", name) as answer:
        assert next(answer.iter_lines()) == "data: 1"
    assert served.post("/when", f"{name} ended").json() is True


def test_requests_on_a_websocket_are_answered(served):
    left, name = uuid4().hex, uuid4().hex
    with served.socket("/steps") as socket:
        socket.send(json.dumps({"id": 1, "item": name}))
        assert json.loads(socket.recv(HANG_S)) == {"id": 1, "next": 1}
        served.post("/tell", name)
        assert json.loads(socket.recv(HANG_S)) == {"id": 1, "next": 2}
        assert json.loads(socket.recv(HANG_S)) == {"id": 1, "end": True}
        socket.send(json.dumps({"id": 2, "item": left}))
        assert json.loads(socket.recv(HANG_S)) == {"id": 2, "next": 1}
    assert served.post("/when", f"{left} ended").json() is True


def test_http_2_with_prior_knowledge_is_spoken(served):
    name = uuid4().hex
    with httpx.Client(http1=False, http2=True, base_url=served.url, timeout=HANG_S) as client:
        answer = client.post("/double", json=4)
        assert (answer.http_version, answer.json()) == ("HTTP/2", 8)
        with client.stream("POST", "/steps", json=name) as stream:
            lines = stream.iter_lines()
            assert next(lines) == "data: 1"
            client.post("/tell", json=name)
            assert "data: 2" in lines

    name = uuid4().hex
    with (
        httpx.Client(http1=False, http2=True, base_url=served.url, timeout=HANG_S) as client,
        client.stream("POST", "/steps", json=name) as stream,
    ):
        assert next(stream.iter_lines()) == "data: 1"
    assert served.post("/when", f"{name} ended").json() is True


def test_other_hosts_and_origins_are_refused_at_loopback(served):
    answer = served.post("/double", 1, host="evil.test")
    assert (answer.status_code, "--allow-host" in answer.text) == (421, True)
    assert served.post("/double", 1, origin="https://evil.test").status_code == 403
    with (
        pytest.raises(InvalidStatus) as refused,
        served.socket("/steps", origin="https://evil.test"),
    ):
        pass
    assert refused.value.response.status_code == 403
    metrics = httpx.get(f"{served.url}/-/metrics").text
    counted = 'shoal_request_seconds_count{endpoint="-",outcome="invalid",protocol="other"} '
    assert counted in metrics


def test_the_admin_api_is_at_its_socket(served):
    with shoal.connect(f"unix:{served.admin}") as client:
        assert "tell" in client.status().endpoints


# The ways to end it.


def wait_until_refused(port):
    with suppress(ConnectionRefusedError):
        while True:
            with suppress(ConnectionResetError):
                socket.create_connection(("127.0.0.1", port), HANG_S).close()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_signal_lets_a_running_request_finish_over_tls(loop, terminal):
    (terminal.directory / "slow.py").write_text(
        "import anyio, shoal\n\napp = shoal.App()\n\n\n"
        '@app.endpoint("/steps")\nasync def steps(items: list[int]):\n'
        "    yield items\n    await anyio.sleep(0.5)\n    yield items\n"
    )
    files = new_certificate(terminal.directory)
    words = [word.replace(APP, "slow.py") for word in on(loop)]
    tls = "--certfile", files["certfile"], "--keyfile", files["keyfile"]
    trusted = ssl.create_default_context(cafile=files["certfile"])
    with (
        terminal.serving(*words, *tls, "--root-path", "/ml", "--access-log") as (process, port),
    ):
        url = f"https://localhost:{port}/steps"
        with httpx.Client(http2=True, verify=trusted, timeout=HANG_S) as client:
            assert client.post(url, json=1).http_version == "HTTP/2"
        with httpx.stream("POST", url, json=7, verify=trusted, timeout=HANG_S) as stream:
            lines = stream.iter_lines()
            assert next(lines) == "data: 7"
            process.send_signal(signal.SIGTERM)
            assert list(lines) == ["", "data: 7", "", "event: end", "data: {}", ""]
        _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert "Shoal served 2 requests, drained in " in said
    assert "1 finished, 0 cut off" in said
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [line["protocol"] for line in lines] == ["HTTP/2", "HTTP/1.1"]
    assert {(line["path"], line["status"]) for line in lines} == {("/ml/steps", 200)}


@pytest.mark.parametrize("loop", LOOPS)
def test_the_drain_ends_after_the_graceful_timeout(loop, terminal):
    with terminal.serving(*on(loop), "--graceful-timeout", "0.2") as (process, port):
        with ThreadPoolExecutor(1) as caller:
            held = caller.submit(Served(port, None).post, "/held", "never")
            Served(port, None).post("/when", "never runs")
            process.send_signal(signal.SIGTERM)
            assert held.result().status_code == 503
        _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert ", 1 cut off" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("loop", LOOPS)
def test_a_second_signal_ends_it_at_once(loop, terminal):
    with (
        terminal.serving(*on(loop)) as (process, port),
        Served(port, None).stream("/steps", "never") as answer,
    ):
        lines = answer.iter_lines()  # while there is this iterator, the client stays
        assert next(lines) == "data: 1"
        process.send_signal(signal.SIGTERM)
        wait_until_refused(port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 128 + signal.SIGTERM


def test_a_request_that_ends_hypercorn_ends_the_application_and_is_said(terminal):
    """If a new Hypercorn survives it, the page that compares the servers has to change."""
    handshake = (
        "GET /steps HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with (
        terminal.serving(*on("trio")) as (process, port),
        socket.create_connection(("127.0.0.1", port), HANG_S) as client,
    ):
        client.sendall(f"{handshake}x".encode())
        _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert "steps: closed, having served " in said
    assert "\nshoal: Hypercorn: LocalProtocolError(" in said


# How it is chosen.


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--workers", "2"], "--workers"),
        (["--max-connections", "10"], "--max-connections"),
        (["--send-timeout", "10"], "--send-timeout"),
        (["--head-timeout", "10"], "--head-timeout"),
    ],
)
def test_an_option_that_hypercorn_has_not_is_refused(words, option, terminal):
    code, _, said = terminal.run_here(*on("trio"), *words)
    assert code == 2
    assert f"Hypercorn has no option like {option} " in said


def test_a_file_chooses_it_and_its_other_options_are_checked_as_well(terminal):
    file = terminal.directory / "app.toml"
    text = '[server]\nserver = "hypercorn"\n[backends.small]\ncode = "driven_models:Scaler"\n'
    file.write_text(text)
    assert read_app_file(file).server == {"server": "hypercorn"}
    file.write_text(text.replace("\n[b", "\nmax_headers = 9\n[b"))
    code, _, said = terminal.run_here("serve", str(file))
    assert (code, "Hypercorn has no option like --max-headers (max_headers)" in said) == (2, True)


def test_where_hypercorn_is_not_installed_the_extra_is_named(terminal, monkeypatch):
    monkeypatch.setitem(sys.modules, "hypercorn", None)
    code, _, said = terminal.run_here(*on("trio"))
    assert code == 1
    assert "--server hypercorn needs hypercorn, which is not installed: pip install" in said
    assert "shoal[serve]" in said
