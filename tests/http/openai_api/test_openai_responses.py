"""OpenAI's responses, which are made of chats: their inputs, outputs and events."""

import json
from typing import Any

import pytest
from openai_app import openai_app
from typing_extensions import TypedDict

import shoal
from event_loops import one_loop_for_the_file  # noqa: F401
from shoal.http.openai import OpenAI
from shoal.testing.asgi import ask

RESPONSES = "/v1/responses"


class Request(TypedDict, total=False):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    tool_choice: Any
    response_format: dict[str, Any]
    max_tokens: int
    temperature: float
    reasoning_effort: str
    logprobs: bool


@pytest.fixture(scope="module")
async def app(anyio_backend):
    app = shoal.App(protocols=["openai"])
    app.items, app.pieces = [], ["it ", "is"]

    @app.endpoint("/stream", name="stream")
    async def stream(items: list[Request]):
        app.items += items
        for piece in app.pieces:
            if piece is None:
                raise RuntimeError("secret")
            yield [piece for _ in items]

    @app.endpoint("/whole", name="whole")
    async def whole(items: list[Request]) -> list[Any]:
        app.items += items
        return [app.pieces[0] for _ in items]

    @app.endpoint("/plain", name="plain")
    async def plain(prompts: list[str]) -> list[str]:
        return prompts

    async with app.lifespan():
        yield app


async def made(app, status=200, **asked):
    app.items.clear()
    answer = await ask(app, RESPONSES, {"model": "whole", "input": "hi", **asked})
    assert answer.status == status, answer.body
    return answer.json()


async def streamed(app, **asked):
    app.items.clear()
    given = {"model": "stream", "input": "hi", "stream": True, **asked}
    answer = await ask(app, RESPONSES, given)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = []
    for event in answer.body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [one.pop("sequence_number") for one in events] == [*range(len(events))]
    return events


async def test_a_whole_response(app):
    app.pieces = ["it is"]
    body = await made(app, instructions="be brief", metadata={"a": "b"}, temperature=0.5)
    assert app.items == [
        {
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "hi"},
            ],
            "temperature": 0.5,
        }
    ]
    assert body.pop("id").startswith("resp_")
    assert body.pop("created_at") > 1e9
    assert body["output"][0].pop("id").startswith("msg_")
    text = {"type": "output_text", "text": "it is", "annotations": [], "logprobs": []}
    assert body == {
        "object": "response",
        "status": "completed",
        "model": "whole",
        "background": False,
        "previous_response_id": None,
        "store": False,
        "instructions": "be brief",
        "max_output_tokens": None,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "reasoning": {"effort": None, "summary": None},
        "temperature": 0.5,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "user": None,
        "output": [
            {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
        ],
        "usage": {
            "input_tokens": 3,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 5,
        },
        "error": None,
        "incomplete_details": None,
    }


TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}


async def test_the_items_of_an_input_become_messages(app):
    app.pieces = ["ok"]
    await made(
        app,
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "role": "assistant", "content": "wait"},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "time", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "fine"},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "and this?"},
                    {"type": "input_image", "image_url": "http://a", "detail": "low"},
                    {"type": "input_file", "filename": "a.pdf", "file_data": "AA"},
                ],
            },
        ],
        tools=[TOOL],
        tool_choice={"type": "function", "name": "weather"},
        text={"format": {"type": "json_schema", "name": "s", "schema": {}, "strict": True}},
        max_output_tokens=9,
        reasoning={"effort": "low"},
        include=["message.output_text.logprobs"],
    )
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
        {"id": "c2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
    ]
    function = {name: one for name, one in TOOL.items() if name != "type"}
    parts = [
        {"type": "text", "text": "and this?"},
        {"type": "image_url", "image_url": {"url": "http://a", "detail": "low"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "AA"}},
    ]
    schema = {"name": "s", "schema": {}, "strict": True}
    assert app.items == [
        {
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "wait", "tool_calls": calls},
                {"role": "tool", "tool_call_id": "c1", "content": "fine"},
                {"role": "user", "content": parts},
            ],
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "response_format": {"type": "json_schema", "json_schema": schema},
            "max_tokens": 9,
            "reasoning_effort": "low",
            "logprobs": True,
        }
    ]


async def test_a_whole_response_with_tool_calls(app):
    call = {"name": "weather", "arguments": {"a": 1}, "id": "c1"}
    app.pieces = [{"content": "wait", "tool_calls": [call], "reasoning_content": "hm"}]
    reasoning, message, call = (await made(app, tools=[TOOL]))["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "wait"
    assert call.pop("id").startswith("fc_")
    assert call == {
        "type": "function_call",
        "call_id": "c1",
        "name": "weather",
        "arguments": '{"a":1}',
        "status": "completed",
    }


async def test_a_response_whose_text_is_too_long_is_incomplete(app):
    app.pieces = ["a ", "b ", "c "]
    body = await made(app, model="stream", max_output_tokens=2)
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["content"][0]["text"] == "a b "
    *_, last = await streamed(app, max_output_tokens=2)
    assert last["type"] == "response.incomplete"
    assert last["response"]["usage"]["output_tokens"] == 2


async def test_the_events_of_a_text(app):
    app.pieces = ["it ", {"content": "is", "logprobs": [{"token": "is", "logprob": -1.0}]}]
    events = await streamed(app)
    assert [one["type"].removeprefix("response.") for one in events] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done", "content_part.done"),
        *("output_item.done", "completed"),
    ]
    created, _, added, part, first, second, done, part_done, item_done, completed = events
    assert created["response"]["status"] == "in_progress"
    item_id = added["item"]["id"]
    empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert added["item"]["content"] == []
    assert part["part"] == empty
    for one in (part, first, second, done, part_done):
        assert (one["item_id"], one["output_index"], one["content_index"]) == (item_id, 0, 0)
    assert (first["delta"], first["logprobs"], second["delta"]) == ("it ", [], "is")
    token = {"token": "is", "logprob": -1.0, "bytes": [], "top_logprobs": []}
    assert second["logprobs"] == [token]
    whole = {**empty, "text": "it is", "logprobs": [token]}
    assert (done["text"], part_done["part"]) == ("it is", whole)
    assert item_done["item"]["content"] == [whole]
    assert completed["response"]["output"] == [item_done["item"]]
    assert completed["response"]["id"] == created["response"]["id"]


async def test_the_events_of_tool_calls(app):
    app.pieces = [
        {"tool_calls": [{"name": "weather", "arguments": '{"a"', "id": "c1"}]},
        {"tool_calls": [{"name": "time"}]},
        {"tool_calls": [{"index": 0, "arguments": ":1}"}]},
    ]
    events = await streamed(app)
    calls = [(one["type"], one.get("output_index")) for one in events[2:-1]]
    added, delta = "response.output_item.added", "response.function_call_arguments.delta"
    done, item_done = "response.function_call_arguments.done", "response.output_item.done"
    assert calls == [
        (added, 0),
        (delta, 0),
        (added, 1),
        (delta, 0),
        (done, 0),
        (item_done, 0),
        (done, 1),
        (item_done, 1),
    ]
    assert events[2]["item"]["arguments"] == ""
    assert events[6]["arguments"] == '{"a":1}'
    first, second = events[-1]["response"]["output"]
    assert (first["call_id"], first["arguments"]) == ("c1", '{"a":1}')
    assert second["call_id"].startswith("call_")


async def test_an_empty_text_is_an_empty_message(app):
    app.pieces = [""]
    for body in (await made(app), (await streamed(app))[-1]["response"]):
        [message] = body["output"]
        assert message["content"][0]["text"] == ""


async def test_a_failure_in_mid_stream_is_an_event(app, caplog):
    app.pieces = ["it ", None]
    *_, failed = await streamed(app)
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "server_error"
    assert "secret" not in failed["response"]["error"]["message"]
    assert failed["response"]["output"][0]["content"][0]["text"] == "it "
    app.pieces = [None]
    answer = await ask(app, RESPONSES, {"model": "stream", "input": "hi", "stream": True})
    assert (answer.status, answer.json()["error"]["type"]) == (500, "server_error")


A_PART = {"role": "user", "content": [{"type": "input_image", "image_url": "http://a"}]}
REFUSED = [
    ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported"),
    ({"conversation": "conv_1"}, "conversation", "unsupported"),
    ({"background": True}, "background", "unsupported"),
    ({"prompt": {"id": "p"}}, "prompt", "unsupported"),
    ({"tools": [{"type": "web_search"}]}, "tools.0", "unsupported"),
    ({"tools": [TOOL] * 129}, "tools", None),
    ({"tools": [TOOL], "model": "plain"}, "tools", "unsupported"),
    ({"tool_choice": {"type": "mcp"}}, "tool_choice", "unsupported"),
    ({"text": {"format": {"type": "json_object"}}, "model": "plain"}, "response_format", None),
    ({"text": {"format": "json"}}, "text", None),
    ({"input": []}, "input", None),
    ({"input": 5}, "input", None),
    ({"input": ["a"]}, "input", None),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0", "unsupported"),
    ({"input": [{"role": "user"}]}, "input.0", None),
    ({"input": [{"role": "user", "content": ["a"]}]}, "input.0", None),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input", None),
    ({"input": [{"role": "user", "content": [{"type": "x"}]}]}, "input.0", "unsupported"),
    ({"input": [{"content": "a"}]}, "input.0.role", None),
    ({"input": [{"role": "user", "content": "a"}] * 1025}, "input", None),
    ({"input": [A_PART], "model": "plain"}, "input", "unsupported"),
    ({"max_output_tokens": 0}, "max_output_tokens", None),
    ({"model": "nothing"}, "model", "model_not_found"),
]


@pytest.mark.one_loop
@pytest.mark.parametrize(("asked", "param", "code"), REFUSED)
async def test_what_is_refused(app, asked, param, code):
    app.pieces = ["ok"]
    status = 404 if code == "model_not_found" else 400
    for more in ({}, {"stream": True}):
        error = (await made(app, status, **asked, **more))["error"]
        assert error["param"] == param, error
        assert code is None or error["code"] == code


async def test_the_refusal_of_a_reference_says_what_to_send(app):
    item = {"type": "item_reference", "id": "msg_0_a-1"}
    message = (await made(app, 400, input=[item]))["error"]["message"]
    assert "no 'msg_0_a-1'" in message
    assert "store: false" in message  # the AI SDK sends references without it
    message = (await made(app, 400, tools=[{"type": "web_search"}]))["error"]["message"]
    assert message == "tools.0: the type 'web_search' is not supported here"


async def test_null_and_what_changes_nothing_is_accepted(app):
    app.pieces = ["ok"]
    names = ("instructions", "tools", "tool_choice", "text", "reasoning", "include", "background")
    await made(app, **dict.fromkeys(names), store=True, truncation="auto")
    await made(app, model="plain", tools=[], text={"format": {"type": "text"}})
    await made(app, model="plain", reasoning={"effort": "low"}, parallel_tool_calls=False)


async def test_a_template_makes_the_prompt_of_a_response():
    def template(messages):
        if messages[-1]["content"] == "bad":
            raise ValueError("no")
        return "|".join(one["content"] for one in messages)

    app = openai_app(OpenAI(chat_template=template), models=["upper"])
    async with app.lifespan():
        answer = await ask(app, RESPONSES, {"input": "b", "instructions": "a"})
        assert answer.json()["output"][0]["content"][0]["text"] == "A|B"
        answer = await ask(app, RESPONSES, {"input": "bad"})
        assert (answer.status, answer.json()["error"]["param"]) == (400, "input")
