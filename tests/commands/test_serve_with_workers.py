"""``--workers``: the command line, signals, the ends of the processes, and what workers serve.

Workers serve as a server without them does: over TLS, and behind a middleware that runs in the
server's process.
"""

import json
import os
import signal
import socket
import ssl
import time
import urllib.error
import urllib.request
from contextlib import closing, contextmanager, suppress
from functools import partial
from http.client import HTTPSConnection
from types import SimpleNamespace

import httpx
import pytest
from processes import Terminal, accepts, ask, end_of
from websockets.sync.client import connect

from certificates import new_certificate
from progress_lines import first_line
from time_limits import HANG_S
from worker_processes import children_of, is_worker, workers_of

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

APP = """\
import anyio
import shoal

app = shoal.App()


@app.endpoint("/double")
async def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


@app.endpoint("/wait")
async def wait(items: list[float]) -> list[float]:
    await anyio.sleep(items[0])
    return items
"""
SERVED = "code:app"
KEY = {"x-key": "k"}
HANDSHAKE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-version": "13",
}
ONGOING = 'shoal_replica_running_requests{backend="wait",replica="wait#0"}'
both_versions = pytest.mark.parametrize("version", ["1.1", "2"])


@pytest.fixture
def directory(terminal):
    (terminal.directory / "code.py").write_text(APP)
    return terminal.directory


@contextmanager
def asked_meanwhile(port, item):
    """A client that waits for its answer; the server has its request."""
    body = str(item)
    head = "POST /wait HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port), HANG_S) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        until(lambda: f"{ONGOING} 1.0" in metrics(port))
        yield client


def metrics(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/metrics", timeout=HANG_S) as answer:
        return answer.read().decode()


def read_all(client):
    with client.makefile("rb") as received:
        return received.read()


def until(is_so):
    ends = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_a_signal_drains_all(serving, loop):
    with serving("--workers", "2", "--event-loop", loop) as (process, port):
        assert ask(port, "/double", 4) == (200, 8)
        workers = workers_of(process.pid)
        assert len(workers) == 2
        with asked_meanwhile(port, 1) as client:
            process.send_signal(signal.SIGTERM)
            assert read_all(client).endswith(b"1.0")
        said = end_of(process)
    assert "Shoal served " in said
    assert " finished, 0 cut off" in said
    assert not any(map(is_worker, workers))


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_a_second_signal_ends_all_at_once(serving, loop):
    with serving("--workers", "1", "--event-loop", loop) as (process, port):
        workers = workers_of(process.pid)
        with asked_meanwhile(port, 10):
            process.send_signal(signal.SIGINT)
            until(lambda: not accepts(port))
            end_of(process, signal.SIGINT, code=128 + signal.SIGINT)
            until(lambda: not any(map(is_worker, workers)))


def test_workers_end_with_a_server_that_is_killed_and_refuse_its_requests(serving):
    with serving("--workers", "1") as (process, port):
        workers = workers_of(process.pid)
        with asked_meanwhile(port, 10) as client:
            process.kill()
            assert_is_refused(read_all(client))
        until(lambda: not any(map(is_worker, workers)))
        _, said = process.communicate(timeout=HANG_S)
        assert "the server's process has ended, and its worker ends as well" in said


def assert_is_refused(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert lines[0] == "http/1.1 503 service unavailable"
    assert "retry-after: 1" in lines
    assert json.loads(body)["type"] == "urn:shoal:problem:closed"


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_requests_that_come_after_the_kill_are_refused_at_once(serving, loop):
    body = b"4"
    sent = (
        b"POST /double HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    with serving("--workers", "1", "--event-loop", loop) as (process, port):
        [worker] = workers_of(process.pid)
        with socket.create_connection(("127.0.0.1", port), HANG_S) as client:
            client.sendall(sent)
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
            os.kill(worker, signal.SIGSTOP)  # so that it learns of both at once
            process.kill()
            process.wait(HANG_S)
            client.sendall(sent)
            os.kill(worker, signal.SIGCONT)
            assert_is_refused(read_all(client))


def test_ctrl_c_of_a_terminal_is_for_the_server(terminal, directory):
    """It reaches all processes of the terminal's group."""
    process = terminal.popen(
        "serve", "code:app", "--port", "0", "--workers", "1", start_new_session=True
    )
    try:
        assert first_line(process.stderr).startswith("Shoal serving ")
        os.killpg(process.pid, signal.SIGINT)
        said = end_of(process)
        assert "Traceback" not in said
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_file_says_how_many_a_token_opens_the_admin_api_and_a_command_stops_all(
    terminal, directory
):
    text = '[server]\nport = 0\nworkers = 2\n[backends.b]\ncode = "code:double"\n[endpoints.b]\n'
    (directory / "app.toml").write_text(text + 'route = "/b"\nbackend = "b"\n')
    (directory / "token").write_text("s3cret-s3cret-s3cret")
    (directory / "token").chmod(0o600)
    with terminal.serving("start", "app.toml", "--token-file", "token") as (process, port):
        assert ask(port, "/b", 4) == (200, 8)
        workers = workers_of(process.pid)
        assert len(workers) == 2
        url = f"http://127.0.0.1:{port}/-/api/backends"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, timeout=HANG_S)
        bearer = {"authorization": "Bearer s3cret-s3cret-s3cret"}
        asked = urllib.request.Request(url, headers=bearer)
        with urllib.request.urlopen(asked, timeout=HANG_S) as answer:
            assert '"b"' in answer.read().decode()
        terminal.told_here("stop")
        end_of(process)
    assert not any(map(is_worker, workers))


def test_a_version_that_is_reloaded_has_its_workers(terminal, directory):
    arguments = ["--reload", "--workers", "1"]
    with terminal.serving("serve", "code:app", "--port", "0", *arguments) as (process, port):
        assert ask(port, "/double", 4) == (200, 8)
        [version] = [one for one in children_of(process.pid) if workers_of(one)]
        workers = workers_of(version)
        end_of(process, signal.SIGTERM)
    assert not any(map(is_worker, workers))


def test_a_worker_whose_certificate_is_gone_says_so_in_a_line(serving, directory):
    files = new_certificate(directory)
    given = ("--certfile", files["certfile"], "--keyfile", files["keyfile"])
    with serving("--workers", "1", *given) as (process, _):
        os.unlink(files["certfile"])
        [worker] = workers_of(process.pid)
        os.kill(worker, signal.SIGKILL)
        said = end_of(process, code=1)
    assert "Traceback" not in said
    assert f"shoal: a worker can't use the certificate in {files['certfile']}" in said
    assert "a worker exited with code 1 before it could serve" in said


@pytest.fixture(scope="module", params=["trio", "asyncio"])
def served(tmp_path_factory, request):
    """A server with two workers: its process, port and URL, and whom its clients trust."""
    folder = tmp_path_factory.mktemp("served")
    files = new_certificate(folder)
    given = ["--workers", "2", "--event-loop", request.param, "--port", "0"]
    given += ["--certfile", files["certfile"], "--keyfile", files["keyfile"]]
    with (
        closing(Terminal(folder)) as terminal,
        terminal.serving("serve", "guarded_site:app", *given) as (process, port),
    ):
        assert len(workers_of(process.pid)) == 2
        # A new one for each client, which notes there what it speaks.
        tls = partial(ssl.create_default_context, cafile=files["certfile"])
        url = f"https://localhost:{port}"
        yield SimpleNamespace(pid=process.pid, port=port, url=url, tls=tls)


@pytest.fixture
def ask_guarded(served):
    def ask(method, path, body=b"", version="1.1", headers=(), without=()):
        sent = {"content-type": "application/json", **KEY, **dict(headers)}
        sent = {name: value for name, value in sent.items() if name not in without}
        is_2 = version == "2"
        with httpx.Client(verify=served.tls(), timeout=HANG_S, http2=is_2) as client:
            return client.request(method, served.url + path, content=body, headers=sent)

    return ask


@pytest.fixture
def talk(served):
    """Makes requests on one WebSocket; returns the messages of each."""

    def talk(path, *items):
        url = served.url.replace("https", "wss") + path
        options = {"additional_headers": KEY, "subprotocols": ["shoal.v1"], "ssl": served.tls()}
        found = {number: [] for number in range(len(items))}
        with connect(url, **options) as socket:
            for number, item in enumerate(items):
                socket.send(json.dumps({"id": number, "item": item}))
            left = set(found)
            while left:
                message = json.loads(socket.recv(HANG_S))
                number = message.pop("id")
                found[number].append(message)
                if "next" not in message:
                    left.remove(number)
        return list(found.values())

    return talk


def refusal_of(served, path, headers):
    """The answer to a handshake that is refused: its status and its body."""
    connection = HTTPSConnection("localhost", served.port, context=served.tls(), timeout=HANG_S)
    try:
        connection.request("GET", path, headers={**HANDSHAKE, **headers})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@both_versions
def test_requests_and_streams_are_answered_over_tls(ask_guarded, version):
    answer = ask_guarded("POST", "/double", b"4", version)
    assert (answer.http_version, answer.status_code) == (f"HTTP/{version}", 200)
    assert answer.json() == 8
    assert ask_guarded("POST", "/double", b'"x"', version).status_code == 422
    assert ask_guarded("POST", "/double", b"4" + b" " * 300_000, version).json() == 8
    stream = ask_guarded("POST", "/count", b"3", version, {"accept": "application/x-ndjson"})
    assert stream.headers["content-type"] == "application/x-ndjson; charset=utf-8"
    *items, end = map(json.loads, stream.text.splitlines())
    assert (items, end) == ([{"item": 0}, {"item": 1}, {"item": 2}], {"end": True})


@both_versions
def test_middleware_sees_a_request_as_its_client_made_it_and_may_refuse_it(
    served, ask_guarded, version
):
    answer = ask_guarded("POST", "/double?a=b%20c", b"4", version)
    assert answer.json() == 8
    read = json.loads(answer.headers["x-read"])
    host, port = read.pop("client")
    assert host in ("127.0.0.1", "::1")
    assert port > 0
    assert read == {
        "type": "http",
        "scheme": "https",
        "http_version": version,
        "method": "POST",
        "path": "/double",
        "query_string": "a=b%20c",
        "process": served.pid,
    }
    refused = ask_guarded("POST", "/double", b"4", version, without=KEY)
    assert (refused.status_code, refused.json()) == (401, {"title": "Send a key"})
    assert refused.headers["x-by"] == "guard"


@both_versions
def test_a_mounted_site_is_served_behind_the_same_middleware(served, ask_guarded, version):
    path = "/site/about/eel%20%C3%A9?a=1"
    answer = ask_guarded("POST", path, b"text", version, {"user-agent": "test"})
    assert (answer.status_code, answer.headers["x-own"]) == (202, "page")
    assert answer.json() == {
        "url": f"{served.url}/site/about/eel é?a=1",  # as Starlette writes it
        "name": "eel é",
        "agent": "test",
        "body": "text",
    }
    assert json.loads(answer.headers["x-read"])["process"] == served.pid
    parts = ask_guarded("GET", "/site/parts", version=version)
    assert (parts.text, "content-length" in parts.headers) == ("abc", False)
    failed = ask_guarded("GET", "/site/failing", version=version)
    assert (failed.status_code, failed.text) == (500, "Internal Server Error")
    assert ask_guarded("GET", "/site/nowhere", version=version).status_code == 404
    refused = ask_guarded("GET", "/site/parts", version=version, without=KEY)
    assert (refused.status_code, refused.headers["x-by"]) == (401, "guard")


def test_a_websocket_carries_calls_and_streams(talk):
    *results, failed = talk("/double", *range(20), "x")
    assert results == [[{"result": 2 * item}] for item in range(20)]
    assert failed[0]["error"]["status"] == 422
    one, other = talk("/count", 3, 200)
    assert one == [{"next": 0}, {"next": 1}, {"next": 2}, {"end": True}]
    assert other == [*({"next": step} for step in range(200)), {"end": True}]
    assert talk("/site/squares", 5) == [[{"result": ["/site/squares", "wss", 25]}]]


def test_a_websocket_is_refused_with_a_status_and_a_reason(served):
    ours, other = ({**KEY, "sec-websocket-protocol": name} for name in ("shoal.v1", "other"))
    status, problem = refusal_of(served, "/double", other)
    assert (status, problem["type"]) == (400, "urn:shoal:problem:no-such-subprotocol")
    status, problem = refusal_of(served, "/nowhere", ours)
    assert (status, problem["type"]) == (404, "urn:shoal:problem:not-found")
    del ours["x-key"]
    assert refusal_of(served, "/double", ours) == (401, {"title": "Send a key"})
