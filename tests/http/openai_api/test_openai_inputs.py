"""OpenAI's paths for ranks, scores, classes and speech."""

import gc
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
import numpy as np
import pytest
from openai_app import events
from pydantic import BaseModel, Field

import shoal
from event_loops import one_loop_for_the_file  # noqa: F401
from handlers import ask_together, asking
from shoal.testing import settle
from shoal.testing.asgi import ask

RERANK = "/v1/rerank"
SCORE = "/v1/score"
CLASSIFY = "/v1/classify"
SPEECH = "/v1/audio/transcriptions"
DOCUMENTS = ["aaa", {"text": "aaaaa", "id": 7}, "a"]


class Pair(BaseModel):
    query: str
    document: Annotated[str, Field(max_length=9)]
    instruction: str = "none"


@dataclass
class Speech:
    file: bytes
    language: str = "en"
    temperature: float = 1.0
    timestamp_granularities: list[str] | None = None
    filename: str = ""
    response_format: str = "json"


@pytest.fixture(scope="module")
async def app(anyio_backend):
    app = shoal.App(protocols=["openai"])
    app.pairs = []

    @app.endpoint("/rank", name="rank")
    async def rank(pairs: list[tuple[str, str]]) -> np.ndarray:
        app.pairs += pairs
        return np.array([len(document) / 10 for _, document in pairs], np.float32)

    @app.endpoint("/records", name="records")
    async def records(pairs: list[Pair]) -> list[list[float]]:
        app.pairs += [(one.query, one.document, one.instruction) for one in pairs]
        return [[float(len(one.document))] for one in pairs]

    @app.endpoint("/parameters", name="parameters")
    async def parameters(query: list[str], document: list[str]) -> list[Any]:
        return [float(document[0]) if document[0][0].isdigit() else document[0]]

    @app.endpoint("/classes", name="classes")
    async def classes(texts: list[str]) -> list[Any]:
        return [RESULTS[text] for text in texts]

    @app.endpoint("/pieces", name="pieces")
    async def pieces(files: list[bytes]):
        for piece in ["hello ", "wor", "ld"]:
            yield [piece for _ in files]

    @app.endpoint("/speech", name="speech")
    async def speech(files: list[Speech]) -> list[dict[str, Any]]:
        return [
            {"text": repr(one), "duration": 1.5, "segments": [], "language": one.language}
            for one in files
        ]

    async with app.lifespan():
        yield app


RESULTS = {
    "dict": {"good": 0.25, "bad": 0.75},
    "vector": np.array([0.75, 0.25], np.float32),
    "list": [{"label": "x", "score": 0.5}, {"label": "y", "score": 1}],
    "one": {"label": "x", "score": 0.5},
    "nan": {"x": float("nan")},
    "text": "x",
    "mixed": {"label": "x"},
}


async def answered(app, path, status=200, **asked):
    app.pairs.clear()
    answer = await ask(app, path, asked)
    assert answer.status == status, answer.body
    return answer.json()


async def test_documents_are_ranked(app):
    asked = {"model": "rank", "query": "q", "documents": DOCUMENTS}
    body = await answered(app, RERANK, **asked)
    assert app.pairs == [("q", "aaa"), ("q", "aaaaa"), ("q", "a")]
    assert body.pop("id").startswith("rerank-")
    assert body == {
        "object": "list",
        "model": "rank",
        "results": [
            {"index": 1, "relevance_score": 0.5, "document": {"text": "aaaaa", "id": 7}},
            {"index": 0, "relevance_score": pytest.approx(0.3), "document": {"text": "aaa"}},
            {"index": 2, "relevance_score": pytest.approx(0.1), "document": {"text": "a"}},
        ],
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
        "meta": {
            "api_version": {"version": "1"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": 6},
        },
    }
    body = await answered(app, RERANK, **asked, top_n=1, return_documents=False)
    assert body["results"] == [{"index": 1, "relevance_score": 0.5}]
    body = await answered(app, "/v2/rerank", **asked, top_n=9)
    assert [set(one) for one in body["results"]] == [{"index", "relevance_score"}] * 3


async def test_records_of_pairs_get_the_parameters_of_a_request(app):
    asked = {"model": "records", "query": "q", "documents": ["a"], "instruction": "find"}
    body = await answered(app, RERANK, **asked)
    assert app.pairs == [("q", "a", "find")]
    assert body["results"][0]["relevance_score"] == 1.0
    error = (await answered(app, RERANK, 400, **{**asked, "documents": ["a" * 10]}))["error"]
    assert error["param"] == "documents"
    body = await answered(app, RERANK, model="parameters", query="q", documents=["7"])
    assert body["results"][0]["relevance_score"] == 7.0


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ("a", "b", [("a", "b")]),
        ("a", ["b", "c"], [("a", "b"), ("a", "c")]),
        (["a", "d"], ["b", "c"], [("a", "b"), ("d", "c")]),
    ],
)
async def test_scores_of_texts(app, first, second, pairs):
    body = await answered(app, SCORE, model="rank", text_1=first, text_2=second)
    assert app.pairs == pairs
    assert [one["index"] for one in body["data"]] == [*range(len(pairs))]
    assert {one["object"] for one in body["data"]} == {"score"}
    assert body["data"][0]["score"] == pytest.approx(0.1)
    assert body["usage"] == {"prompt_tokens": 2 * len(pairs), "total_tokens": 2 * len(pairs)}


@pytest.mark.parametrize("path", [RERANK, SCORE, CLASSIFY])
async def test_the_inputs_of_several_requests_share_batches(path, openai):
    sizes = []

    async def rank(pairs: list[tuple[str, str]]) -> list[float]:
        sizes.append(len(pairs))
        return [0.5] * len(pairs)

    async def classes(texts: list[str]) -> list[list[float]]:
        sizes.append(len(texts))
        return [[1.0]] * len(texts)

    code = classes if path == CLASSIFY else rank
    openai.endpoint("/m", name="m", max_batch_size=8, batch_wait_timeout_s=1)(code)
    asked = {
        RERANK: {"query": "q", "documents": ["a"] * 4},
        SCORE: {"text_1": "q", "text_2": ["a"] * 4},
        CLASSIFY: {"input": ["a"] * 4},
    }[path]
    await ask_together(openai, path, asked, asked)
    assert sizes == [8]


async def test_a_client_that_leaves_takes_its_documents_along(openai):
    ran = []

    @openai.endpoint("/m", name="m", max_batch_size=1)
    async def rank(pairs: list[tuple[str, str]]) -> list[float]:
        ran.extend(pairs)
        await anyio.sleep(1)
        return [0.5] * len(pairs)

    async with asking(openai, RERANK, {"query": "q", "documents": ["a"] * 4}) as [call]:
        await settle()
        call.leave()
        await anyio.sleep(9)
    assert len(ran) == 1


@pytest.mark.parametrize(
    ("text", "label", "probs", "labels"),
    [
        ("dict", "bad", [0.25, 0.75], ["good", "bad"]),
        ("vector", "LABEL_0", [0.75, 0.25], ["LABEL_0", "LABEL_1"]),
        ("list", "y", [0.5, 1.0], ["x", "y"]),
        ("one", "x", [0.5], ["x"]),
    ],
)
async def test_classes(app, text, label, probs, labels):
    body = await answered(app, CLASSIFY, model="classes", input=text)
    assert body["data"] == [
        {"index": 0, "label": label, "probs": probs, "num_classes": len(probs), "labels": labels}
    ]
    assert body["usage"] == {"prompt_tokens": 1, "total_tokens": 1}


RANK = {"model": "rank", "query": "q", "documents": ["a"]}
WRONG = [
    (RERANK, {"model": "rank", "query": "q", "documents": []}, 400, "documents"),
    (RERANK, {"model": "rank", "query": "q", "documents": ["a"] * 2049}, 400, "documents"),
    (RERANK, {"model": "rank", "query": "q", "documents": [{"id": 1}]}, 400, "documents.0"),
    (RERANK, {"model": "rank", "query": "q", "documents": [1]}, 400, "documents.0"),
    (RERANK, {"model": "rank", "query": "q"}, 400, "documents"),
    (RERANK, {"model": "rank", "documents": ["a"]}, 400, "query"),
    (RERANK, {**RANK, "top_n": 0}, 400, "top_n"),
    (RERANK, {**RANK, "rank_fields": ["x"]}, 400, "rank_fields"),
    (RERANK, {"model": "classes", "query": "q", "documents": ["a"]}, 404, "model"),
    (RERANK, {"model": "pieces", "query": "q", "documents": ["a"]}, 400, "model"),
    (RERANK, {"model": "parameters", "query": "q", "documents": ["x"]}, 400, "model"),
    (RERANK, {"query": "q", "documents": ["a"]}, 400, "model"),
    (SCORE, {"model": "rank", "text_1": ["a", "b"], "text_2": "c"}, 400, "text_1"),
    (SCORE, {"model": "rank", "text_1": [], "text_2": []}, 400, "text_2"),
    (SCORE, {"model": "rank", "text_1": "a", "text_2": ["c"] * 2049}, 400, "text_2"),
    (SCORE, {"model": "parameters", "text_1": "a", "text_2": "1e999"}, 500, None),
    (CLASSIFY, {"model": "classes", "input": []}, 400, "input"),
    (CLASSIFY, {"model": "classes", "input": "nan"}, 500, None),
    (CLASSIFY, {"model": "classes", "input": "text"}, 400, "model"),
    (CLASSIFY, {"model": "classes", "input": "mixed"}, 400, "model"),
    (CLASSIFY, {"model": "rank", "input": "a"}, 404, "model"),
]


@pytest.mark.one_loop
@pytest.mark.parametrize(("path", "asked", "status", "param"), WRONG)
async def test_wrong_inputs_are_refused(app, path, asked, status, param):
    error = (await answered(app, path, status, **asked))["error"]
    assert error["param"] == param, error


BOUNDARY = "limit"


def part(name, value, filename=None):
    named = f'; filename="{filename}"' if filename is not None else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"


async def spoken(app, *parts, media_type=f"multipart/form-data; boundary={BOUNDARY}", **fields):
    """The response to a form with these fields, and a file if no parts are given."""
    given = parts or (part("file", b"RIFF", "a.wav"),)
    body = b"".join([*given, *(part(name, value) for name, value in fields.items())])
    body += f"--{BOUNDARY}--\r\n".encode()
    return await ask(app, SPEECH, body=body, headers=[("content-type", media_type)])


async def test_speech_becomes_a_text(app):
    answer = await spoken(app, model="pieces")
    assert (answer.status, answer.json()) == (200, {"text": "hello world"})
    answer = await spoken(app, model="pieces", response_format="text")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.body == b"hello world"


async def test_a_record_of_speech_gets_the_fields_of_the_form(app):
    answer = await spoken(
        app,
        part("file", b"RIFF", "a.wav"),
        part("timestamp_granularities[]", "word"),
        part("timestamp_granularities[]", "segment"),
        model="speech",
        language="de",
        temperature="0.5",
        response_format="verbose_json",
    )
    made = Speech(b"RIFF", "de", 0.5, ["word", "segment"], "a.wav", "verbose_json")
    expected = {"text": repr(made), "duration": 1.5, "segments": [], "language": "de"}
    assert answer.json() == expected
    answer = await spoken(app, model="speech", response_format="vtt")
    assert answer.headers["content-type"] == "text/vtt; charset=utf-8"
    assert answer.body.startswith(b"Speech(file=b'RIFF'")


async def test_speech_is_streamed(app):
    answer = await spoken(app, model="pieces", stream="true")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *pieces, done = events(answer.body)
    assert [one["delta"] for one in pieces] == ["hello ", "wor", "ld"]
    assert {one["type"] for one in pieces} == {"transcript.text.delta"}
    assert done == {"type": "transcript.text.done", "text": "hello world"}
    answer = await spoken(app, model="speech", stream="true")
    piece, done = events(answer.body)
    assert piece["delta"] == done["text"]


@pytest.mark.one_loop
async def test_wrong_forms_are_refused(app):
    """Nor is a generator of Starlette's left suspended, of which trio would warn."""
    file = part("file", b"RIFF", "a.wav")
    for given, status, param in (
        (await spoken(app, part("model", "pieces")), 400, "file"),
        (await spoken(app, part("file", "text"), model="pieces"), 400, "file"),
        (await spoken(app, file, file, model="pieces"), 400, None),
        (await spoken(app, file, *[part(f"f{n}", "x") for n in range(65)]), 400, None),
        (await spoken(app, model="rank"), 404, "model"),
        (await spoken(app), 400, "model"),
        (await spoken(app, model="x" * 257), 400, "model"),
        (await spoken(app, model="pieces", stream="maybe"), 400, "stream"),
        (await spoken(app, model="pieces", response_format="srt"), 400, "response_format"),
        (await spoken(app, model="pieces", response_format="xml"), 400, "response_format"),
        (await spoken(app, model="speech", temperature="hot"), 400, "temperature"),
        (await spoken(app, media_type="multipart/form-data"), 400, None),
        (await spoken(app, media_type="application/json"), 415, None),
    ):
        error = given.json()["error"]
        assert (given.status, error["param"]) == (status, param), error
    gc.collect()


@pytest.mark.one_loop
@pytest.mark.parametrize("size", [500, 2**21])
async def test_a_file_above_the_limit_of_bodies_is_refused(size):
    app = shoal.App(protocols=["openai"], max_body_bytes=2 * size)

    @app.endpoint("/speech", name="speech")
    async def speech(files: list[bytes]) -> list[str]:
        return [str(len(file)) for file in files]

    async with app.lifespan():
        answer = await spoken(app, part("file", b"x" * size, "a"))
        assert answer.json() == {"text": str(size)}
        answer = await spoken(app, part("file", b"x" * 2 * size, "a"))
        assert answer.status == 413


async def test_the_list_of_models_has_those_of_pairs_and_of_speech(app):
    listed = (await ask(app, "/v1/models", method="GET")).json()["data"]
    # Bytes alone may be of anything.
    assert {one["id"] for one in listed} == {"rank", "records", "parameters", "classes", "speech"}
