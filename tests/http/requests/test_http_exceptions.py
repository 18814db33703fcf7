"""An ``HTTPException`` of code carries anything: what is sent of it, in each protocol."""

import json
from functools import partial

import h2.events
import numpy as np
import pytest
from live_server import Http2Client, live, request
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response

import shoal
from handlers import ask_once
from shoal.testing.asgi import ask
from socket_in_memory import opened

FRAMING = {
    "Content-Length": "3",
    "content-length": "4",
    "Transfer-Encoding": "chunked",
    "Connection": "close, x-kept",
    "Keep-Alive": "timeout=5",
    "Proxy-Connection": "close",
    "TE": "trailers",
    "Trailer": "x-sum",
    "Upgrade": "h2c",
}
TENSOR = {"name": "items", "shape": [1], "datatype": "BYTES", "data": ["a"]}
BODIES = {
    "/m": "a",
    "/v1/completions": {"model": "m", "prompt": "a"},
    "/v2/models/m/infer": {"inputs": [TENSOR]},
}
OF_THE_BODY = {"Content-Type": "text/html", "Content-Encoding": "gzip", "X-Request-ID": "mine"}


class Odd(HTTPException):
    """An exception whose attributes are what a test says, which its constructor may refuse."""

    def __init__(self, status_code=404, detail="", headers=None):
        self.status_code = status_code
        self.detail = detail
        self.headers = headers


class Opaque:
    """What JSON can't have."""

    def __repr__(self):
        return "opaque"


def failing_app(make, **options):
    """An application with an endpoint and a stream that fail by what `make` returns."""
    app = shoal.App(protocols=["openai", "oip"], **options)

    @app.endpoint("/m", name="m", methods=("GET", "POST"))
    async def refuse(items: list[str]) -> list[str]:
        raise make()

    @app.endpoint("/s", name="s")
    async def stream(items: list[str]):
        if items[0] == "late":
            yield ["first"]
        raise make()

    return app


async def ask_as_json(app, path="/m", accept="application/json"):
    answer = await ask(app, path, "a", headers=[("accept", accept)])
    return answer.status, answer.json().get("detail")


async def read_a_stream(kind, app):
    answer = await ask(app, "/s", "late", headers=[("accept", kind)])
    assert answer.status == 200
    last = answer.body.strip().splitlines()[-1].removeprefix(b"data: ")
    error = json.loads(last)
    error = error.get("error", error)
    return error["status"], error.get("detail")


async def ask_on_a_websocket(item, path, app):
    async with opened(app, path) as socket:
        socket.say(id=1, item=item)
        message = await socket.read()
        while "error" not in message:
            message = await socket.read()
        return message["error"]["status"], message["error"].get("detail")


def text_of(message):
    detail = message.partition(": ")[2]
    try:
        return json.loads(detail)
    except ValueError:
        return detail or None


async def ask_openai(path, asked, app):
    answer = await ask(app, path, {"model": "m", **asked})
    return answer.status, text_of(answer.json()["error"]["message"])


async def ask_oip(app):
    answer = await ask(app, "/v2/models/m/infer", {"inputs": [TENSOR]})
    return answer.status, text_of(answer.json()["error"])


WAYS = {
    "JSON": ask_as_json,
    "stream": partial(ask_as_json, path="/s", accept="application/x-ndjson"),
    "events": partial(read_a_stream, "text/event-stream"),
    "lines": partial(read_a_stream, "application/x-ndjson"),
    "WebSocket": partial(ask_on_a_websocket, "a", "/m"),
    "WebSocket stream": partial(ask_on_a_websocket, "late", "/s"),
    "completions": partial(ask_openai, "/v1/completions", {"prompt": "a"}),
    "chat": partial(
        ask_openai, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}
    ),
    "embeddings": partial(ask_openai, "/v1/embeddings", {"input": "a"}),
    "oip": ask_oip,
}


async def asked_in_all_ways(app):
    return {name: await ask_in_it(app) for name, ask_in_it in WAYS.items()}


async def statuses(app):
    return {status for status, _ in (await asked_in_all_ways(app)).values()}


DETAILS = [
    ({"code": 7, "at": ["a", None]}, {"code": 7, "at": ["a", None]}),
    ([1, "é"], [1, "é"]),
    ([], []),
    (7, 7),
    (0, 0),
    (False, False),
    (2**70, 2**70),
    (1.5, 1.5),
    (float("nan"), None),
    ({"n": np.int64(7), "a": np.arange(2)}, {"n": 7, "a": [0, 1]}),
    (None, None),
    (b"text", "text"),
    (b"\xff", None),
    (ValueError("too long"), None),
    ("lone \ud800", "lone \\ud800"),
    (Opaque(), None),
    ({"a": Opaque()}, None),
    ({"a": "\ud800"}, {"a": "\ufffd"}),
]


@pytest.mark.one_loop
async def test_a_detail_of_any_type_keeps_its_status():
    raised = []
    app = failing_app(lambda: Odd(409, raised[-1]))
    async with app.lifespan():
        for detail, shown in DETAILS:
            raised.append(detail)
            assert await asked_in_all_ways(app) == dict.fromkeys(WAYS, (409, shown))


@pytest.mark.one_loop
async def test_a_detail_that_cannot_be_written_is_named_in_the_log(caplog):
    app = failing_app(lambda: Odd(409, {1, Opaque()}))
    async with app.lifespan():
        assert await ask_as_json(app) == (409, None)
    assert "the detail of an HTTPException can't be written as JSON: set" in caplog.text


@pytest.mark.one_loop
async def test_a_status_that_no_refusal_has_is_an_internal_error(caplog):
    raised = []
    app = failing_app(lambda: Odd(raised[-1], "x"))
    async with app.lifespan():
        for status in (None, "404", 404.5, True, -1, 0, 99, 101, 200, 204, 600, 1000):
            raised.append(status)
            assert await statuses(app) == {500}
            assert f"a status from 300 to 599, not {status!r}" in caplog.text
        errors = sum(one.errors for one in app.controller.endpoints.values())
        assert errors == len(raised) * len(WAYS)


class Bare(HTTPException):
    def __init__(self):
        pass


class Broken(HTTPException):
    @property
    def headers(self):
        raise KeyError("headers")

    @headers.setter
    def headers(self, value):
        pass


class Mute(Exception):
    def __str__(self):
        raise KeyError("no text")


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "make", [Bare, partial(Broken, 404), Mute, partial(ValueError, "lone \ud800")], ids=ascii
)
async def test_an_exception_that_can_not_be_shown_is_an_internal_error(make):
    app = failing_app(make, debug=True)
    async with app.lifespan():
        assert await statuses(app) == {500}


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_has_none(status):
    app = failing_app(lambda: HTTPException(304, headers={"ETag": '"1"'}))

    @app.endpoint("/r", methods=("GET",))
    async def respond(items: list[bytes]) -> list[Response]:
        return [Response(b"text", status, {"ETag": '"1"'}, "text/plain")]

    async with app.lifespan():
        for path in ("/m", "/r"):
            answer = await ask(app, path, method="GET" if path == "/r" else "POST", item="a")
            assert answer.status in (status, 304)
            assert answer.body == b""
            assert answer.headers["etag"] == '"1"'
            assert "content-length" not in answer.headers


@pytest.mark.one_loop
@pytest.mark.parametrize("given", [None, {"Retry-After": "7"}])
async def test_only_the_code_says_when_to_retry_a_status_that_it_chose(given):
    app = failing_app(lambda: HTTPException(503, headers=given))
    async with app.lifespan():
        for path in BODIES:
            answer = await ask(app, path, BODIES[path])
            assert answer.status == 503
            assert answer.headers.get("retry-after") == (given and "7")


HEADERS = [
    ({"Retry-After": 5}, {"retry-after": "5"}),
    ({"x-a": 1.5}, {"x-a": "1.5"}),
    ({b"x-a": b"1"}, {"x-a": "1"}),
    ({"x-a": None, "x-b": "2"}, {"x-b": "2"}),
    ({"x-a": ["1"], "x-b": "2"}, {"x-b": "2"}),
    ({1: "1", "x-b": "2"}, {"x-b": "2"}),
    ([("x-a", "1"), (b"x-b", b"2")], {"x-a": "1", "x-b": "2"}),
    (MutableHeaders({"x-a": "1"}), {"x-a": "1"}),
    ({}, {}),
    ({**FRAMING, **OF_THE_BODY, "x-kept": "1"}, {"x-kept": "1"}),
]


@pytest.mark.one_loop
@pytest.mark.parametrize("path", BODIES)
async def test_headers_are_sent_as_far_as_they_can_be(path):
    raised = []
    app = failing_app(lambda: Odd(404, "x", raised[-1]))
    async with app.lifespan():
        for headers, sent in HEADERS:
            raised.append(headers)
            answer = await ask(app, path, BODIES[path])
            assert answer.status == 404
            found = dict(answer.headers)
            assert found.pop("x-request-id") != "mine"
            assert found.pop("content-type").startswith("application/")
            assert int(found.pop("content-length")) == len(answer.body)
            assert found == sent


@pytest.mark.one_loop
async def test_headers_that_are_none_are_an_internal_error(caplog):
    raised = []
    app = failing_app(lambda: Odd(404, "x", raised[-1]))
    async with app.lifespan():
        for headers in (5, "x-a: 1", [1], {"x-a": "1\r\nx-b: 2"}, {"": "1"}, [("a",)]):
            raised.append(headers)
            caplog.clear()
            assert await statuses(app) == {500}
            assert "header" in caplog.text


@pytest.mark.one_loop
async def test_a_mounted_application_may_raise_one_too(app):
    async def bare(scope, receive, send):
        raise Odd(409, {"code": 7}, {"Retry-After": 5, "Content-Length": "3"})

    app.mount("/bare", bare)
    answer = await ask_once(app, "/bare", "a")
    assert (answer.status, answer.json()["detail"]) == (409, {"code": 7})
    assert answer.headers["retry-after"] == "5"
    assert int(answer.headers["content-length"]) == len(answer.body)


@pytest.mark.one_loop
async def test_a_websocket_has_the_seconds_after_which_to_retry():
    raised = []
    app = failing_app(lambda: Odd(503, "x", {"Retry-After": raised[-1]}))
    async with app.lifespan(), opened(app, "/m") as socket:
        for after, told in (("9" * 5000, None), ("5", 5), (5, 5), ("soon", None)):
            raised.append(after)
            socket.say(id=1, item="a")
            assert (await socket.read())["error"].get("retry_after_s") == told


def app_with_framing_headers():
    app = failing_app(lambda: HTTPException(404, "gone", FRAMING | OF_THE_BODY))

    @app.endpoint("/r", methods=("GET",))
    async def respond(items: list[bytes]) -> list[Response]:
        response = Response(b"text", media_type="text/plain")
        for name, value in FRAMING.items():
            response.raw_headers.append((name.encode(), value.encode()))
        response.raw_headers.append(("x-text", 5))
        return [response] * len(items)

    return app


@pytest.mark.real_time
async def test_framing_headers_of_code_are_never_sent():
    async with live(app_with_framing_headers()) as server:
        for way in (*BODIES, "/r"):
            body = json.dumps(BODIES[way]).encode() if way in BODIES else b""
            await assert_without_framing(server, way, "POST" if body else "GET", body)


async def assert_without_framing(server, way, method, body):
    answer = await server.talk(request(way, method=method, body=body, close=True))
    lines, _, content = answer.partition(b"\r\n\r\n")
    names = [line.partition(b":")[0].lower() for line in lines.split(b"\r\n")[1:]]
    assert len(names) == len(set(names))
    assert not {b"transfer-encoding", b"keep-alive", b"te", b"trailer", b"upgrade"} & {*names}
    assert b"content-length: %d" % len(content) in lines
    client = Http2Client(await server.connect())
    client.ask(way.encode(), method=method.encode(), body=body)
    await client.flush()
    found = [name for name, _ in (await client.wait_for(h2.events.ResponseReceived)).headers]
    assert len(found) == len(set(found))
    assert not {b"connection", b"keep-alive", b"te", b"trailer", b"upgrade"} & {*found}
    await client.stream.aclose()


@pytest.mark.one_loop
async def test_a_response_with_a_status_that_there_is_not_is_an_internal_error(caplog, app):
    given = []

    @app.endpoint("/r", methods=("GET",))
    async def respond(items: list[bytes]) -> list[Response]:
        response = Response(b"text")
        response.status_code = given[-1]
        return [response]

    async with app.lifespan():
        for status in (None, "200", 99, 101, 600, 1000):
            given.append(status)
            assert (await ask(app, "/r", method="GET")).status == 500
            assert f"a status from 200 to 599, not {status!r}" in caplog.text


@pytest.mark.one_loop
async def test_a_response_of_no_media_type_is_sent_as_bytes(app):
    @app.endpoint("/r", methods=("GET",))
    async def respond(items: list[bytes]) -> list[Response]:
        return [Response(b"text")]

    answer = await ask_once(app, "/r", method="GET")
    assert answer.headers["content-type"] == "application/octet-stream"
