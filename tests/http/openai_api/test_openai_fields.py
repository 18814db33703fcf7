"""Parameters that pass to fields of items, and results with more than a text."""

import base64
from dataclasses import dataclass, field
from typing import Any

import pytest
from openai_app import CHATS, COMPLETIONS, EMBEDDINGS, HI, Everything, events, openai_app, upper
from pydantic import BaseModel
from typing_extensions import TypedDict

import shoal
from event_loops import one_loop_for_the_file  # noqa: F401
from handlers import ask_once
from shoal.http.openai import OpenAI
from shoal.testing.asgi import ask

pytestmark = pytest.mark.one_loop

A_TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
AN_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


class Call(BaseModel):
    name: str
    arguments: dict[str, Any]


@dataclass
class Said:
    content: str = ""
    tool_calls: list[Call] = field(default_factory=list)
    reasoning_content: str | None = None


class Results:
    """A model that gives what a test says, and keeps its items."""

    def __init__(self):
        self.items = []
        self.result = "ok"
        self.pieces = ["ok"]

    async def whole(self, items: list[Everything]) -> list[Any]:
        self.items += items
        return [self.result for _ in items]

    async def stream(self, items: list[Everything]):
        self.items += items
        for piece in self.pieces:
            yield [piece for _ in items]


@pytest.fixture(scope="module")
async def app(anyio_backend):
    app = shoal.App(protocols=["openai"])
    app.results = Results()
    app.endpoint("/whole", name="whole")(app.results.whole)
    app.endpoint("/stream", name="stream")(app.results.stream)

    @app.endpoint("/plain", name="plain")
    async def plain(prompts: list[str]) -> list[str]:
        return prompts

    @app.endpoint("/embed", name="embed")
    async def embed(texts: list[str]) -> list[list[float]]:
        return [[float(len(text))] for text in texts]

    @app.endpoint("/tokens", name="tokens")
    async def tokens(inputs: list[list[int]]) -> list[list[float]]:
        return [[float(sum(one)), float(len(one))] for one in inputs]

    @app.endpoint("/either", name="either")
    async def either(text: list[str | list[int]], dimensions: list[int]) -> list[list[float]]:
        return [[float(len(one)), size] for one, size in zip(text, dimensions, strict=True)]

    async with app.lifespan():
        yield app


async def whole(app, path=CHATS, status=200, **asked):
    app.results.items.clear()
    given = {"model": "whole", "messages" if path == CHATS else "prompt": HI}
    if path == COMPLETIONS:
        given["prompt"] = "hi"
    answer = await ask(app, path, {**given, **asked})
    assert answer.status == status, answer.body
    return answer.json()


async def deltas(app, **asked):
    given = {"model": "stream", "messages": HI, "stream": True, **asked}
    answer = await ask(app, CHATS, given)
    assert answer.status == 200, answer.body
    *found, done = events(answer.body)
    assert done == "[DONE]"
    return [event["choices"][0] for event in found]


async def test_parameters_pass_to_the_fields_of_their_names(app):
    asked = {
        "tools": [A_TOOL],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": {"type": "json_object"},
    }
    await whole(app, **asked)
    assert app.results.items == [{"messages": HI, **asked}]
    await whole(app, COMPLETIONS, logprobs=0)
    assert app.results.items == [{"prompt": "hi", "logprobs": 0}]


async def test_parts_of_messages_pass_to_a_field_messages(app):
    parts = [{"type": "text", "text": "what is it?"}, AN_IMAGE]
    messages = [{"role": "user", "content": parts}, *HI]
    body = await whole(app, messages=messages)
    assert app.results.items[0]["messages"] == messages
    assert body["usage"]["prompt_tokens"] == 4  # those of the texts


UNSUPPORTED = [
    {"tools": [A_TOOL]},
    {"functions": [{"name": "f"}]},
    {"logprobs": True},
    {"top_logprobs": 3},
    {"response_format": {"type": "json_object"}},
    {"tool_choice": "required"},
    {"modalities": ["audio"]},
]


@pytest.mark.parametrize("asked", UNSUPPORTED)
async def test_a_refusal_names_the_field_that_is_missing(app, asked):
    [name] = asked
    error = (await whole(app, status=400, model="plain", **asked))["error"]
    assert (error["param"], error["code"]) == (name, "unsupported")
    assert error["message"].endswith(f"its items have no field {name!r}")


async def test_a_refusal_of_parts_names_the_field_that_is_missing(app):
    messages = [*HI, {"role": "user", "content": [AN_IMAGE]}]
    error = (await whole(app, status=400, model="plain", messages=messages))["error"]
    assert (error["param"], error["code"]) == ("messages.1.content", "unsupported")
    assert "its items have no field 'messages'" in error["message"]


async def test_a_choice_of_tools_without_its_field_is_refused_if_it_changes_the_answer(openai):
    class OnlyTools(TypedDict):
        messages: list[dict[str, Any]]
        tools: list[dict[str, Any]]

    @openai.endpoint("/whole", name="whole")
    async def answer(items: list[OnlyTools]) -> list[str]:
        return ["ok" for _ in items]

    async with openai.lifespan():
        for choice, status in (("auto", 200), ("none", 400), ("required", 400)):
            asked = {"messages": HI, "tools": [A_TOOL], "tool_choice": choice}
            answer = await ask(openai, CHATS, asked)
            assert answer.status == status
            if status == 400:
                assert "no field 'tool_choice'" in answer.json()["error"]["message"]


async def test_a_template_gets_the_parameters_that_it_has():
    def template(messages, tools=None, *, documents=()):
        return f"{len(messages)} {len(tools or ())} {len(documents)}"

    app = openai_app(OpenAI(chat_template=template), models=["upper"])
    async with app.lifespan():
        asked = {"messages": HI, "tools": [A_TOOL], "documents": ["a", "b"]}
        answer = await ask(app, CHATS, asked)
        assert answer.json()["choices"][0]["message"]["content"] == "1 1 2"
        answer = await ask(app, CHATS, {"messages": HI})
        assert answer.json()["choices"][0]["message"]["content"] == "1 0 0"


CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


async def test_a_whole_result_with_tool_calls(app):
    app.results.result = {"tool_calls": [CALL]}
    [choice] = (await whole(app, tools=[A_TOOL]))["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]},
        "logprobs": None,
        "finish_reason": "tool_calls",
    }
    assert (await whole(app))["usage"]["completion_tokens"] == 1


async def test_a_result_may_be_a_record_with_short_calls(app):
    app.results.result = Said("wait", [Call(name="weather", arguments={"city": "Oslo"})], "hm")
    [choice] = (await whole(app))["choices"]
    message = choice["message"]
    [call] = message.pop("tool_calls")
    assert call.pop("id").startswith("call_")
    function = {"name": "weather", "arguments": '{"city":"Oslo"}'}
    assert call == {"type": "function", "function": function}
    assert message == {
        "role": "assistant",
        "content": "wait",
        "refusal": None,
        "reasoning_content": "hm",
    }


async def test_each_call_with_a_name_begins_and_one_without_continues_the_last(app):
    app.results.result = {"tool_calls": [{"name": "a"}, {"name": "b"}, {"arguments": "{}"}]}
    [choice] = (await whole(app))["choices"]
    functions = [call["function"] for call in choice["message"]["tool_calls"]]
    assert functions == [{"name": "a", "arguments": ""}, {"name": "b", "arguments": "{}"}]


async def test_a_reason_of_the_model_is_kept_unless_the_text_is_cut(app):
    app.results.result = {"content": "a b c", "finish_reason": "content_filter"}
    assert (await whole(app))["choices"][0]["finish_reason"] == "content_filter"
    [choice] = (await whole(app, stop="b"))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("a ", "stop")


async def test_log_probabilities_in_the_form_of_each_path(app):
    tokens = [
        {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1.0}]},
        {"token": "c", "logprob": -2.0},
    ]
    app.results.result = {"text": "ac", "logprobs": tokens}
    [choice] = (await whole(app, logprobs=True))["choices"]
    assert choice["logprobs"]["content"] == [
        {"bytes": None, **tokens[0]},
        {"bytes": None, "top_logprobs": [], **tokens[1]},
    ]
    [choice] = (await whole(app, COMPLETIONS, logprobs=1))["choices"]
    assert choice["text"] == "ac"
    assert choice["logprobs"] == {
        "tokens": ["a", "c"],
        "token_logprobs": [-0.5, -2.0],
        "top_logprobs": [{"b": -1.0}, {}],
    }
    app.results.result = {"text": "ac", "logprobs": {"tokens": ["ac"], "token_logprobs": [None]}}
    [choice] = (await whole(app, COMPLETIONS, logprobs=1))["choices"]
    assert choice["logprobs"] == {"tokens": ["ac"], "token_logprobs": [None]}


PIECES = [
    "let ",
    {"content": "me see", "logprobs": [{"token": "see", "logprob": -1.0}]},
    {"tool_calls": [{"name": "weather", "arguments": '{"a"'}]},
    {"tool_calls": [{"arguments": ":1}"}]},
    {"tool_calls": [{"index": 1, "id": "mine", "function": {"name": "time"}}]},
    {"tool_calls": [{"index": 0, "arguments": " "}]},
]


async def test_a_stream_of_tool_calls_and_log_probabilities(app):
    app.results.pieces = PIECES
    first, text, more, begun, goes_on, second, last_of_first, end = await deltas(app)
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert (text["delta"], text["logprobs"]) == ({"content": "let "}, None)
    assert more["delta"] == {"content": "me see"}
    [token] = more["logprobs"]["content"]
    assert (token["token"], token["logprob"]) == ("see", -1.0)
    [call] = begun["delta"]["tool_calls"]
    assert call.pop("id").startswith("call_")
    function = {"name": "weather", "arguments": '{"a"'}
    assert call == {"index": 0, "type": "function", "function": function}
    continued = {"index": 0, "function": {"arguments": ":1}"}}
    assert goes_on["delta"] == {"tool_calls": [continued]}
    assert second["delta"]["tool_calls"][0]["id"] == "mine"
    assert last_of_first["delta"]["tool_calls"][0]["index"] == 0
    assert (end["delta"], end["finish_reason"]) == ({}, "tool_calls")


async def test_a_whole_answer_of_a_model_that_streams_is_joined(app):
    app.results.pieces = PIECES
    [choice] = (await whole(app, model="stream"))["choices"]
    message = choice["message"]
    assert (message["content"], choice["finish_reason"]) == ("let me see", "tool_calls")
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [
        {"name": "weather", "arguments": '{"a":1} '},
        {"name": "time", "arguments": ""},
    ]
    assert [one["token"] for one in choice["logprobs"]["content"]] == ["see"]


async def test_several_texts_may_have_tool_calls(app):
    app.results.pieces = PIECES
    found = await deltas(app, n=2)
    for index in (0, 1):
        mine = [one for one in found if one["index"] == index]
        assert sum("tool_calls" in one["delta"] for one in mine) == 4
        assert mine[-1]["finish_reason"] == "tool_calls"


async def test_a_reason_in_a_piece_ends_the_stream_with_the_text_that_was_held_back(app):
    app.results.pieces = ["a s", {"finish_reason": "length"}, "never"]
    *_, end = found = await deltas(app, stop="stop")
    assert "".join(one["delta"].get("content", "") for one in found) == "a s"
    assert end["finish_reason"] == "length"
    [choice] = (await whole(app, model="stream", stop="stop"))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("a s", "length")


@pytest.mark.parametrize(
    "pieces",
    [
        [{"tool_calls": [{"arguments": "x"}]}],
        [{"tool_calls": [{"index": 1, "name": "x"}]}],
        [{"tool_calls": [{"index": -1, "arguments": "x"}]}],
        [{"tool_calls": ["x"]}],
    ],
)
async def test_a_tool_call_without_a_beginning_is_a_failure_of_the_model(app, pieces, caplog):
    app.results.pieces = pieces
    body = await whole(app, model="stream", status=500)
    assert body["error"]["type"] == "server_error"


@pytest.mark.parametrize("result", [{"vector": [1.0]}, {"content": 5}, 5, None, Call])
async def test_a_record_without_text_is_no_text(app, result):
    app.results.result = result
    body = await whole(app, status=400)
    assert body["error"]["param"] == "model"


async def test_bounds(app):
    many_parts = [{"role": "user", "content": [{"type": "text", "text": "a"}] * 600}] * 2
    for asked, param in (
        ({"tools": [A_TOOL] * 129}, "tools"),
        ({"tools": "all"}, "tools"),
        ({"messages": many_parts}, "messages.1.content"),
        ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content"),
    ):
        error = (await whole(app, status=400, **asked))["error"]
        assert error["param"] == param
    deep: Any = "x"
    for _ in range(300):
        deep = {"a": deep}
    await whole(app, status=400, tools=[deep])


async def test_up_to_64_stops_are_taken_and_empty_ones_ignored(app):
    for stop, text in (([""], "a b"), ("", "a b"), (["", "b"], "a "), (["x"] * 63 + ["b"], "a ")):
        body = await whole(app, COMPLETIONS, model="plain", prompt="a b", stop=stop)
        assert body["choices"][0]["text"] == text
    await whole(app, COMPLETIONS, status=400, model="plain", stop=["x"] * 65)


async def test_minus_one_and_null_are_no_limit_of_tokens(app):
    for most, text in ((-1, "a b"), (None, "a b"), (1, "a")):
        body = await whole(app, COMPLETIONS, model="plain", prompt="a b", max_tokens=most)
        assert body["choices"][0]["text"] == text
    app.results.result = "a b"
    await whole(app, max_completion_tokens=-1)
    for most in (0, -2):
        body = await whole(app, status=400, max_tokens=most)
        assert body["error"]["param"] == "max_tokens"


async def test_the_model_may_be_missing_where_there_is_one(app):
    answer = await ask(app, CHATS, {"messages": HI})
    error = answer.json()["error"]
    assert (answer.status, error["param"]) == (400, "model")
    assert error["message"] == "There are 6 models: send the name of one"

    for more in ({}, {"model": None}):
        one = openai_app(models=["upper", "numbers"])
        answer = await ask_once(one, COMPLETIONS, {"prompt": "a", **more})
        assert (answer.status, answer.json()["model"]) == (200, "upper")


async def embedded(app, status=200, **asked):
    answer = await ask(app, EMBEDDINGS, asked)
    assert answer.status == status, answer.body
    return answer.json()


def vectors(body):
    return [one["embedding"] for one in body["data"]]


async def test_lists_of_tokens_for_items_of_tokens(app):
    body = await embedded(app, model="tokens", input=[1, 2, 3])
    assert vectors(body) == [[6.0, 3.0]]
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    body = await embedded(app, model="tokens", input=[[1, 2], [5]])
    assert vectors(body) == [[3.0, 2.0], [5.0, 1.0]]
    error = (await embedded(app, 400, model="tokens", input="a"))["error"]
    assert error["message"] == "The model takes lists of tokens, and no text"
    body = await embedded(app, model="either", input=[[1, 2]], dimensions=7)
    assert vectors(body) == [[2.0, 7.0]]
    body = await embedded(app, model="either", input="abc", dimensions=7, encoding_format="base64")
    [vector] = vectors(body)
    assert len(base64.b64decode(vector)) == 8


async def test_lists_of_tokens_for_a_function_that_decodes_them():
    def decode(tokens):
        if 9 in tokens:
            raise IndexError("9 is no token")
        return None if 8 in tokens else "".join(chr(96 + one) for one in tokens)

    app = shoal.App(protocols=[OpenAI(decode_tokens=decode)])

    @app.endpoint("/embed", name="embed")
    async def embed(texts: list[str]) -> list[list[float]]:
        return [[float(ord(text[0])), float(len(text))] for text in texts]

    app.endpoint("/upper", name="upper")(upper)
    async with app.lifespan():
        body = await embedded(app, model="embed", input=[[1, 2], [3]])
        assert vectors(body) == [[97.0, 2.0], [99.0, 1.0]]
        assert body["usage"]["prompt_tokens"] == 3
        answer = await ask(app, COMPLETIONS, {"model": "upper", "prompt": [1, 2]})
        assert answer.json()["choices"][0]["text"] == "AB"
        error = (await embedded(app, 400, model="embed", input=[9]))["error"]
        assert (error["message"], error["param"]) == ("9 is no token", "input")
        await embedded(app, 500, model="embed", input=[8])


@pytest.mark.parametrize("tokens", [[-1], [2**31], [[]], [[1], "a"], [1, "a"], [True], [1.5]])
async def test_wrong_tokens_are_refused(app, tokens):
    error = (await embedded(app, 400, model="tokens", input=tokens))["error"]
    assert error["param"] == "input"


def test_a_wrong_function_is_refused():
    with pytest.raises(TypeError, match="decode_tokens must be a function, not 5"):
        OpenAI(decode_tokens=5)
