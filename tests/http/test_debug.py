"""What a caller is shown of a failure: its cause with ``debug=True`` alone, in each protocol."""

import json
from typing import Any

import pytest
from openai_app import events

import shoal
from event_loops import one_loop_for_the_file  # noqa: F401
from shoal.testing.asgi import ask
from socket_in_memory import opened

pytestmark = pytest.mark.one_loop

COMPLETIONS = "/v1/completions"
# What the cause would be seen by, in lower case: its text, its type, and where it was raised.
OF_CAUSE = ["sesame", "unheard", "raise ", "test_debug", "traceback"]


class Unheard(Exception):
    """An error that only this file has."""


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "debug"])
def debug(request):
    return request.param


@pytest.fixture(scope="module")
async def app(anyio_backend, debug):
    """An application whose code fails, at once or after one piece."""
    app = shoal.App(protocols=["openai", "oip"], debug=debug)

    @app.endpoint("/fails", name="fails")
    async def fails(prompts: list[str]) -> list[str]:
        raise Unheard("open sesame")

    @app.endpoint("/vector", name="vector")
    async def vector(texts: list[str]) -> list[list[float]]:
        raise Unheard("open sesame")

    @app.endpoint("/ends", name="ends")
    async def ends(prompts: list[str]):
        if prompts:
            raise Unheard("open sesame")
        yield prompts

    @app.endpoint("/breaks", name="breaks")
    async def breaks(prompts: list[str]):
        yield ["one "] * len(prompts)
        raise Unheard("open sesame")

    async with app.lifespan():
        yield app


OPENAI = {
    f"{model}{''.join(f', {name}' for name in more)}": (
        "/v1/chat/completions" if "messages" in more else COMPLETIONS,
        {"model": model, **({} if "messages" in more else {"prompt": "a"}), **more},
    )
    for model in ("fails", "ends", "breaks")
    for more in (
        {},
        {"n": 2},
        {"stream": True},
        {"n": 2, "stream": True},
        {"messages": [{"role": "user", "content": "a"}]},
    )
} | {
    "embedding": ("/v1/embeddings", {"model": "vector", "input": "a"}),
    "embeddings": ("/v1/embeddings", {"model": "vector", "input": ["a", "b"]}),
}


def shown(*seen: Any) -> list[str]:
    """The parts of the cause that are in what a caller has got."""
    text = json.dumps(seen).lower()
    return [part for part in OF_CAUSE if part in text]


@pytest.mark.parametrize(("path", "asked"), OPENAI.values(), ids=OPENAI)
async def test_the_cause_is_shown_by_openai_in_debug_mode_alone(app, path, asked, debug, caplog):
    answer = await ask(app, path, asked)
    if asked["model"] == "breaks" and "stream" in asked:
        assert answer.status == 200
        error = events(answer.body)[-1]["error"]
    else:
        assert answer.status == 500
        error = answer.json()["error"]
    assert error["type"] == "server_error"
    assert error["message"].startswith("The call failed")
    assert shown(error.get("traceback")) == (OF_CAUSE if debug else [])
    assert shown(answer.headers, answer.body.decode()) == (OF_CAUSE if debug else [])


@pytest.mark.parametrize("name", ["fails", "ends", "breaks"])
async def test_the_cause_is_shown_over_a_websocket_in_debug_mode_alone(app, name, debug, caplog):
    async with opened(app, f"/{name}") as socket:
        socket.say(id=1, item="a")
        if name == "breaks":
            assert await socket.read() == {"id": 1, "next": "one "}
        error = (await socket.read())["error"]
    assert (error["type"], error["status"]) == ("urn:shoal:problem:internal", 500)
    assert shown(error) == (OF_CAUSE if debug else [])


@pytest.mark.parametrize("debug", [False], indirect=True)
@pytest.mark.parametrize("rows", [1, 2])
async def test_without_debug_nothing_of_the_cause_is_shown_through_oip(app, rows, caplog):
    tensor = {"name": "x", "shape": [rows], "datatype": "BYTES", "data": ["a"] * rows}
    answer = await ask(app, "/v2/models/fails/infer", {"inputs": [tensor]})
    assert answer.status == 500
    assert answer.json()["error"].startswith("The call failed")
    assert shown(answer.headers, answer.body.decode()) == []
