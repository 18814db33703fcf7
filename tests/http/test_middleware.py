"""Middleware before the endpoints of an App and around one, and the callers that it finds out."""

import logging

import anyio
import pytest
from live_server import Http2Client, live, request
from openai_app import COMPLETIONS, HI, events, text_of
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware

import shoal
from handlers import ask_once, asking, double
from shoal.http.app.middleware import within
from shoal.testing.asgi import Call, ask
from socket_in_memory import opened

ORIGIN = [("origin", "https://page.example")]


def noting(name, passed):
    def wrap(app):
        async def run(scope, receive, send):
            passed.append(name)
            await app(scope, receive, send)

        return run

    return wrap


def make(middleware):
    app = shoal.App(middleware=middleware)
    app.endpoint("/double")(double)
    return app


async def test_the_first_is_the_outermost_and_all_stand_before_endpoints_and_mounts():
    passed = []
    app = make([noting("outer", passed), noting("inner", passed)])
    app.mount("/below", make([]))
    async with app.lifespan():
        assert (await ask(app, "/double", 2)).json() == 4
        await ask(app, "/below/x")
        await ask(app, "/nowhere")
    assert passed == ["outer", "inner"] * 3


@pytest.mark.parametrize("page", ["healthz", "readyz", "metrics", "routes"])
async def test_the_applications_own_routes_are_not_behind_it(page):
    passed = []
    app = make([noting("outer", passed)])
    assert (await ask_once(app, f"/-/{page}", method="GET")).status == 200
    assert passed == []


async def test_starlettes_middleware_answers_a_preflight():
    app = make([Middleware(CORSMiddleware, allow_origins=["https://page.example"])])
    preflight = [*ORIGIN, ("access-control-request-method", "POST")]
    async with app.lifespan():
        asked = await ask(app, "/double", method="OPTIONS", headers=preflight)
        answer = await ask(app, "/double", 2, headers=ORIGIN)
    assert asked.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert answer.json() == 4


@pytest.mark.parametrize("wrong", ["cors", CORSMiddleware, [3], [None]])
def test_what_is_no_middleware_is_refused(wrong):
    with pytest.raises(TypeError, match=r"middleware (must be|takes)"):
        shoal.App(middleware=wrong)


def test_the_application_is_found_within_its_middleware():
    app = make([])
    wrapped = CORSMiddleware(CORSMiddleware(app))
    assert within(wrapped, shoal.App) is within(app, shoal.App) is app
    assert within(object(), shoal.App) is None
    wrapped.app = wrapped
    assert within(wrapped, shoal.App) is None


# In its older versions Starlette's middleware leaves its own stream to the garbage collector.
leaves_its_stream = pytest.mark.filterwarnings("ignore:.*Request.stream")


class Passing(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        return await call_next(request)


async def sent_to(server, version, path="/a", method="GET", body=b""):
    """Returns the stream of a connection that has sent a request, of HTTP/1.1 or HTTP/2."""
    stream = await server.connect()
    if version == 1:
        await stream.send_all(request(path, method=method, body=body))
    else:
        client = Http2Client(stream)
        client.ask(path.encode(), method=method.encode(), body=body)
        await client.flush()
    return stream


@leaves_its_stream
@pytest.mark.real_time
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("path", ["/hold", "/steps", "/site"])
async def test_a_client_that_leaves_behind_starlettes_middleware_is_no_error(version, path, caplog):
    caplog.set_level("INFO")
    began, left = anyio.Event(), anyio.Event()
    app = shoal.App(middleware=[Middleware(Passing)])

    async def hold(items: list[int]) -> list[int]:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            left.set()
        return items

    @app.endpoint("/steps")
    async def steps(items: list[int]):
        yield items
        await hold(items)

    app.endpoint("/hold")(hold)

    async def site(scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            began.set()
        left.set()

    app.mount("/site", site)
    async with live(app) as server:
        stream = await sent_to(server, version, path, method="POST", body=b"1")
        await began.wait()
        await stream.aclose()
        await left.wait()
        assert (await server.talk(request("/-/healthz", close=True))).startswith(b"HTTP/1.1 200")
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING or one.exc_info]


@leaves_its_stream
async def test_on_other_servers_starlettes_middleware_gets_an_answer_though_the_client_has_left():
    began = anyio.Event()
    app = shoal.App(middleware=[Middleware(Passing)])

    @app.endpoint("/hold")
    async def hold(items: list[int]) -> list[int]:
        began.set()
        await anyio.sleep_forever()
        return items

    async with asking(app, "/hold", 1) as [call]:  # which raises what the application raises
        await began.wait()
        call.leave()
        await call.returned.wait()
    assert call.status == 499


@pytest.mark.real_time
@pytest.mark.parametrize("version", [1, 2])
async def test_an_application_that_fails_once_its_client_left_is_a_line(version, caplog):
    caplog.set_level("INFO")
    began, left = anyio.Event(), anyio.Event()

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            raise RuntimeError
        await receive()
        began.set()
        assert (await receive())["type"] == "http.disconnect"
        left.set()
        raise KeyError("secret")

    async with live(app) as server:
        stream = await sent_to(server, version)
        await began.wait()
        await stream.aclose()
        await left.wait()
    found = [one for one in caplog.records if "application" in one.getMessage()]
    assert [(one.levelname, one.getMessage(), one.exc_info) for one in found] == [
        ("INFO", "the application failed on b'/a' after its client left: KeyError", None)
    ]


@pytest.mark.real_time
@pytest.mark.parametrize("version", [1, 2])
async def test_what_fails_after_the_answer_is_an_error_though_its_client_has_left(version, caplog):
    ended, left = anyio.Event(), anyio.Event()

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            raise RuntimeError
        await receive()
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        ended.set()
        await left.wait()
        raise KeyError("in the background")

    async with live(app) as server:
        stream = await sent_to(server, version)
        await ended.wait()
        await stream.aclose()
        await anyio.wait_all_tasks_blocked()
        left.set()
    (found,) = [one for one in caplog.records if "application" in one.getMessage()]
    assert (found.levelname, found.exc_info[0]) == ("ERROR", KeyError)


COD = [("x-user", "cod")]
CALLERS = {"cod: read write": COD, ": ": []}


class ByHeader(AuthenticationBackend):
    async def authenticate(self, conn):
        if "x-user" in conn.headers:
            return AuthCredentials(["read", "write"]), SimpleUser(conn.headers["x-user"])
        return None


def telling_app(placement):
    """An application whose code tells who calls it, and takes two requests in each batch."""
    app = shoal.App(
        protocols=["openai", "oip"],
        middleware=[Middleware(AuthenticationMiddleware, backend=ByHeader())],
    )
    options = {"placement": placement, "max_batch_size": 2, "batch_wait_timeout_s": None}
    for name in ("told", "pieces", "vector"):
        app.backend(name, f"caller_code:{name}", **options)
        app.route(name, backend=name, path=f"/{name}")
    return app


def rows(number):
    tensor = {"name": "x", "shape": [number], "datatype": "BYTES", "data": ["a"] * number}
    return "/v2/models/told/infer", {"inputs": [tensor]}


def texts_of(answer):
    if answer.headers["content-type"] == "text/event-stream; charset=utf-8":
        return list(text_of(events(answer.body))[0].values())
    body = answer.json()
    if isinstance(body, str):
        return [body]
    if "outputs" in body:
        return body["outputs"][0]["data"]
    if "data" in body:
        return ["".join(map(chr, map(int, one["embedding"]))) for one in body["data"]]
    return [
        one["message"]["content"] if "message" in one else one["text"] for one in body["choices"]
    ]


FORMS = {
    "json": ("/told", "a"),
    "completion": (COMPLETIONS, {"model": "told", "prompt": "a"}),
    "completion, n=2": (COMPLETIONS, {"model": "told", "prompt": "a", "n": 2}),
    "completion in pieces": (COMPLETIONS, {"model": "pieces", "prompt": "a"}),
    "stream": (COMPLETIONS, {"model": "pieces", "prompt": "a", "stream": True}),
    "stream, n=2": (COMPLETIONS, {"model": "pieces", "prompt": "a", "stream": True, "n": 2}),
    "chat": ("/v1/chat/completions", {"model": "told", "messages": HI}),
    "embedding": ("/v1/embeddings", {"model": "vector", "input": "a"}),
    "embeddings": ("/v1/embeddings", {"model": "vector", "input": ["a", "b"]}),
    "row": rows(1),
    "rows": rows(2),
}


@pytest.mark.real_time  # code runs in threads, and in processes
@pytest.mark.parametrize("placement", ["thread", "process"])
async def test_each_request_of_a_batch_has_its_own_caller(placement):
    """``request.metadata`` has it, whatever the protocol."""
    app = telling_app(placement)
    async with app.lifespan():
        for form, (path, asked) in FORMS.items():
            calls = {
                caller: Call(app, path, item=asked, headers=headers)
                for caller, headers in CALLERS.items()
            }
            async with anyio.create_task_group() as tasks:
                for call in calls.values():
                    tasks.start_soon(call.run)
            for caller, call in calls.items():
                assert call.status == 200, (form, call.body)
                assert set(texts_of(call.answer)) == {caller}, form
        for path in ("/told", "/pieces"):
            async with opened(app, path, headers=COD) as cod, opened(app, path) as unknown:
                cod.say(id=1, item="a")
                unknown.say(id=1, item="a")
                assert await result_of(cod) == "cod: read write"
                assert await result_of(unknown) == ": "


async def result_of(socket):
    """The result of the only request on a WebSocket, or the items of its stream, joined."""
    pieces = ""
    while (message := await socket.read()) != {"id": 1, "end": True}:
        if "result" in message:
            return message["result"]
        pieces += message["next"]
    return pieces
