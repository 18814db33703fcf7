"""What the workers of ``shoal serve --workers`` serve, as a server without them does.

All of it is over TLS, and behind a middleware that runs in the server's process.
"""

import json
import ssl
from contextlib import closing
from functools import partial
from http.client import HTTPSConnection
from types import SimpleNamespace

import httpx
import pytest
from processes import Terminal
from websockets.sync.client import connect

from certificates import new_certificate
from time_limits import HANG_S
from worker_processes import workers_of

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

KEY = {"x-key": "k"}
HANDSHAKE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-version": "13",
}


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
def ask(served):
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


both_versions = pytest.mark.parametrize("version", ["1.1", "2"])


@both_versions
def test_requests_and_streams_are_answered_over_tls(ask, version):
    answer = ask("POST", "/double", b"4", version)
    assert (answer.http_version, answer.status_code) == (f"HTTP/{version}", 200)
    assert answer.json() == 8
    assert ask("POST", "/double", b'"x"', version).status_code == 422
    assert ask("POST", "/double", b"4" + b" " * 300_000, version).json() == 8
    stream = ask("POST", "/count", b"3", version, {"accept": "application/x-ndjson"})
    assert stream.headers["content-type"] == "application/x-ndjson; charset=utf-8"
    *items, end = map(json.loads, stream.text.splitlines())
    assert (items, end) == ([{"item": 0}, {"item": 1}, {"item": 2}], {"end": True})


@both_versions
def test_middleware_sees_a_request_as_its_client_made_it_and_may_refuse_it(served, ask, version):
    answer = ask("POST", "/double?a=b%20c", b"4", version)
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
    refused = ask("POST", "/double", b"4", version, without=KEY)
    assert (refused.status_code, refused.json()) == (401, {"title": "Send a key"})
    assert refused.headers["x-by"] == "guard"


@both_versions
def test_a_mounted_site_is_served_behind_the_same_middleware(served, ask, version):
    path = "/site/about/eel%20%C3%A9?a=1"
    answer = ask("POST", path, b"text", version, {"user-agent": "test"})
    assert (answer.status_code, answer.headers["x-own"]) == (202, "page")
    assert answer.json() == {
        "url": f"{served.url}/site/about/eel é?a=1",  # as Starlette writes it
        "name": "eel é",
        "agent": "test",
        "body": "text",
    }
    assert json.loads(answer.headers["x-read"])["process"] == served.pid
    parts = ask("GET", "/site/parts", version=version)
    assert (parts.text, "content-length" in parts.headers) == ("abc", False)
    failed = ask("GET", "/site/failing", version=version)
    assert (failed.status_code, failed.text) == (500, "Internal Server Error")
    assert ask("GET", "/site/nowhere", version=version).status_code == 404
    refused = ask("GET", "/site/parts", version=version, without=KEY)
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
