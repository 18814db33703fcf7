"""WebSockets whose clients send what nobody meant, and whose handlers raise what they may not.

Clients send requests, rubbish, and ends at any time; errors of handlers raise where they are read.
"""

import json
from collections import Counter
from typing import Any

import anyio
import numpy as np
import pytest
from fuzzing import fuzzed
from hypothesis import strategies as st
from pydantic import BaseModel
from starlette.exceptions import HTTPException

import shoal
from base_exceptions import Panic
from socket_in_memory import Offered, Socket, opened

CODES = {1003, 1007, 1008, 1009}


class Comment(BaseModel):
    author: str
    replies: list["Comment"] = []


def fuzzed_app():
    app = shoal.App(max_body_bytes=2**16, max_json_elements=1000, max_websocket_requests=4)

    @app.endpoint("/any")
    async def anything(items: list[Any]) -> list[Any]:
        return items

    @app.endpoint("/comment")
    async def comment(items: list[Comment]) -> list[Comment]:
        return items

    @app.endpoint("/raw")
    async def raw(items: list[bytes]) -> list[int]:
        return [len(item) for item in items]

    @app.endpoint("/array")
    async def array(items: list[np.ndarray]) -> list[Any]:
        return items

    @app.endpoint("/count")
    async def count(items: list[int]):
        for step in range(100):
            yield [step if step < item else shoal.END for item in items]

    @app.endpoint("/held")
    async def held(items: list[Any]) -> list[Any]:
        await anyio.sleep_forever()
        return items

    return app


texts = st.text(max_size=5) | st.sampled_from(["\ud800", "\x00", "a" * 300])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 120) | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
) | st.just({"author": "cod"})
ids = st.sampled_from([1, 2, 3, 4, 5, "a", "a.b:c-d_e"])
odd_ids = ids | st.sampled_from([0, "", "\n", -1, 2**60, True, None, "x" * 65, 1.0])
members = st.dictionaries(
    st.sampled_from(["priority", "timeout_s", "cancel", "id", "x"]),
    st.sampled_from([1, 2, 0, 0.001, -1, 2**31, True, None, "1"]) | values,
    max_size=1,
)
requests = st.tuples(ids, values).map(lambda drawn: {"id": drawn[0], "item": drawn[1]})
objects = (
    requests
    | st.tuples(requests, members).map(lambda drawn: {**drawn[0], **drawn[1]})
    | ids.map(lambda name: {"id": name, "cancel": True})
)
odd_objects = st.tuples(odd_ids, values, members).map(
    lambda drawn: {"id": drawn[0], "item": drawn[1], **drawn[2]}
)
heads = (ids | odd_ids).map(lambda name: json.dumps({"id": name}).encode())
messages = (
    objects.map(json.dumps)
    | objects.map(json.dumps)
    | objects.map(json.dumps)
    | odd_objects.map(json.dumps)
    | st.tuples(heads, st.binary(max_size=20)).map(b"\n".join)
    | st.binary(max_size=20)
    | texts
    | st.sampled_from(["[" * 5000, '{"id":1,"item":' + "[" * 300, '{"id":1,"item":' + "1" * 2**17])
    | st.sampled_from(['{"id":1,"item":1,"id":2}', '{"id":1,"item":' + "[1" + ",1" * 2000 + "]}"])
)
WAIT = None
conversations = st.tuples(
    st.sampled_from(["/any", "/comment", "/raw", "/array", "/count", "/held"]),
    st.lists(messages | st.just(WAIT), max_size=12),
    st.booleans(),
)


async def check(target, conversation):
    """Talks; checks each answer, and that the connection ends."""
    path, sent, by_ours = conversation
    socket = Socket(target.app, path, server=("192.0.2.1", 80))
    if by_ours:
        Offered().be_offered_to(socket)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(socket.run)
        assert (await socket.message())["type"] == "websocket.accept"
        for message in sent:
            if message is WAIT or socket.returned.is_set():
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                continue
            if isinstance(message, str):
                message = message.encode("utf-8", "replace").decode()
            socket.say(message)
        await anyio.lowlevel.checkpoint()
        socket.leave()
    limited = any("timeout_s" in str(message) for message in sent)
    ended = Counter()
    for message in socket.sent:
        if message["type"] == "websocket.close":
            assert message["code"] in CODES, message
            assert message is socket.sent[-1]
            continue
        told = json.loads(message["text"])
        assert (told.keys() - {"id"}) <= {"result", "next", "end", "error"}, told
        assert len(told) == 2
        if "next" not in told:
            ended[told["id"]] += 1
        if "error" in told:
            kind = told["error"]["type"].rpartition(":")[2]
            assert told["error"]["status"] < 500 or (limited and kind == "deadline-exceeded"), told
    for name, number in ended.items():
        assert number <= len([one for one in sent if one is not WAIT]), name


@pytest.mark.slow
@fuzzed
def test_no_message_is_an_error_of_the_server(fuzz):
    fuzz(fuzzed_app, conversations, check)


def refusal(kind, name):
    def get(_):
        raise kind

    attribute = property(get, lambda *_: None)
    return type("Refusal", (HTTPException,), {name: attribute})(404)


@pytest.mark.parametrize("name", ["detail", "status_code", "headers"])
@pytest.mark.parametrize("kind", [Panic, SystemExit, ValueError])
async def test_an_error_that_can_not_be_described_fails_only_its_request(kind, name, app):
    async def handler(items: list[int]) -> list:
        return [refusal(kind, name) if item == 1 else item for item in items]

    app.endpoint("/m", name="m")(handler)
    async with app.lifespan(), opened(app, "/m") as socket:
        answer = await socket.ask(id=1, item=1)
        assert (answer["id"], answer["error"]["status"]) == (1, 500)
        assert (await socket.ask(id=2, item=2))["result"] == 2
