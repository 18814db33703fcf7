"""Texts in OpenAI's protocol: where their code runs, how it fails, and where a text ends."""

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import text_code
from hypothesis import given
from hypothesis import strategies as st
from openai_app import CHATS, COMPLETIONS, HI, USAGE, events, openai_app, streamed, text_of
from pydantic import BaseModel, field_validator

import shoal
from base_exceptions import Panic, cancellation
from handlers import ask_once
from shoal.http.openai import OpenAI
from shoal.http.openai.texts.chats import ChatJob
from shoal.http.openai.texts.results import TextEnd, TextOutput
from shoal.http.openai.texts.text_job import Prompts
from shoal.testing.asgi import ask


class Place(NamedTuple):
    """A way to declare a model."""

    runs_in: str
    is_of_one: bool = False

    def app(self, *names):
        app = shoal.App(protocols=["openai"])
        for name in names:
            if self.is_of_one:
                kind = "async_" if self.runs_in == "task" else ""
                options = {"placement": "process"} if self.runs_in == "process" else {}
                code = getattr(text_code, f"{kind}{name}_of_one")
                app.post(f"/{name}", name=name, **options)(code)
            else:
                app.backend(name, f"text_code:{name}", placement=self.runs_in, max_batch_size=4)
                app.route(name, backend=name, path=f"/{name}")
        return app


PLACES = {
    "process": Place("process"),
    "thread": Place("thread"),
    "function of one request": Place("thread", is_of_one=True),
    "async function of one request": Place("task", is_of_one=True),
    "function of one request in a process": Place("process", is_of_one=True),
}
everywhere = pytest.mark.parametrize(
    "place",
    [
        pytest.param(place, id=name, marks=[pytest.mark.one_loop] * (place.runs_in == "process"))
        for name, place in PLACES.items()
    ],
)


@pytest.mark.real_time
@everywhere
async def test_a_model_of_whole_texts_gives_texts_and_streams(place):
    app = place.app("whole")
    async with app.lifespan():
        body = (await ask(app, COMPLETIONS, {"model": "whole", "prompt": ["a b", "c"]})).json()
        assert [one["text"] for one in body["choices"]] == ["A B", "C"]
        assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
        asked = {"model": "whole", "messages": HI, "n": 2, "stop": "\n"}
        body = (await ask(app, CHATS, asked)).json()
        assert [one["message"]["content"] for one in body["choices"]] == ["USER: HI"] * 2
        found = await streamed(app, COMPLETIONS, model="whole", prompt="a b")
        assert (text_of(found), found[-1]) == (({0: "A B"}, {0: "stop"}), "[DONE]")


@pytest.mark.real_time
@everywhere
async def test_a_model_of_pieces_gives_streams_and_whole_texts(place):
    app = place.app("pieces")
    async with app.lifespan():
        found = await streamed(app, COMPLETIONS, model="pieces", prompt="a b c", **USAGE)
        *pieces, usage, done = found
        texts = [one["choices"][0]["text"] for one in pieces]
        assert (texts, done) == (["a ", "b ", "c ", ""], "[DONE]")
        assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
        found = await streamed(app, CHATS, model="pieces", messages=HI, n=2, max_tokens=1)
        expected = dict.fromkeys((0, 1), "user: "), dict.fromkeys((0, 1), "length")
        assert text_of(found) == expected
        for more, texts in (({}, ["a b c "]), ({"n": 2, "stop": "c"}, ["a b "] * 2)):
            asked = {"model": "pieces", "prompt": "a b c", **more}
            body = (await ask(app, COMPLETIONS, asked)).json()
            assert [one["text"] for one in body["choices"]] == texts


@pytest.mark.real_time
@everywhere
async def test_code_that_fails_is_a_server_error_without_its_text(place, caplog):
    app = place.app("fails", "breaks")
    async with app.lifespan():
        for model in ("fails", "breaks"):
            for more in ({}, {"n": 2}, {"stream": True}):
                answer = await ask(app, COMPLETIONS, {"model": model, "prompt": "a", **more})
                if (model, more) == ("breaks", {"stream": True}):
                    *pieces, failed = events(answer.body)
                    assert (answer.status, text_of(pieces)[0]) == (200, {0: "one "})
                else:
                    failed = answer.json()
                    assert answer.status == 500
                assert failed["error"]["type"] == "server_error"
                assert b"sesame" not in answer.body


# Errors of the user's code that are no `Exception`, in requests whose calls have own tasks


KINDS = {"panic": Panic, "exit": SystemExit, "generator": GeneratorExit}


class Item(BaseModel):
    prompt: str

    @field_validator("prompt")
    @classmethod
    def _raise(cls, prompt):
        if prompt in KINDS:
            raise KINDS[prompt]
        return prompt


async def texts(items: list[Item]) -> list[str]:
    return [item.prompt for item in items]


async def pieces(items: list[Item]):
    yield [item.prompt for item in items]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("prompt", KINDS)
@pytest.mark.parametrize("handler", [texts, pieces])
async def test_a_validator_of_an_item_ends_only_its_request(handler, prompt, streams, openai):
    openai.endpoint("/m", name="m")(handler)
    asked = {"model": "m", "prompt": prompt, "n": 2, "stream": streams}
    async with openai.lifespan():
        answer = await ask(openai, COMPLETIONS, asked)
        assert (answer.status, answer.json()["error"]["type"]) == (500, "server_error")
        answer = await ask(openai, COMPLETIONS, {**asked, "prompt": "well"})
        assert answer.status == 200
        endpoint = openai.controller.endpoints["m"]
        assert (endpoint.requests, endpoint.errors) == (2, 1)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_cancellation_that_the_code_has_kept_is_a_failure(count):
    kept = await cancellation()

    def count_tokens(text):
        raise kept

    app = shoal.App(protocols=[OpenAI(count_tokens=count_tokens)])
    app.endpoint("/m", name="m")(texts)
    asked = {"model": "m", "prompt": "a", "n": count, "stream": True}
    answer = await ask_once(app, COMPLETIONS, asked)
    assert answer.status == 500 or b"server_error" in answer.body


TEXTS = st.text("abc", max_size=6)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def written(pieces, stops, most=None, count=None):
    """Returns the text that is sent of these pieces, why it ended, and its number of tokens."""
    end, sent = TextEnd(stops, most, count), []
    for piece in pieces:
        # As a stream does it.
        if end.tokens + 1 < end.plain_below and end.is_clear(piece):
            end.tokens += 1
            sent.append(piece)
        else:
            sent.append(end.take(piece))
        if end.reason is not None:
            break
    sent.append(end.rest())
    return "".join(sent), end.reason, end.tokens


def expected(pieces, stops, most):
    for tokens in range(1, len(pieces) + 1):
        text = "".join(pieces[:tokens])
        found = [text.find(stop) for stop in stops if stop in text]
        if found:
            return text[: min(found)], "stop", tokens
        if tokens == most:
            return text, "length", tokens
    return "".join(pieces), "stop", len(pieces)


@given(st.lists(TEXTS, max_size=8), STOPS, st.none() | st.integers(1, 9))
def test_a_text_ends_where_it_would_if_it_was_searched_from_its_beginning(pieces, stops, most):
    assert written(pieces, stops, most) == expected(pieces, stops, most)


@given(st.lists(TEXTS, max_size=8), STOPS)
def test_nothing_is_held_back_that_can_not_be_a_stop_sequence(pieces, stops):
    end = TextEnd(stops, None, None)
    text = sent = ""
    for piece in pieces:
        text += piece
        sent += end.take(piece)
        if end.reason is not None:
            break
        held = text.removeprefix(sent)
        assert text == sent + held
        assert not held or any(stop.startswith(held) for stop in stops)
        longer = [text[at:] for at in range(len(sent))]
        assert not any(stop.startswith(one) for stop in stops for one in longer)


@given(TEXTS, STOPS)
def test_a_whole_text_ends_before_its_first_stop_sequence(text, stops):
    end = TextEnd(stops, None, len)
    found = [text.find(stop) for stop in stops if stop in text]
    wanted = text[: min(found)] if found else text
    assert end.whole(text) == wanted
    assert (end.reason, end.tokens) == ("stop", len(wanted))


def test_a_function_that_counts_tokens_is_not_called_in_the_task_of_the_handler():
    exchange, model = SimpleNamespace(request_id="1"), SimpleNamespace(name="m")
    job = ChatJob(exchange, model, {}, Prompts(["a"]), chat=False)
    for count, runs_users_code in ((None, False), (len, True)):
        form = job.form(TextOutput(TextEnd((), None, count)))
        assert form.runs_users_code is runs_users_code


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"model": "upper", "prompt": "a b c", "stop": "B"}, "stop"),
        ({"model": "upper", "prompt": "a b c", "max_tokens": 2}, "length"),
        ({"model": "records", "prompt": "a", "tools": [{"type": "function"}]}, "tool_calls"),
        (
            {"model": "records", "prompt": "a", "tools": [{"type": "function"}], "max_tokens": 1},
            "tool_calls",
        ),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
async def test_a_whole_text_ends_as_the_stream_of_it(asked, reason, n):
    app = openai_app(models=["upper", "records"])
    more = {"stream": True, "stream_options": {"include_usage": True}}
    async with app.lifespan():
        whole = (await ask(app, COMPLETIONS, {**asked, "n": n})).json()
        stream = await ask(app, COMPLETIONS, {**asked, "n": n, **more})
    *pieces, usage, done = events(stream.body)
    assert [one["finish_reason"] for one in whole["choices"]] == [reason] * n
    assert text_of(pieces) == (
        {one["index"]: one["text"] for one in whole["choices"]},
        dict.fromkeys(range(n), reason),
    )
    assert (usage["usage"], done) == (whole["usage"], "[DONE]")
