"""Where a text ends, however the model divides it into pieces."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_app import events, openai_app, text_of

from shoal.http.openai.texts.chats import ChatJob
from shoal.http.openai.texts.results import TextEnd, TextOutput
from shoal.http.openai.texts.text_job import Prompts
from shoal.testing.asgi import ask

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
        whole = (await ask(app, "/v1/completions", {**asked, "n": n})).json()
        stream = await ask(app, "/v1/completions", {**asked, "n": n, **more})
    *pieces, usage, done = events(stream.body)
    assert [one["finish_reason"] for one in whole["choices"]] == [reason] * n
    assert text_of(pieces) == (
        {one["index"]: one["text"] for one in whole["choices"]},
        dict.fromkeys(range(n), reason),
    )
    assert (usage["usage"], done) == (whole["usage"], "[DONE]")
