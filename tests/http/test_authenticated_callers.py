"""``request.metadata`` has the caller that middleware has found out, whatever the protocol."""

import anyio
import pytest
from openai_app import events, text_of
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware

import shoal
from shoal.testing.asgi import Call
from socket_in_memory import opened

# Code runs in threads, and in processes.
pytestmark = pytest.mark.real_time

COMPLETIONS = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
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
    for name in ("told", "pieces", "vector"):
        app.backend(
            name,
            f"caller_code:{name}",
            placement=placement,
            max_batch_size=2,
            batch_wait_timeout_s=None,
        )
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


@pytest.mark.parametrize("placement", ["thread", "process"])
async def test_each_request_of_a_batch_has_its_own_caller(placement):
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
