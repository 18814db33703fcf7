"""Requests of the Open Inference Protocol that nobody meant, with tensors in JSON and in binary."""

import json
from typing import Any

import pytest
from fuzzing import Sent, checking, fuzzed, sent_by
from hypothesis import strategies as st

import shoal
from shoal.http.oip.tensor import DATATYPES

pytestmark = pytest.mark.slow

np = pytest.importorskip("numpy")
NDArray = pytest.importorskip("numpy.typing").NDArray

ANNOTATIONS = {
    "any": Any,
    "text": str,
    "list": list[float],
    "array": np.ndarray,
    "numbers": NDArray[np.int8],
    "bytes": bytes,
}


def fuzzed_app() -> shoal.App:
    app = shoal.App(protocols=["oip"], max_body_bytes=2**20)
    for name, annotation in ANNOTATIONS.items():

        async def same(x):
            return x

        same.__annotations__ = {"x": list[annotation], "return": list[Any]}
        app.endpoint(f"/{name}", name=name, max_batch_size=8)(same)
    return app


texts = st.text(max_size=5) | st.sampled_from(["\ud800", "a" * 300, "\r\nX-A: b", "id", "\x00"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
shapes = st.lists(st.integers(-1, 5) | st.sampled_from([2**40, 2**63, 2**64]), max_size=5)
datatypes = st.sampled_from([*DATATYPES, "FP8", "", "bool"])
described = st.fixed_dictionaries(
    {"name": st.sampled_from(["x", "y"]) | texts, "shape": shapes | values, "datatype": datatypes},
    optional={
        "data": st.lists(values, max_size=6) | values,
        "parameters": st.fixed_dictionaries(
            {}, optional={"binary_data_size": st.integers(-1, 40) | values}
        ),
    },
)
# Tensors whose shape and size are right, so that what is in them is read.
right = st.tuples(st.integers(0, 3), st.integers(1, 2), datatypes, values).map(
    lambda drawn: {
        "name": "x",
        "shape": [drawn[0], drawn[1]],
        "datatype": drawn[2],
        "data": [drawn[3]] * (drawn[0] * drawn[1]),
    }
)
outputs = st.lists(
    st.fixed_dictionaries({"name": st.just("output") | texts}, optional={"parameters": values}),
    max_size=2,
)
requests = st.fixed_dictionaries(
    {"inputs": st.lists(described | right, max_size=3) | values},
    optional={
        "id": texts | values,
        "outputs": outputs | values,
        "parameters": st.fixed_dictionaries(
            {}, optional={"binary_data_output": st.booleans(), "sequence_id": values}
        )
        | values,
    },
)
paths = st.tuples(
    st.sampled_from([*ANNOTATIONS, "nothing", "%00", "a" * 200]),
    st.sampled_from(["/infer"] * 9 + ["/versions/1/infer", "/ready", ""]),
).map(lambda pair: f"/v2/models/{pair[0]}{pair[1]}")
kinds = st.sampled_from(["application/json"] * 5 + ["application/octet-stream", "text/plain", ""])


def json_case(path, value, rubbish, kind):
    body = json.dumps(value).encode() if rubbish is None else rubbish
    return Sent(path, body, (("content-type", kind),) if kind else ())


def binary_case(path, value, data, off):
    head = json.dumps(value).encode()
    length = off if isinstance(off, str) else str(len(head) + off)
    name = "Inference-Header-Content-Length"
    kind = ("content-type", "application/octet-stream")
    return Sent(path, head + data, (kind, (name, length)))


binary_input = st.tuples(
    st.sampled_from(list(DATATYPES)), st.integers(0, 3), st.integers(0, 40) | st.none()
).map(
    lambda drawn: {
        "name": "x",
        "shape": [drawn[1], 1],
        "datatype": drawn[0],
        "parameters": {"binary_data_size": 8 * drawn[1] if drawn[2] is None else drawn[2]},
    }
)
CASES = {
    "json": st.builds(json_case, paths, requests, st.none() | st.none() | st.binary(), kinds),
    "binary": st.builds(
        binary_case,
        paths,
        requests | binary_input.map(lambda one: {"inputs": [one]}),
        st.binary(max_size=60) | st.integers(0, 3).map(lambda number: bytes(8 * number)),
        st.just(0)
        | st.integers(-3, 3)
        | st.sampled_from(["", "x", "-1", "1e3", "9" * 30, "+1", "0"]),
    ),
}


def check_form(sent, answer):
    """An error is one of the protocol, or a text about what is no HTTP."""
    if answer.status == 200:
        length = int(answer.headers.get("inference-header-content-length", len(answer.body)))
        json.loads(answer.body[:length])
    elif answer.headers["content-type"].startswith("text/plain"):
        assert sent.directly
    elif answer.body:
        assert answer.headers["content-type"] == "application/json"
        [(name, text)] = json.loads(answer.body).items()
        assert name == "error"
        assert len(text) < 500


@fuzzed
@pytest.mark.parametrize("kind", CASES)
def test_a_request_that_nobody_meant_is_no_servers_error(fuzz, kind):
    fuzz(fuzzed_app, sent_by(CASES[kind]), checking(check_form))
