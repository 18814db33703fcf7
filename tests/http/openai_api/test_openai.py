"""OpenAI's protocol: its answers, its streams, what ends a text, and what frees a place."""

import base64
import gc
import struct
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

import anyio
import numpy as np
import pytest
from openai_app import (
    CHATS,
    COMPLETIONS,
    EMBEDDINGS,
    HI,
    USAGE,
    Options,
    events,
    openai_app,
    streamed,
    text_of,
)
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

import shoal
from event_loops import one_loop_for_the_file  # noqa: F401
from handlers import app_of, ask_once, asking
from shoal.http.openai import OpenAI
from shoal.http.openai.texts.text_job import SPECIAL
from shoal.http.requests.disconnects import UNNOTICED_S
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling


def usage_of(prompt_tokens, tokens):
    total = prompt_tokens + tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": total}


@dataclass
class Few:
    prompt: str
    max_tokens: Annotated[int, Field(le=9)] = 5


async def few(prompts: list[Few]) -> list[str]:
    return [one.prompt for one in prompts]


@pytest.fixture(scope="module")
async def app(anyio_backend):
    """All models, and one of few tokens, whose path is below that of the protocol."""
    app = openai_app()
    app.endpoint("/v1/own", name="few", methods=("POST",))(few)
    async with app.lifespan():
        yield app


async def completed(app, model, prompt, **more):
    answer = await ask(app, COMPLETIONS, {"model": model, "prompt": prompt, **more})
    assert answer.status == 200, answer.body
    return answer.json()


async def refused(app, asked, path=COMPLETIONS):
    answer = await ask(app, path, asked)
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return answer.status, error


MESSAGE = {"role": "assistant", "content": "USER: HI\nASSISTANT:", "refusal": None}


@pytest.mark.parametrize(
    ("path", "asked", "prefix", "kind", "tokens", "text"),
    [
        (COMPLETIONS, {"prompt": "a b"}, "cmpl-", "text_completion", 2, {"text": "A B"}),
        (CHATS, {"messages": HI}, "chatcmpl-", "chat.completion", 3, {"message": MESSAGE}),
    ],
    ids=["completion", "chat"],
)
async def test_a_whole_text(app, path, asked, prefix, kind, tokens, text):
    answer = await ask(app, path, {"model": "upper", "user": "me", **asked})
    body = answer.json()
    assert body.pop("created") > 1e9
    assert body.pop("id") == prefix + answer.headers["x-request-id"]
    assert body == {
        "object": kind,
        "model": "upper",
        "choices": [{"index": 0, **text, "logprobs": None, "finish_reason": "stop"}],
        "usage": usage_of(tokens, tokens),
    }


async def test_no_reader_of_lines_cuts_a_piece_or_an_error(app):
    text = "CAF\u00c9 A\x85B\u2028C\u2029D"
    for model in ("words", "upper"):
        asked = {"model": model, "prompt": text, "stream": True}
        answer = await ask(app, COMPLETIONS, asked)
        lines = [line for line in answer.body.decode().splitlines() if line]
        assert all(line.startswith("data: ") for line in lines)
        (written,) = text_of(events(answer.body))[0].values()
        assert written.strip() == text


async def test_a_stream_of_a_completion(app):
    found = await streamed(app, model="words", prompt="a b")
    assert [event["choices"][0]["text"] for event in found[:-1]] == ["a ", "b ", ""]
    assert {event["object"] for event in found[:-1]} == {"text_completion"}
    assert len({event["id"] for event in found[:-1]}) == 1
    assert all("usage" not in event for event in found[:-1])
    assert found[-1] == "[DONE]"


async def test_a_stream_of_a_chat_begins_with_the_role_and_ends_with_usage_if_asked(app):
    found = await streamed(app, CHATS, model="words", messages=HI, **USAGE)
    first, *pieces, last, usage, done = found
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [piece["choices"][0]["delta"] for piece in pieces] == [
        {"content": "user: "},
        {"content": "hi\nassistant: "},
    ]
    assert last["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert all(event["usage"] is None for event in found[:-2])
    assert usage["choices"] == []
    assert usage["usage"] == usage_of(3, 2)
    assert done == "[DONE]"


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("asked", "text", "reason"),
    [
        ({}, "a b c d", "stop"),
        ({"max_tokens": 2}, "a b", "length"),
        ({"max_tokens": 4}, "a b c d", "length"),
        ({"max_tokens": 5}, "a b c d", "stop"),
        ({"stop": "c"}, "a b ", "stop"),
        ({"stop": ["x", "b c"]}, "a ", "stop"),  # across pieces
        ({"stop": ["d e"]}, "a b c d", "stop"),  # held back, and then sent
        ({"stop": ["a"]}, "", "stop"),
        ({"stop": ["d"], "max_tokens": 2}, "a b", "length"),
        ({"stop": ["b"], "max_tokens": 2}, "a ", "stop"),
    ],
)
async def test_a_text_ends_whatever_the_model_knows(app, asked, text, reason):
    for model in ("words", "upper", "writer"):
        more = dict(asked)
        if model == "upper" and "stop" in asked:
            more["stop"] = [stop.upper() for stop in asked["stop"]]
        choice = (await completed(app, model, "a b c d", **more))["choices"][0]
        texts, reasons = text_of(await streamed(app, model=model, prompt="a b c d", **more))
        for form, got, why in (
            ("whole", choice["text"], choice["finish_reason"]),
            ("stream", texts[0], reasons[0]),
        ):
            found = (model, form, got.lower().rstrip(), why)
            assert found == (model, form, text.rstrip(), reason)


async def test_a_text_that_has_ended_frees_its_place_before_the_next_step(app):
    asked = {"model": "writer", "prompt": "a b c d e f", "max_tokens": 2}
    # Streams of one text do so on Shoal's own server; on others one step may be wasted.
    for more in ({}, {"n": 2}):
        app.writer.steps.clear()
        await ask(app, COMPLETIONS, asked | more)
        await anyio.sleep(1)
        assert [len(active) for active in app.writer.steps if active] == [more.get("n", 1)] * 2


@pytest.mark.parametrize("more", [{"stream": True}, {}, {"n": 2}, {"n": 2, "stream": True}])
async def test_a_client_that_leaves_frees_its_place_before_the_next_step(app, more):
    app.writer.steps.clear()
    app.writer.is_held = True
    asked = {"model": "writer", "prompt": "a b c d e f", **more}
    call = Call(app, COMPLETIONS, item=asked)
    async with calling(call):
        await settle()
        app.writer.step()
        await settle()
        assert app.writer.steps == [["a b c d e f"] * more.get("n", 1)] * 2
        call.leave()
        await anyio.sleep(UNNOTICED_S + 0.01)
        app.writer.is_held = False
        app.writer.step()
        await anyio.sleep(1)
        assert [one for one in app.writer.steps[2:] if one] == []


async def test_n_makes_n_calls_with_seeds_that_differ(app):
    body = await completed(app, "columns", ["x", "y"], n=2, seed=5, top_p=0.5)
    assert [one["text"] for one in body["choices"]] == ["x 5 0.5", "x 6 0.5", "y 5 0.5", "y 6 0.5"]
    assert [one["index"] for one in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"] == usage_of(2, 12)


async def test_several_texts_are_streamed_together(app):
    found = await streamed(app, model="words", prompt=["a b c", "d e"], n=2, max_tokens=2, **USAGE)
    assert text_of(found) == (
        {0: "a b ", 1: "a b ", 2: "d e ", 3: "d e "},
        {0: "length", 1: "length", 2: "length", 3: "length"},
    )
    assert found[-2]["usage"] == usage_of(5, 8)
    assert found[-1] == "[DONE]"


async def test_a_record_gets_the_parameters_that_it_has_fields_for(app):
    body = await completed(app, "options", "p", presence_penalty=1, top_k=3, temperature=0)
    assert body["choices"][0]["text"] == "p|7|0.0|[]|None|3"
    body = await completed(app, "options", "p", max_tokens=9, stop="!", seed=4, n=1)
    assert body["choices"][0]["text"] == "p|9|1.0|['"  # it ends at the stop sequence
    body = await completed(app, "narrow", "p", temperature=0.25, seed=3)
    assert body["choices"][0]["text"] == "p at 0.25"
    body = await completed(app, "columns", "p", seed=3)
    assert body["choices"][0]["text"] == "p 3 0.25"


async def test_the_default_of_a_record_ends_a_stream_too(openai):
    async def endless(prompts: list[Options]):
        while True:
            yield ["x "] * len(prompts)

    openai.endpoint("/endless", name="endless")(endless)
    async with openai.lifespan():
        choice = (await completed(openai, "endless", "p"))["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("x " * 7, "length")


async def test_messages_are_passed_to_a_model_that_takes_them(app):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "system", "content": parts}, *HI]
    body = (await ask(app, CHATS, {"model": "talk", "messages": messages})).json()
    assert body["choices"][0]["message"]["content"] == "system ab / user hi"
    assert body["usage"]["prompt_tokens"] == 2
    status, error = await refused(app, {"model": "talk", "prompt": "hi"})
    assert (status, error["message"]) == (
        400,
        "The model takes messages only: use /v1/chat/completions",
    )


def template(messages):
    if messages[-1]["role"] != "user":
        raise ValueError("the last message must be the user's")
    return "".join(f"<{one['role']}>{one['content']}" for one in messages)


async def test_the_template_the_tokens_and_the_names_are_the_users():
    names = {"gpt": "upper", "gone": "nothing"}
    app = openai_app(OpenAI(models=names, chat_template=template, count_tokens=len))
    async with app.lifespan():
        asked = {"model": "gpt", "messages": HI, "max_tokens": 7}
        body = (await ask(app, CHATS, asked)).json()
        assert body["choices"][0]["message"]["content"] == "<USER>H"
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"] == usage_of(8, 7)
        status, error = await refused(
            app, asked | {"messages": [{"role": "assistant", "content": None}]}, CHATS
        )
        assert (status, error["message"], error["param"]) == (
            400,
            "the last message must be the user's",
            "messages",
        )
        listed = (await ask(app, "/v1/models", method="GET")).json()
        assert [one["id"] for one in listed["data"]] == ["gpt"]
        for name in ("upper", "gone"):
            assert (await refused(app, {"model": name, "prompt": ""}))[0] == 404


class TemplateError(Exception):
    """As jinja2's."""


class Mute(Exception):
    def __str__(self):
        raise KeyError


REFUSALS = [
    (TemplateError("roles must alternate"), "roles must alternate"),
    (RuntimeError("no tools"), "no tools"),
    (TypeError("not a list"), "not a list"),
    (ExceptionGroup("several", [ValueError("one")]), "several (1 sub-exception)"),
    (ValueError("half a pair \ud800"), "half a pair \\ud800"),
    (KeyError("name"), "The chat template refused the messages: KeyError: 'name'"),
    (AssertionError(), "The chat template refused the messages: AssertionError"),
    (Mute(), "The chat template refused the messages: Mute"),
]


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"n": 2}, {"n": 2, "stream": True}])
@pytest.mark.parametrize("model", ["upper", "words", "options"])
@pytest.mark.one_loop
async def test_a_template_that_raises_refuses_the_messages(more, model, caplog):
    raised = []

    def refusing(messages):
        raise raised[-1]

    app = openai_app(OpenAI(chat_template=refusing), models=[model], debug=True)
    async with app.lifespan():
        for error, text in REFUSALS:
            raised.append(error)
            status, shown = await refused(app, {"model": model, "messages": HI, **more}, CHATS)
            assert (status, shown["message"], shown["param"]) == (400, text, "messages")
        raised.append(HTTPException(413, {"most": 9}))
        status, shown = await refused(app, {"model": model, "messages": HI, **more}, CHATS)
        assert (status, shown["message"].partition(": ")[2]) == (413, '{"most":9}')
        assert app.controller.endpoints[model].errors == 0
    assert not caplog.records


@dataclass
class Chat:
    messages: list[dict[str, str]]


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"n": 2}, {"n": 2, "stream": True}])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.one_loop
async def test_a_template_that_the_handler_applies_refuses_the_messages(streams, more, caplog):
    jinja2 = pytest.importorskip("jinja2")
    errors = [jinja2.TemplateError("roles must alternate")]
    app = shoal.App(protocols=["openai"])

    async def whole(chats: list[Chat]) -> list[str | Exception]:
        return errors * len(chats)

    async def stream(chats: list[Chat]) -> AsyncIterator[list[str]]:
        raise errors[0]
        yield

    app.endpoint("/own", name="own")(stream if streams else whole)
    async with app.lifespan():
        asked = {"model": "own", "messages": HI, **more}
        status, error = await refused(app, asked, CHATS)
        told = "The chat template refused the messages: roles must alternate"
        assert (status, error["message"], error["param"]) == (400, told, "messages")
        assert app.controller.endpoints["own"].errors == 0
        assert not caplog.records
        errors[:] = [jinja2.TemplateNotFound("chat.html")]
        assert (await refused(app, asked, CHATS))[0] == 500
    assert caplog.records


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"n": 2}])
async def test_a_template_that_gives_no_text_fails_its_own_caller_alone(more):
    batches = []
    app = shoal.App(protocols=[OpenAI(chat_template=lambda _: None)])

    @app.endpoint("/upper", name="upper", max_batch_size=8, batch_wait_timeout_s=1)
    async def upper(prompts: list[str]) -> list[str]:
        batches.append(list(prompts))
        return [prompt.upper() for prompt in prompts]

    async with asking(app, COMPLETIONS, {"model": "upper", "prompt": "a"}) as [neighbour]:
        status, error = await refused(app, {"model": "upper", "messages": HI, **more}, CHATS)
        await anyio.sleep(2)
    assert (status, error["type"]) == (500, "server_error")
    assert error["message"] == "The chat template gave no text, but NoneType"
    assert batches == [["a"]]
    assert neighbour.status == 200


async def test_a_function_counts_the_tokens_of_pieces():
    app = openai_app(OpenAI(count_tokens=len), models=["words"])
    async with app.lifespan():
        found = await streamed(app, model="words", prompt="abc def", max_tokens=6, **USAGE)
        assert text_of(found) == ({0: "abc de"}, {0: "length"})
        assert found[-2]["usage"] == usage_of(7, 6)


async def test_the_models(app):
    listed = (await ask(app, "/v1/models", method="GET")).json()
    names = [one["id"] for one in listed["data"]]
    assert listed["object"] == "list"
    assert "numbers" not in names  # it takes no text
    assert set(names) >= {"words", "upper", "options", "narrow", "talk", "embed", "writer"}
    one = (await ask(app, "/v1/models/upper", method="GET")).json()
    assert (one["id"], one["object"], one["owned_by"]) == ("upper", "model", "shoal")
    for name in ("numbers", "nothing", "no/such"):
        answer = await ask(app, f"/v1/models/{name}", method="GET")
        assert (answer.status, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_embeddings(app):
    asked = {"model": "embed", "input": ["aa", "b c"]}
    body = (await ask(app, EMBEDDINGS, asked)).json()
    assert body == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [2.0, 0.5]},
            {"object": "embedding", "index": 1, "embedding": [3.0, 0.5]},
        ],
        "model": "embed",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    asked |= {"input": "aa", "encoding_format": "base64"}
    body = (await ask(app, EMBEDDINGS, asked)).json()
    vector = base64.b64decode(body["data"][0]["embedding"])
    assert struct.unpack("<2f", vector) == (2.0, 0.5)


async def test_embeddings_are_one_batch(openai):
    sizes = []

    @openai.endpoint("/embed", name="embed", max_batch_size=8, batch_wait_timeout_s=1)
    async def embed(texts: list[str]) -> list[list[float]]:
        sizes.append(len(texts))
        return [[1.0]] * len(texts)

    await ask_once(openai, EMBEDDINGS, {"model": "embed", "input": list("abcdefgh")})
    assert sizes == [8]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("asked", [{"n": 7}, {"prompt": ["a"] * 7}])
async def test_more_texts_than_the_queue_has_places_are_taken_in_turns(asked, is_stream, openai):
    async def upper(prompts: list[str]) -> list[str]:
        await anyio.sleep(1)
        return [prompt.upper() for prompt in prompts]

    openai.endpoint("/upper", name="upper", max_batch_size=2, max_queued_requests=2)(upper)
    given = {"model": "upper", "prompt": "a", "stream": is_stream, **asked}
    answer = await ask_once(openai, COMPLETIONS, given)
    assert answer.status == 200
    if is_stream:
        assert answer.body.count(b'"text":"A"') == 7
    else:
        assert [one["text"] for one in answer.json()["choices"]] == ["A"] * 7


@pytest.mark.parametrize("path", [COMPLETIONS, EMBEDDINGS])
async def test_a_request_that_has_begun_waits_for_room_when_others_fill_the_queue(path, openai):
    async def slow(texts: list[str]) -> list[str] | list[list[float]]:
        await anyio.sleep(1)
        return texts if path == COMPLETIONS else [[1.0]] * len(texts)

    openai.endpoint("/slow", name="slow", max_batch_size=1, max_queued_requests=3)(slow)

    answers = []

    async def ask_it():
        given = {"model": "slow", "prompt" if path == COMPLETIONS else "input": ["a"] * 7}
        answers.append((await ask(openai, path, given)).status)
        tasks.cancel_scope.cancel()

    async def ask_often():
        while True:
            await ask(openai, "/slow", "a")
            await anyio.sleep(0.1)

    async with openai.lifespan(), anyio.create_task_group() as tasks:
        tasks.start_soon(ask_it)
        await settle()
        for _ in range(4):
            tasks.start_soon(ask_often)
    assert answers == [200]


async def test_as_many_inputs_as_promised_are_taken_by_an_idle_server(app):
    asked = {"model": "embed", "input": ["a"] * 2048}
    answer = await ask(app, EMBEDDINGS, asked)
    assert (answer.status, len(answer.json()["data"])) == (200, 2048)
    status, error = await refused(app, {**asked, "input": ["a"] * 2049}, EMBEDDINGS)
    assert status == 400
    assert error["message"].endswith("There must be 1 to 2048 inputs, and there are 2049")


NOT_FOUND = "model_not_found"
IMAGE = {"type": "image_url", "image_url": {"url": "http://shoal.test"}}
A_FORMAT = {"type": "json_object"}


def completion(model="upper", **more):
    return COMPLETIONS, {"model": model, "prompt": "a", **more}


def chat(messages=HI, **more):
    return CHATS, {"model": "upper", "messages": messages, **more}


def embedding(**more):
    return EMBEDDINGS, {"model": "embed", "input": "a", **more}


REFUSED = [
    (completion("nope"), 404, "model", NOT_FOUND),
    (completion("numbers"), 404, "model", NOT_FOUND),
    ((COMPLETIONS, {"prompt": "a"}), 400, "model", None),
    ((COMPLETIONS, {"model": "upper"}), 400, "prompt", None),
    ((COMPLETIONS, []), 400, None, None),
    (completion(prompt=[]), 400, "prompt", None),
    (completion(prompt=[1, 2]), 400, "prompt", "unsupported"),
    (completion(prompt=["a"] * 129), 400, "prompt", None),
    (completion(n=129), 400, "n", None),
    (completion(n=0), 400, "n", None),
    (completion(max_tokens="5"), 400, "max_tokens", None),
    (completion(stream="yes"), 400, "stream", None),
    (completion(stop=["a"] * 65), 400, "stop", None),
    (completion(stop="x" * 257), 400, "stop", None),
    (completion(echo=True), 400, "echo", "unsupported"),
    (completion(logprobs=0), 400, "logprobs", "unsupported"),
    (completion(best_of=2), 400, "best_of", "unsupported"),
    (completion(suffix="b"), 400, "suffix", "unsupported"),
    (completion("narrow", prompt="a" * 11), 400, "prompt", None),
    (completion("narrow", temperature=2), 400, "temperature", None),
    (completion("columns"), 400, "seed", None),
    (completion("embed"), 400, "model", None),
    (completion("embed", stream=True), 400, "model", None),
    (completion("embed", n=2), 400, "model", None),
    (completion("embed", n=2, stream=True), 400, "model", None),
    (chat([]), 400, "messages", None),
    (chat(HI * 1025), 400, "messages", None),
    (chat([{"role": 3}]), 400, "messages.0", None),
    (chat([{"role": "user", "content": [IMAGE]}]), 400, "messages.0.content", "unsupported"),
    (chat(tools=[{}]), 400, "tools", "unsupported"),
    (chat(logprobs=True), 400, "logprobs", "unsupported"),
    (chat(response_format=A_FORMAT), 400, "response_format", "unsupported"),
    (completion(stop=5), 400, "stop", None),
    (completion(stop=["a", 5]), 400, "stop", None),
    (completion(prompt=5), 400, "prompt", None),
    (completion(stream_options={"include_usage": 3}), 400, "stream_options", None),
    (chat([{"role": "user", "content": 5}]), 400, "messages.0", None),
    (chat([{"role": "user", "content": "a" * 11}], model="narrow"), 400, "messages", None),
    (chat(max_completion_tokens=99, model="few"), 400, "max_completion_tokens", None),
    (chat(max_tokens=99, model="few"), 400, "max_tokens", None),
    (embedding(input=5), 400, "input", None),
    (embedding(model="narrow", input="a" * 11), 400, "input", None),
    (embedding(model="upper"), 400, "model", None),
    (embedding(model="words"), 400, "model", None),
    (embedding(input=[]), 400, "input", None),
    (embedding(input=[[1]]), 400, "input", "unsupported"),
    (embedding(input=["a"] * 2049), 400, "input", None),
    (embedding(dimensions=2), 400, "dimensions", "unsupported"),
    (embedding(encoding_format="x"), 400, "encoding_format", None),
]


@pytest.mark.one_loop
async def test_what_is_refused(app):
    for (path, asked), status, param, code in REFUSED:
        got, error = await refused(app, asked, path)
        assert (got, error["param"], error["code"]) == (status, param, code), (asked, error)
        assert ".str" not in error["message"]
        assert error["type"] == "invalid_request_error"
    assert {one.name: one.errors for one in app.controller.endpoints.values() if one.errors} == {}


@pytest.mark.one_loop
async def test_a_body_that_is_no_object_is_told_without_advice_for_other_protocols(app):
    for path, asked in (completion(), chat(), embedding()):
        status, error = await refused(app, [asked, asked], path)
        assert (status, error["param"]) == (400, None)
        assert error["message"] == "Input should be an object"


@pytest.mark.one_loop
async def test_what_changes_nothing_is_accepted(app):
    nothing = {
        "tools": [],
        "tool_choice": "none",
        "logprobs": False,
        "response_format": {"type": "text"},
        "logit_bias": {},
        "modalities": ["text"],
        "n": None,
        "stop": None,
        "stream": None,
        "parallel_tool_calls": True,
        "unknown": {"a": [1]},
    }
    answer = await ask(app, CHATS, {"model": "upper", "messages": HI, **nothing})
    assert answer.status == 200, answer.body


async def test_overload_says_when_to_come_back():
    app = shoal.App(protocols=["openai"], overload_status=429)

    async def held(prompts: list[str]) -> list[str]:
        await anyio.sleep_forever()
        return prompts

    app.endpoint("/held", name="held", max_batch_size=1, max_queued_requests=0)(held)
    async with asking(app, COMPLETIONS, {"model": "held", "prompt": "a"}) as [first]:
        await settle()
        answer = await ask(app, COMPLETIONS, {"model": "held", "prompt": "a"})
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert answer.json()["error"]["type"] == "rate_limit_error"
        first.leave()


async def test_a_prompt_that_is_too_long_is_the_clients_mistake(openai):
    async def short(prompts: list[str]) -> list[str]:
        return prompts

    openai.endpoint("/short", name="short", max_batch_size=8, batch_size_fn=len)(short)
    async with openai.lifespan():
        for more in ({}, {"stream": True}, {"n": 2}, {"n": 2, "stream": True}):
            status, error = await refused(openai, {"model": "short", "prompt": "a" * 9, **more})
            assert (status, error["code"]) == (400, "context_length_exceeded")
            assert "costs 9" in error["message"]
            assert "may cost 8" in error["message"]
        own = await ask(openai, "/short", "a" * 9)
        assert (own.status, own.json()["detail"]) == (413, "It costs 9, and a batch may cost 8.")
        assert "retry-after" not in own.headers


async def test_answers_are_counted_under_the_endpoint_and_pieces_are_timed(openai):
    async def slow(prompts: list[str]):
        await anyio.sleep(2)
        for _ in range(3):
            yield ["x"] * len(prompts)
            await anyio.sleep(0.2)

    openai.endpoint("/slow", name="slow")(slow)
    async with openai.lifespan():
        asked = {"model": "slow", "prompt": "a"}
        for more in ({"stream": True}, {}, {"n": 2}, {"n": 2, "stream": True}):
            await ask(openai, COMPLETIONS, asked | more)
        await ask(openai, "/slow", "a")
        await ask(openai, COMPLETIONS, asked | {"n": 1000})
        page = (await ask(openai, "/-/metrics", method="GET")).body.decode()
        counted = "shoal_request_seconds_count"
        assert f'{counted}{{endpoint="slow",outcome="ok",protocol="openai"}} 4.0' in page
        assert f'{counted}{{endpoint="slow",outcome="ok",protocol="json"}} 1.0' in page
        assert f'{counted}{{endpoint="-",outcome="invalid",protocol="openai"}} 1.0' in page
        assert 'shoal_stream_first_item_seconds_count{endpoint="slow"} 7.0' in page
        assert 'shoal_stream_first_item_seconds_bucket{endpoint="slow",le="1.0"} 0.0' in page
        assert 'shoal_stream_first_item_seconds_bucket{endpoint="slow",le="2.5"} 7.0' in page
        assert 'shoal_stream_item_gap_seconds_count{endpoint="slow"} 14.0' in page
        assert 'shoal_stream_item_gap_seconds_bucket{endpoint="slow",le="0.25"} 14.0' in page
        assert 'shoal_stream_item_gap_seconds_bucket{endpoint="slow",le="0.1"} 0.0' in page


async def test_a_client_that_is_silent_gets_heartbeats():
    app = openai_app(heartbeat_s=3, models=["writer"])
    app.writer.is_held = True
    asked = {"model": "writer", "prompt": "a b", "stream": True}
    async with asking(app, COMPLETIONS, asked) as [call]:
        await anyio.sleep(7)
        assert call.body == b":\n" * 2
        app.writer.is_held = False
        app.writer.step()
        await call.returned.wait()
    assert text_of(events(call.body))[0] == {0: "a b "}


@pytest.mark.parametrize("more", [{}, {"n": 2}])
async def test_heartbeats_do_not_end_the_call_of_a_model_that_does_not_stream(more):
    app = shoal.App(protocols=["openai"], heartbeat_s=3)

    @app.endpoint("/slow", name="slow")
    async def slow(prompts: list[str]) -> list[str]:
        await anyio.sleep(7)
        return [prompt.upper() for prompt in prompts]

    asked = {"model": "slow", "prompt": "a", "stream": True, **more}
    answer = await ask_once(app, COMPLETIONS, asked)
    assert answer.body.startswith(b":\n" * 2 + b"data: ")
    assert text_of(events(answer.body))[0] == dict.fromkeys(range(more.get("n", 1)), "A")


def test_wrong_options_are_refused():
    with pytest.raises(TypeError, match="chat_template must be a function, not 'x'"):
        OpenAI(chat_template="x")
    with pytest.raises(ValueError, match="max_choices must be at least 1"):
        OpenAI(max_choices=0)
    with pytest.raises(TypeError, match="models must map names of models"):
        OpenAI(models={"a": 1})


async def test_a_path_or_a_method_that_is_not_there_is_refused_in_the_form_of_the_protocol(app):
    for method, path in (("GET", COMPLETIONS), ("PUT", CHATS), ("DELETE", "/v1/models/upper")):
        answer = await ask(app, path, method=method)
        assert answer.status == 405
        assert "OPTIONS" in answer.headers["allow"]
        assert answer.json()["error"]["type"] == "invalid_request_error"
    for method, path in (("GET", "/v1/own"), ("GET", "/v1x"), ("GET", "/v1/own/")):
        answer = await ask(app, path, method=method)
        is_own = answer.headers["content-type"] == "application/problem+json"
        assert is_own == (path != "/v1/own/")


BASE = "; a client's base URL ends with /v1, without a slash"


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/chat/completions", f"it is /v1/chat/completions{BASE}"),
        ("/completions", f"it is /v1/completions{BASE}"),
        ("/embeddings", f"it is /v1/embeddings{BASE}"),
        ("/models", f"it is /v1/models{BASE}"),
        ("//v1/chat/completions", f"it is /v1/chat/completions{BASE}"),
        ("/v1//chat/completions", f"it is /v1/chat/completions{BASE}"),
        ("/v1/v1/models", f"it is /v1/models{BASE}"),
        ("/v1/models/", "it is /v1/models"),
        ("/v1/chat/completions/", "it is /v1/chat/completions"),
        ("/v1/responses/resp_1", "responses are not stored"),
        ("/responses", f"it is /v1/responses{BASE}"),
        ("/v1/audio/speech", "there are /v1/models, /v1/completions, /v1/chat/completions, "),
        ("//v1", "there are /v1/models, "),
        ("/v1/", "there are /v1/models, "),
    ],
)
async def test_a_path_that_is_nearly_right_is_told_the_right_one(app, path, told):
    for method in ("GET", "POST"):
        answer = await ask(app, path, method=method)
        if answer.status == 405:
            continue
        error = answer.json()["error"]
        assert (answer.status, error["code"]) == (404, "unknown_url")
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith(f"There is no path {path} here: ")
        assert told in error["message"]


@pytest.mark.one_loop
@pytest.mark.parametrize("path", ["/v1x", "/", "/modelss", "/a/models", "/chat"])
async def test_other_paths_are_refused_in_the_own_form(app, path):
    answer = await ask(app, path, method="PUT")
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.one_loop
@pytest.mark.parametrize("prefix", ["/v1", "/v1/audio", "/v2/models"])
async def test_what_is_mounted_is_reached_below_the_path_of_a_protocol(prefix):
    app = shoal.App(protocols=["openai", "oip"])
    app.mount(prefix, Response(status_code=299))
    async with app.lifespan():
        for method in ("GET", "POST"):
            assert (await ask(app, f"{prefix}/speech", method=method)).status == 299


@pytest.mark.parametrize("more", [{}, {"n": 2}])
async def test_tokens_of_a_prompt_that_can_not_be_counted_are_told_of_as_an_error(more):
    def count(text):
        if text == "a b":
            raise RuntimeError("secret")
        return 1

    app = openai_app(OpenAI(count_tokens=count), models=["upper"])
    asked = {"model": "upper", "prompt": "a b", "stream": True, **USAGE, **more}
    answer = await ask_once(app, COMPLETIONS, asked)
    if more:
        assert events(answer.body)[-1]["error"]["type"] == "server_error"
    else:
        assert (answer.status, answer.json()["error"]["type"]) == (500, "server_error")


async def embedded(result, form, *, inputs="a"):
    async def embed(texts: list[str]) -> list:
        return [result for _ in texts]

    app = app_of(embed, name="embed", settings={"protocols": ["openai"]})
    asked = {"model": "embed", "input": inputs, "encoding_format": form}
    return await ask_once(app, EMBEDDINGS, asked)


@pytest.mark.one_loop
@pytest.mark.parametrize("form", ["float", "base64"])
@pytest.mark.parametrize(
    ("result", "told"),
    [
        (np.zeros((1, 3)), "not of shape (1, 3); return one row for each input"),
        ([[1.0, 2.0]], "not of shape (1, 2); return one row for each input"),
        (((1.0,), (2.0,)), "not of shape (2, 1); return one row for each input"),
        (np.float32(1), "not float"),
        ("a text", "not text"),
        (["a"], "not text"),
        ({"a": 1.0}, "not dict"),
        (None, "not NoneType"),
    ],
)
async def test_a_result_that_is_not_a_vector_is_no_embedding(result, told, form):
    answer = await embedded(result, form)
    error = answer.json()["error"]
    assert (answer.status, error["param"]) == (400, "model")
    assert error["message"].endswith(f"a result must be a vector of numbers, {told}")


async def test_a_failure_is_told_with_the_id_that_the_log_has(app, caplog):
    answer = await ask(app, COMPLETIONS, {"model": "broken", "prompt": "a"})
    message = answer.json()["error"]["message"]
    assert message.endswith(f"under the request id {answer.headers['x-request-id']}.")
    assert answer.headers["x-request-id"] in caplog.text
    asked = {"model": "breaks", "prompt": "a", "stream": True}
    answer = await ask(app, COMPLETIONS, asked)
    message = events(answer.body)[-1]["error"]["message"]
    assert message.endswith(f"under the request id {answer.headers['x-request-id']}.")


@pytest.mark.one_loop
@pytest.mark.parametrize("result", [(1, 0.5), np.array([1.0, 0.5]), [np.float32(1), 0.5]])
async def test_a_vector_may_be_of_any_type(result):
    [whole] = (await embedded(result, "float")).json()["data"]
    assert whole["embedding"] == [1.0, 0.5]
    [packed] = (await embedded(result, "base64")).json()["data"]
    assert struct.unpack("<2f", base64.b64decode(packed["embedding"])) == (1.0, 0.5)


INFINITE = float("inf")
NOT_FINITE = [
    [1.0, float("nan")],
    (INFINITE, -INFINITE),
    np.array([1.0, np.nan]),
    np.array([INFINITE], np.float32),
]


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("result", "form"),
    [
        *[(result, form) for result in NOT_FINITE for form in ("float", "base64")],
        ([1e300], "base64"),  # it does not fit into 32 bits
        ([10**400], "base64"),
    ],
)
async def test_a_vector_with_a_number_that_is_not_finite_is_an_error(result, form):
    answer = await embedded(result, form, inputs=["a", "b"])
    error = answer.json()["error"]
    assert (answer.status, error["type"]) == (500, "server_error")
    assert error["message"] == "The model gave an embedding with a number that is not finite"


async def test_all_inputs_of_a_request_go_to_one_backend(openai):
    async def one(texts: list[str]) -> list[list[float]]:
        return [[1.0] for _ in texts]

    async def two(texts: list[str]) -> list[list[float]]:
        return [[2.0] for _ in texts]

    openai.backend("one", one)
    openai.backend("two", two)
    openai.route("embed", backend={"one": 0.5, "two": 0.5}, path="/embed")
    async with openai.lifespan():
        for _ in range(8):
            asked = {"model": "embed", "input": ["a"] * 16}
            found = (await ask(openai, EMBEDDINGS, asked)).json()["data"]
            assert len({tuple(one["embedding"]) for one in found}) == 1
        endpoint = openai.controller.endpoints["embed"]
        assert (endpoint.requests, endpoint.errors) == (8, 0)


async def test_the_items_are_those_of_the_backend_that_takes_the_call(openai):
    async def plain(prompts: list[str]) -> list[str]:
        return [f"plain {prompt}" for prompt in prompts]

    async def record(prompts: list[Options]) -> list[str]:
        return [f"record {one.prompt}" for one in prompts]

    openai.backend("plain", plain, placement="task")
    openai.backend("record", record, placement="task")
    openai.route("m", backend={"plain": 1.0, "record": 0.0}, path="/m")
    async with openai.lifespan():
        for name in ("plain", "record", "plain"):
            other = "record" if name == "plain" else "plain"
            await openai.controller.set_traffic("m", {name: 1.0, other: 0.0})
            body = await completed(openai, "m", "a")
            assert body["choices"][0]["text"] == f"{name} a"


@pytest.mark.one_loop
async def test_the_texts_of_a_chat_may_come_from_backends_that_take_different_items(openai):
    async def of_messages(chats: list[Chat]) -> list[str]:
        return ["of messages" for _ in chats]

    async def of_text(prompts: list[str]) -> list[str]:
        return prompts

    openai.backend("messages", of_messages, placement="task")
    openai.backend("text", of_text, placement="task")
    openai.route("m", backend={"messages": 0.5, "text": 0.5}, path="/m")
    body = (await ask_once(openai, CHATS, {"model": "m", "messages": HI, "n": 32})).json()
    texts = {choice["message"]["content"] for choice in body["choices"]}
    assert texts == {"of messages", "user: hi\nassistant:"}
    assert body["usage"]["prompt_tokens"] == 3  # those of the template


async def test_a_model_that_is_deleted_is_not_there_until_it_is_made_again(app):
    for _ in range(2):
        await completed(app, "upper", "a")
        await app.controller.delete_endpoint("upper")
        status, error = await refused(app, {"model": "upper", "prompt": "a"})
        assert (status, error["code"]) == (404, NOT_FOUND)
        await app.controller.create_endpoint("upper", backend="upper", route="/upper")


async def test_null_is_as_if_a_parameter_was_absent(app):
    answer = await ask(app, *embedding(dimensions=None, encoding_format=None))
    assert answer.status == 200
    special = {**dict.fromkeys(SPECIAL), "stream_options": {"include_usage": None}}
    answer = await ask(app, CHATS, {"model": "upper", "messages": HI, **special})
    assert answer.status == 200, answer.body
    answer = await ask(app, *completion("upper", n=2, **special))
    assert answer.status == 200, answer.body
    nulls = dict.fromkeys(("n", "stop", "stream", "stream_options", "seed", "temperature"))
    asked = {"model": "upper", "max_tokens": 1, "max_completion_tokens": None, **nulls}
    body = (await ask(app, CHATS, {"messages": HI, **asked})).json()
    assert body["choices"][0]["message"]["content"] == "USER:"
    body = await completed(app, "options", "a", **nulls)
    assert body["choices"][0]["text"].startswith("a|7|1.0|[]|None")
    await completed(app, "options", "a", seed=None, n=2)


@pytest.mark.parametrize("texts", [1, 2])
async def test_the_failure_of_a_streamed_completion_is_kept_by_nobody(texts, caplog, openai):
    caplog.set_level("CRITICAL", "shoal")  # a record of the log would keep it
    failures = []

    class Failure(Exception):  # builtin ones can't be referred to weakly
        pass

    @openai.endpoint("/failing", name="failing", batch=False)
    async def failing(prompt: str) -> AsyncIterator[str]:
        yield prompt
        error = Failure()
        failures.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    gc.collect()
    gc.disable()
    try:
        async with openai.lifespan():
            await streamed(openai, model="failing", prompt="a", n=texts)
            await settle()
            assert failures
            assert [failure() for failure in failures] == [None] * len(failures)
    finally:
        gc.enable()


async def test_a_streamed_text_that_fails_ends_the_others(caplog, openai):
    ended = []

    @openai.endpoint("/uneven", name="uneven", batch=False)
    async def uneven(prompt: str) -> AsyncIterator[str]:
        try:
            yield "a "
            if prompt == "fails":
                raise ValueError
            await anyio.sleep_forever()
        finally:
            ended.append(prompt)

    async with openai.lifespan():
        *_, failed = await streamed(openai, model="uneven", prompt=["fails", "waits"])
        assert failed["error"]["type"] == "server_error"
        assert ended == ["fails", "waits"]
