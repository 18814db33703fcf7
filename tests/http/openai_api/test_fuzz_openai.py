"""Random bodies to OpenAI's paths: none is an error of the server, and nothing is kept of them."""

import json
from functools import partial

import pytest
from fuzzing import Sent, checking, fuzzed, sent_by
from hypothesis import strategies as st
from openai_app import events, openai_app

pytestmark = pytest.mark.slow

JSON_TYPE = "application/json"
NAMES = [
    *("words", "upper", "options", "narrow", "talk", "columns", "embed", "numbers", "writer"),
    *("rank", "records", "steps", "classes", "x"),
]
TEXTS = st.text(max_size=20) | st.sampled_from(["", "a b c", "\ud800", "\x00", "a" * 300, "\u2028"])
NUMBERS = st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from([0, 1, 2, 3, 128, 129, -0.0])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
ROLES = st.sampled_from(["user", "system", "assistant", "tool", "developer"])
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url"]) | JSON}, optional={"text": TEXTS | JSON}
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": ROLES | JSON}, optional={"content": TEXTS | st.lists(PARTS) | JSON}
    ),
    max_size=4,
)
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]),
        "role": ROLES | JSON,
        "content": TEXTS | st.lists(PARTS) | JSON,
        "output": TEXTS | JSON,
        "call_id": TEXTS | JSON,
        "arguments": TEXTS | JSON,
    },
)
ASKED = st.fixed_dictionaries(
    {"model": st.sampled_from(NAMES) | JSON},
    optional={
        "prompt": TEXTS | st.lists(TEXTS, max_size=3) | JSON,
        "messages": MESSAGES | JSON,
        "instructions": TEXTS | JSON,
        "text": st.fixed_dictionaries({"format": JSON}) | JSON,
        "include": JSON,
        "input": st.lists(ITEMS, max_size=4)
        | TEXTS
        | st.lists(TEXTS, max_size=3)
        | st.lists(st.lists(NUMBERS))
        | JSON,
        "n": st.integers(1, 4) | JSON,
        "max_tokens": st.integers(1, 5) | JSON,
        "max_completion_tokens": st.integers(1, 5) | JSON,
        "stop": TEXTS | st.lists(TEXTS, max_size=5) | JSON,
        "stream": st.booleans() | JSON,
        "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}) | JSON,
        "temperature": st.floats(0, 2) | JSON,
        "seed": NUMBERS | JSON,
        "tools": st.lists(st.fixed_dictionaries({"type": TEXTS}), max_size=3) | JSON,
        "tool_choice": st.sampled_from(["none", "auto"]) | JSON,
        "query": TEXTS | JSON,
        "documents": st.lists(TEXTS | st.fixed_dictionaries({"text": TEXTS}), max_size=3) | JSON,
        "text_1": TEXTS | st.lists(TEXTS, max_size=3) | JSON,
        "text_2": TEXTS | st.lists(TEXTS, max_size=3) | JSON,
        "top_n": NUMBERS | JSON,
        "logprobs": JSON,
        "response_format": JSON,
        "best_of": JSON,
        "suffix": JSON,
        "encoding_format": st.sampled_from(["float", "base64"]) | JSON,
        "dimensions": JSON,
        "top_k": JSON,
    },
)
BODIES = (
    ASKED.map(lambda asked: json.dumps(asked).encode())
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=50)
)
PATHS = st.sampled_from(
    [
        *("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/classify"),
        *("/v1/score", "/v1/rerank", "/v1/responses", "/v1/audio/transcriptions"),
    ]
)
SPEECH = "/v1/audio/transcriptions"
FIELDS = st.sampled_from(["file", "model", "stream", "response_format", "include[]", "x", ""])
VALUES = TEXTS | st.sampled_from(["speech", "steps", "true", "json", "text", "vtt"])
FORMS = st.lists(
    st.tuples(FIELDS, st.sampled_from(["", '; filename="a"', "; filename"]), VALUES), max_size=5
)


def form(parts):
    lines = [
        f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n'
        for name, more, value in parts
    ]
    return "".join([*lines, "--b--\r\n"]).encode("utf-8", "surrogatepass")


CASES = st.builds(
    lambda path, body: Sent(path, body, (("content-type", "application/json"),)), PATHS, BODIES
) | st.builds(
    lambda body: Sent(SPEECH, body, (("content-type", "multipart/form-data; boundary=b"),)),
    FORMS.map(form) | st.binary(max_size=50),
)


def check_form(sent, answer):
    """An error is an object of the protocol, or a text about what is no HTTP."""
    if answer.headers["content-type"].startswith("text/plain"):
        assert sent.directly
    elif answer.status != 200:
        assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}
    elif answer.headers["content-type"] == "text/event-stream; charset=utf-8":
        if sent.path == "/v1/responses":
            assert b"event: response.completed\n" in answer.body
        elif sent.path == SPEECH:
            assert events(answer.body)[-1]["type"] == "transcript.text.done"
        else:
            assert events(answer.body)[-1] == "[DONE]"
    elif answer.headers["content-type"] == JSON_TYPE:
        json.loads(answer.body)


@fuzzed
def test_no_body_is_an_error_of_the_server(fuzz):
    fuzz(partial(openai_app, max_body_bytes=2**20), sent_by(CASES), checking(check_form))
