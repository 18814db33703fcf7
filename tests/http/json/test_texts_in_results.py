"""Half of a surrogate pair in a result is U+FFFD in every protocol, and the rest is as always."""

import json
import struct
from typing import Any

import anyio
import ormsgpack
import pytest
from pydantic import BaseModel, Field

import shoal
from event_loops import one_loop_for_the_file  # noqa: F401
from shoal.testing.asgi import ask
from socket_in_memory import opened

pytestmark = pytest.mark.one_loop

HALF = "a\ud800"
WHOLE = "a\N{REPLACEMENT CHARACTER}"


class Named(BaseModel):
    first: int = Field(alias="First")
    second: str = Field("x", serialization_alias="Second", validation_alias="Second")


async def halves(items: list[str]) -> list[Any]:
    return [HALF for _ in items]


async def members(items: list[str]) -> list[Any]:
    return [{"text": HALF, HALF: 2**70} for _ in items]


async def stream(prompts: list[str]):
    yield [HALF for _ in prompts]
    await anyio.lowlevel.checkpoint()
    yield ["b" for _ in prompts]


async def same(items: list[Named]) -> list[Named]:
    return items


@pytest.fixture(scope="module")
async def app(anyio_backend):
    app = shoal.App(protocols=["oip", "openai"])
    for code in (halves, members, stream, same):
        app.endpoint(f"/{code.__name__}", name=code.__name__)(code)
    async with app.lifespan():
        yield app


@pytest.mark.parametrize(
    "accept", ["text/event-stream", "application/x-ndjson", "application/json"]
)
async def test_in_a_stream(app, accept):
    answer = await ask(app, "/stream", "x", headers=[("accept", accept)])
    assert WHOLE in answer.body.decode()
    assert '"b"' in answer.body.decode()
    assert "error" not in answer.body.decode()


async def test_on_a_websocket(app):
    async with opened(app, "/halves") as socket:
        socket.say(id=1, item="x")
        assert (await socket.read())["result"] == WHOLE
    async with opened(app, "/stream") as socket:
        socket.say(id=1, item="x")
        assert [(await socket.read()).get("next") for _ in range(2)] == [WHOLE, "b"]


async def test_in_tensors(app):
    given = {"name": "x", "shape": [1], "datatype": "BYTES", "data": ["x"]}
    url = "/v2/models/halves/infer"
    answer = await ask(app, url, {"inputs": [given]})
    assert answer.json()["outputs"][0]["data"] == [WHOLE]
    binary = {"inputs": [given], "parameters": {"binary_data_output": True}}
    answer = await ask(app, url, binary)
    data = WHOLE.encode()
    assert answer.body.endswith(struct.pack("<I", len(data)) + data)


@pytest.mark.parametrize("model", ["halves", "stream"])
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("stop", [None, ["zz"]])
async def test_in_openais_completions(app, model, is_stream, stop):
    given = {"model": model, "prompt": "x", "stream": is_stream, "stop": stop}
    answer = await ask(app, "/v1/completions", given)
    assert answer.status == 200
    text = answer.body.decode()
    if is_stream:
        events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    else:
        events = [json.loads(text)]
    found = "".join(one["choices"][0]["text"] for one in events if one["choices"])
    assert found == (WHOLE if model == "halves" else WHOLE + "b")


async def test_a_handle_in_the_process_passes_the_result_itself(app):
    handle = await app.controller.get_handle("halves")
    assert await handle.call("x") == HALF


async def test_a_result_in_messagepack_can_be_sent_back_as_an_item(app):
    types = [("content-type", "application/msgpack"), ("accept", "application/msgpack")]
    answer = await ask(app, "/same", {"First": 1, "Second": "y"}, headers=types[1:])
    assert ormsgpack.unpackb(answer.body) == {"First": 1, "Second": "y"}
    again = await ask(app, "/same", body=answer.body, headers=types)
    wrong = await ask(app, "/same", body=ormsgpack.packb({"first": 1}), headers=types)
    assert again.body == answer.body
    assert wrong.status == 422
