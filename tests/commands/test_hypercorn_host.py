"""``--server hypercorn``: the same application on stock Hypercorn, as users start it."""

import asyncio
import http.client
import json
import signal
import socket
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from processes import Terminal, end_of
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from certificates import new_certificate
from shoal.serving.app_file.server import NOT_ON_HYPERCORN
from time_limits import HANG_S

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

# Its clients can wait for what happens in it, by /when.
APP = str(Path(__file__).parents[1] / "http" / "served_app.py")
LOOPS = ["trio", "asyncio"]

STARTING = """\
import sys

import anyio
import shoal


class Model:
    async def warm_up(self) -> None:
        print("it starts", flush=True)
        await anyio.sleep({sleep_s})
        raise RuntimeError("no weights")

    async def __call__(self, items: list[int]) -> list[int]:
        return items


app = shoal.App()
app.endpoint("/e")(Model)
"""


class Served:
    def __init__(self, process, url):
        self.process = process
        self.url = url
        self.port = int(url.rpartition(":")[2])

    def post(self, path, item):
        return httpx.post(f"{self.url}{path}", json=item, timeout=HANG_S)

    def websocket(self, path, **options):
        return connect(f"ws://127.0.0.1:{self.port}{path}", subprotocols=["shoal.v1"], **options)

    def end(self, signum=signal.SIGTERM, code=0):
        """Waits for its end, which a signal may ask for; gives what it said."""
        return end_of(self.process, signum, code)


@contextmanager
def serving(terminal, loop, *arguments, app=APP):
    given = ("--server", "hypercorn", "--event-loop", loop, "--port", "0", *arguments)
    by = rf" \(Hypercorn 0\..* on {loop}\)"
    with terminal.serving("serve", app, *given, by=by) as (process, port):
        scheme = "https" if "--certfile" in arguments else "http"
        yield Served(process, f"{scheme}://127.0.0.1:{port}")


@pytest.fixture(scope="module", params=LOOPS)
def served(request, tmp_path_factory):
    terminal = Terminal(tmp_path_factory.mktemp("served"))
    try:
        # A drain may last as long as the interval, if a WebSocket has just ended.
        given = ("--access-log", "--ping-interval", "0.2")
        with serving(terminal, request.param, *given) as running:
            yield running
    finally:
        terminal.close()


@pytest.fixture
def http2(served):
    with httpx.Client(base_url=served.url, http1=False, http2=True, timeout=HANG_S) as client:
        yield client


@pytest.mark.parametrize(
    ("accepted", "lines"),
    [
        ("text/event-stream", ["data: 1", "", "data: 2", "", "event: end", "data: {}", ""]),
        ("application/x-ndjson", ['{"item":1}', '{"item":2}', '{"end":true}']),
    ],
)
def test_a_stream_is_sent_as_it_is_made(accepted, lines, served):
    name = uuid4().hex
    asked = {"json": name, "headers": {"accept": accepted}, "timeout": HANG_S}
    with httpx.stream("POST", f"{served.url}/steps", **asked) as answer:
        assert answer.headers["content-type"].startswith(accepted)
        read = answer.iter_lines()
        assert next(read) == lines[0]
        served.post("/tell", name)
        assert list(read) == lines[1:]


def test_requests_on_a_websocket_are_answered(served):
    name = uuid4().hex
    with served.websocket("/steps") as client:
        client.send(json.dumps({"id": 1, "item": name}))
        assert json.loads(client.recv(HANG_S)) == {"id": 1, "next": 1}
        served.post("/tell", name)
        assert json.loads(client.recv(HANG_S)) == {"id": 1, "next": 2}
        assert json.loads(client.recv(HANG_S)) == {"id": 1, "end": True}


def test_requests_share_a_connection_of_http2(served):
    answers = asyncio.run(four_at_once_over_http2(served.url))
    assert [answer.json() for answer in answers] == [4] * 4
    assert {answer.http_version for answer in answers} == {"HTTP/2"}


async def four_at_once_over_http2(url):
    """By tasks: threads that share a connection of httpcore may send their heads out of order."""
    async with httpx.AsyncClient(http1=False, http2=True, timeout=HANG_S) as client:
        posts = [client.post(f"{url}/together", json=item) for item in range(4)]
        return await asyncio.gather(*posts)


def test_a_request_may_be_refused_before_its_body_has_come(served, http2):
    for path, status in [("/nowhere", 404), ("/double", 415)]:
        large = http2.post(path, content=b"x" * 100_000, headers={"content-type": "text/plain"})
        assert large.status_code == status
    assert http2.post("/double", json=21).json() == 42


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/2"])
def test_a_client_that_leaves_a_stream_ends_its_call(version, served):
    name, is_2 = uuid4().hex, version == "HTTP/2"
    with (
        httpx.Client(http1=not is_2, http2=is_2, timeout=HANG_S) as client,
        client.stream("POST", f"{served.url}/steps", json=name) as answer,
    ):
        assert answer.http_version == version
        assert next(answer.iter_lines()) == "data: 1"
    assert served.post("/when", f"{name} ended").json() is True


def test_a_client_that_leaves_a_websocket_ends_its_call(served):
    name = uuid4().hex
    with served.websocket("/steps") as client:
        client.send(json.dumps({"id": 1, "item": name}))
        assert json.loads(client.recv(HANG_S)) == {"id": 1, "next": 1}
    assert served.post("/when", f"{name} ended").json() is True


def test_pages_of_strangers_are_refused_at_a_loopback_address(served, http2):
    def status(client, **headers):
        response = client.post("/double", json=1, headers=headers)
        if not response.is_success:
            assert response.headers["content-type"] == "application/problem+json"
            problem = response.json()
            assert list(problem) == ["type", "title", "status", "detail"]
            assert problem["status"] == response.status_code
        return response.status_code

    with httpx.Client(base_url=served.url, timeout=HANG_S) as http1:
        for client in (http1, http2):
            assert status(client, host="evil.test") == 421
            assert status(client, origin="https://evil.test") == 403
            assert status(client, origin=served.url) == 200
    with pytest.raises(InvalidStatus) as refused, served.websocket("/steps", origin="http://e"):
        pass
    assert refused.value.response.status_code == 403
    assert refused.value.response.headers["content-type"] == "application/problem+json"


def test_a_signal_lets_running_requests_finish(served):
    """The last test of each server."""
    name = uuid4().hex
    with (
        socket.create_connection(("127.0.0.1", served.port), HANG_S) as idle,
        httpx.Client() as kept,
    ):
        kept.get(f"{served.url}/-/healthz")
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(served.post, "/held", name)
            assert served.post("/when", f"{name} runs").json() is True
            stream = httpx.stream("POST", f"{served.url}/steps", json=name, timeout=HANG_S)
            with stream as streamed:
                lines = streamed.iter_lines()
                assert next(lines) == "data: 1"
                with half_sent(served, "/tell", name) as send_rest:
                    served.process.send_signal(signal.SIGTERM)
                    assert idle.recv(1) == b""
                    assert send_rest().status == 200
                assert list(lines)[-2] == "data: {}"
            assert answer.result().json() == name
    said = served.end(None)
    assert said.endswith(" finished, 0 cut off\n")
    logged = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert {(one["protocol"], one["status"]) for one in logged} >= {
        *(("HTTP/1.1", 200), ("HTTP/2", 200), ("WebSocket", 101)),
        *(("HTTP/1.1", 421), ("HTTP/2", 403), ("WebSocket", 403)),
    }


@contextmanager
def half_sent(served, path, item):
    """Sends a request without its last byte; gives the function that sends that."""
    body = json.dumps(item).encode()
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=HANG_S)
    with closing(connection):
        connection.putrequest("POST", path)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body[:-1])

        def send_rest():
            connection.send(body[-1:])
            return connection.getresponse()

        yield send_rest


@pytest.mark.parametrize("loop", LOOPS)
def test_requests_that_outlast_the_drain_are_cut_off(loop, terminal):
    files = new_certificate(terminal.directory)
    given = ("--certfile", files["certfile"], "--keyfile", files["keyfile"])
    to_1, to_2 = (ssl.create_default_context(cafile=files["certfile"]) for _ in range(2))
    options = {"subprotocols": ["shoal.v1"], "ssl": to_1}
    with (
        serving(terminal, loop, *given, "--graceful-timeout", "0.5") as served,
        ThreadPoolExecutor(1) as threads,
        httpx.Client(base_url=served.url, verify=to_1, timeout=HANG_S) as client,
        connect(f"wss://127.0.0.1:{served.port}/double", **options) as idle,
    ):
        with httpx.Client(base_url=served.url, http2=True, verify=to_2) as http2:
            assert http2.post("/double", json=21).http_version == "HTTP/2"
        answer = threads.submit(client.post, "/held", json="held")
        assert client.post("/when", json="held runs").json() is True
        said = served.end()
        assert answer.result(HANG_S).status_code == 503
        with pytest.raises(ConnectionClosed) as closed:
            idle.recv(HANG_S)
        assert closed.value.rcvd.code == 1012
    assert said.rstrip().rpartition("Shoal served ")[2].endswith(" finished, 2 cut off")


@pytest.mark.parametrize("loop", LOOPS)
def test_the_second_signal_ends_it_at_once(loop, terminal):
    with serving(terminal, loop) as served, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(served.post, "/held", "held")
        assert served.post("/when", "held runs").json() is True
        with socket.create_connection(("127.0.0.1", served.port), HANG_S) as idle:
            served.process.send_signal(signal.SIGINT)
            assert idle.recv(1) == b""
        served.end(code=128 + signal.SIGTERM)
        with pytest.raises(httpx.RemoteProtocolError):
            answer.result()


def test_an_application_that_does_not_start_ends_the_command(terminal):
    (terminal.directory / "starting.py").write_text(STARTING.format(sleep_s=0))
    code, _, said = terminal.run("serve", "starting.py", "--port", "0", "--server", "hypercorn")
    assert code == 1
    assert said.splitlines()[-1].startswith("shoal: the application did not start: ")
    assert "no weights" in said


def test_a_signal_while_it_loads_ends_it(terminal):
    (terminal.directory / "starting.py").write_text(STARTING.format(sleep_s=HANG_S))
    process = terminal.popen("serve", "starting.py", "--port", "0", "--server", "hypercorn")
    try:
        assert process.stdout.readline() == "it starts\n"
        said = end_of(process, signal.SIGTERM, code=128 + signal.SIGTERM)
    finally:
        process.kill()
    assert said.endswith("Shoal was stopped before it had started\n")


def test_an_address_in_use_is_told(terminal):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        said = terminal.failed("serve", APP, "--port", port, "--server", "hypercorn")
    assert said == f"shoal: can't listen at 127.0.0.1 port {port}: Address already in use\n"


def test_hosts_proxies_and_the_admin_socket_are_as_on_our_own_server(terminal):
    given = ("--admin-socket", "admin.sock", "--allow-host", "a.test", "--access-log")
    proxy = ("--trusted-peer", "127.0.0.1", "--root-path", "/ml", "--ping-interval", "0.2")
    with serving(terminal, "trio", *given, *proxy) as served:
        url = f"unix:{terminal.directory}/admin.sock"
        assert "double" in terminal.told_here("status", "--url", url)
        headers = {"host": "a.test", "x-forwarded-for": "203.0.113.9"}
        with httpx.Client(base_url=served.url, headers=headers) as client:
            assert client.get("/-/api/status").status_code == 404
            assert client.post("/double", json=21).json() == 42
        to_it = socket.create_connection(("127.0.0.1", served.port), HANG_S)
        with connect("ws://a.test/double", subprotocols=["shoal.v1"], sock=to_it) as client:
            client.send(json.dumps({"id": 1, "item": 21}))
            assert json.loads(client.recv(HANG_S)) == {"id": 1, "result": 42}
        said = served.end()
    logged = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert ("203.0.113.9:0", "/ml/double") in [(one["client"], one["path"]) for one in logged]


def test_a_crash_of_hypercorn_is_told(terminal):
    """Its trio worker ends with the error of any connection; if one day it does not, be glad."""
    upgrade = (
        "GET /double HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nx"
    )
    with serving(terminal, "trio") as served, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(served.post, "/held", "held")
        assert served.post("/when", "held runs").json() is True
        with socket.create_connection(("127.0.0.1", served.port), HANG_S) as client:
            client.sendall(upgrade.encode())
            client.recv(1)
        said = served.end(None, code=1)
        with pytest.raises(httpx.RemoteProtocolError):
            answer.result()
    assert ": 0 finished, 1 cut off\nshoal: Hypercorn has ended: " in said


@pytest.mark.parametrize("name", NOT_ON_HYPERCORN)
def test_options_that_it_does_not_have_are_refused(name, terminal):
    flag = f"--{name.removesuffix('_s').replace('_', '-')}"
    said = terminal.failed_here("serve", APP, "--server", "hypercorn", flag, "7", code=2)
    reason = "is an option of Shoal's own server; leave it out, or --server hypercorn"
    assert said == f"shoal: {flag} {reason}\n"


def test_a_file_may_name_the_server(terminal):
    file = terminal.directory / "app.toml"
    code = '[backends.b]\ncode = "models:double"\n[endpoints.b]\nroute = "/b"\nbackend = "b"\n'
    (terminal.directory / "models.py").write_text("def double(x: int) -> int:\n    return 2 * x\n")
    file.write_text(f'[server]\nserver = "hypercorn"\nmax_headers = 9\n{code}')
    said = terminal.failed_here("serve", "app.toml", code=2)
    assert said == (
        "shoal: max_headers under [server] is an option of Shoal's own server; leave it out, or "
        'server = "hypercorn"\n'
    )
    file.write_text(f'[server]\nserver = "hypercorn"\n{code}')
    with serving(terminal, "asyncio", app="app.toml") as served:
        assert served.post("/b", 21).json() == 42
    file.write_text(f'[server]\nserver = "uvicorn"\n{code}')
    _, _, said = terminal.run_here("serve", "app.toml")
    assert "server must be 'shoal' or 'hypercorn', not 'uvicorn'" in said


def test_without_hypercorn_its_extra_is_named(terminal, monkeypatch):
    monkeypatch.setitem(sys.modules, "hypercorn", None)
    said = terminal.failed_here("serve", APP, "--server", "hypercorn")
    assert said == (
        "shoal: --server hypercorn needs hypercorn, which is not installed: "
        "pip install 'shoal[serve]'\n"
    )
