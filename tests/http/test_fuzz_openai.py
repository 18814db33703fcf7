"""Random bodies to OpenAI's paths: none is an error of the server, and nothing is kept of them."""

import json
import os

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai_app import events, openai_app

from shoal.testing import run_virtually
from shoal.testing.asgi import Call

CASES = int(os.environ.get("SHOAL_SOAK_PROGRAMS", "20000"))
NAMES = [
    "words",
    "upper",
    "options",
    "narrow",
    "talk",
    "columns",
    "embed",
    "numbers",
    "writer",
    "x",
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
    {"type": st.sampled_from(["text", "image_url"])}, optional={"text": TEXTS}
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": ROLES | JSON}, optional={"content": TEXTS | st.lists(PARTS) | JSON}
    ),
    max_size=4,
)
ASKED = st.fixed_dictionaries(
    {"model": st.sampled_from(NAMES) | JSON},
    optional={
        "prompt": TEXTS | st.lists(TEXTS, max_size=3) | JSON,
        "messages": MESSAGES | JSON,
        "input": TEXTS | st.lists(TEXTS, max_size=3) | JSON,
        "n": st.integers(1, 4) | JSON,
        "max_tokens": st.integers(1, 5) | JSON,
        "max_completion_tokens": st.integers(1, 5) | JSON,
        "stop": TEXTS | st.lists(TEXTS, max_size=5) | JSON,
        "stream": st.booleans() | JSON,
        "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}) | JSON,
        "temperature": st.floats(0, 2) | JSON,
        "seed": NUMBERS | JSON,
        "tools": JSON,
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
PATHS = st.sampled_from(["/v1/completions", "/v1/chat/completions", "/v1/embeddings"])


async def answered(cases):
    """Sends each body; checks its answer, and that nothing is left of it."""
    app = openai_app()
    async with app.lifespan():
        for path, body in cases:
            call = Call(app, path, body=body, headers=[("content-type", "application/json")])
            with anyio.fail_after(60):
                await call.run()
            answer = call.answer
            assert answer.status < 500, (path, body, answer.body)
            if answer.status != 200:
                assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}
            elif answer.headers["content-type"] == "text/event-stream":
                found = events(answer.body)
                assert found[-1] == "[DONE]", (path, body, found)
            else:
                json.loads(answer.body)
        await anyio.sleep(1)
        for backend in app.controller.backends.values():
            assert (backend.queued, backend.running) == (0, 0)


@pytest.mark.timeout(120)  # takes seconds; but when it fails Hypothesis looks for a short list
@given(st.lists(st.tuples(PATHS, BODIES), max_size=20))
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
def test_no_body_is_an_error_of_the_server(cases):
    run_virtually(lambda: answered(cases), backend="asyncio")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@given(st.lists(st.tuples(PATHS, BODIES), min_size=100, max_size=100))
@settings(max_examples=max(1, CASES // 100), suppress_health_check=list(HealthCheck))
def test_no_body_of_many_is_an_error_of_the_server(cases):
    run_virtually(lambda: answered(cases), backend="trio")
