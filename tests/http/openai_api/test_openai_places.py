"""OpenAI's protocol over code in processes and threads, and over functions of one request."""

from typing import NamedTuple

import pytest
import text_code
from openai_app import events, text_of

import shoal
from shoal.testing.asgi import ask

pytestmark = pytest.mark.real_time

COMPLETIONS = "/v1/completions"
CHATS = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
USAGE = {"stream_options": {"include_usage": True}}


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
        pytest.param(
            place, id=name, marks=[pytest.mark.one_loop] if place.runs_in == "process" else []
        )
        for name, place in PLACES.items()
    ],
)


async def streamed(app, path, **asked):
    answer = await ask(app, path, {"stream": True, **asked})
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events(answer.body)


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
