"""Answers in other protocols than Shoal's own are compressed as well, also where none waits."""

import gzip
import json

import httpx
import pytest
from live_server import live
from openai_app import events, openai_app, text_of

import shoal

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

TEXT = "many " * 100
TENSOR = {"inputs": [{"name": "x", "shape": [1, 500], "datatype": "FP64", "data": [1.5] * 500}]}


def serving(path, asked):
    """The head and the body of an answer of this package's server, as it was sent."""
    app = shoal.App(protocols=["oip", "openai"], compress_from_bytes=100)

    @app.endpoint("/upper", name="upper")
    async def upper(prompts: list[str]) -> list[str]:
        return [prompt.upper() for prompt in prompts]

    @app.endpoint("/words", name="words")
    async def words(prompts: list[str]):
        for word in prompts[0].split():
            yield [f"{word} " for _ in prompts]

    @app.endpoint("/same", name="same")
    async def same(rows: list[list[float]]) -> list[list[float]]:
        return rows

    return sent_by(app, path, asked)


async def sent_by(app, path, asked):
    async with (
        live(app) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as asking,
        asking.stream("POST", path, json=asked, headers={"accept-encoding": "gzip"}) as answer,
    ):
        return answer, b"".join([piece async for piece in answer.aiter_raw()])


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"model": "upper", "prompt": TEXT}),
        ("/v1/completions", {"model": "words", "prompt": TEXT}),
        ("/v2/models/same/infer", TENSOR),
        ("/v2/models/same/infer", {**TENSOR, "parameters": {"binary_data_output": True}}),
    ],
)
async def test_a_whole_answer_is_compressed(path, asked):
    answer, sent = await serving(path, asked)
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["vary"] == "accept-encoding"
    body = gzip.decompress(sent)
    assert len(sent) < len(body)
    head = body[: int(answer.headers.get("inference-header-content-length", len(body)))]
    assert {"model", "model_name"} & json.loads(head).keys()


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"stop": ["c d"]}, {"max_tokens": 2}])
async def test_a_stream_of_texts_is_compressed(more):
    asked = {"model": "words", "prompt": "a b c d", "stream": True, **more}
    answer, sent = await serving("/v1/completions", asked)
    assert answer.headers["content-encoding"] == "gzip"
    found = events(gzip.decompress(sent))
    plain, plainly_sent = await sent_by(openai_app(), "/v1/completions", asked)
    assert "content-encoding" not in plain.headers
    assert text_of(found) == text_of(events(plainly_sent))
    assert found[-1] == "[DONE]"
