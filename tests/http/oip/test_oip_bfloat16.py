"""Results of ``ml_dtypes.bfloat16`` in the Open Inference Protocol: the datatype BF16."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

import shoal
from shoal.testing.asgi import ask

ml_dtypes = pytest.importorskip("ml_dtypes")
np = pytest.importorskip("numpy")

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

BF16 = ml_dtypes.bfloat16
TWO_ROWS = {"inputs": [{"name": "x", "shape": [2], "datatype": "INT64", "data": [0, 1]}]}
IN_BINARY = {"parameters": {"binary_data_output": True}}
LARGEST = 3.3895313892515355e38


def halves(values: list[float]) -> bytes:
    """The bytes of BF16 elements: the upper halves of 32-bit floats."""
    return b"".join(struct.pack("<f", one)[2:] for one in values)


async def asked(results: list[Any], *, binary: bool) -> tuple[Any, bytes]:
    """The outputs of a model with two results, and the binary data that follows them."""
    app = shoal.App(protocols=["oip"])

    async def model(x):
        return [results[one] for one in x]

    model.__annotations__ = {"x": list[int], "return": list[Any]}
    app.endpoint("/m", name="m", max_batch_size=2)(model)
    async with app.lifespan():
        body = TWO_ROWS | (IN_BINARY if binary else {})
        answer = await ask(app, "/v2/models/m/infer", body)
    assert answer.status == 200, answer.body
    length = int(answer.headers.get("inference-header-content-length", len(answer.body)))
    return json.loads(answer.body[:length])["outputs"], answer.body[length:]


@pytest.mark.parametrize(
    ("results", "shape", "data"),
    [
        (np.array([[1, -2.5], [0.1, LARGEST]], BF16), [2, 2], [1.0, -2.5, 0.10009765625, LARGEST]),
        (np.array([[1, 2], [3, 4]], BF16).T, [2, 2], [1.0, 3.0, 2.0, 4.0]),
        (np.ones((2, 1, 3, 1), BF16), [2, 1, 3, 1], [1.0] * 6),
        (np.zeros((2, 0), BF16), [2, 0], []),
        ([BF16(0.5), BF16(-1)], [2], [0.5, -1.0]),
        ([np.array(0.5, BF16), np.array(-1, BF16)], [2], [0.5, -1.0]),
    ],
    ids=["rows", "not contiguous", "dimensions", "empty", "scalars", "arrays of one"],
)
async def test_an_array_of_bfloat16_is_a_bf16(results, shape, data):
    described = {"name": "output", "datatype": "BF16", "shape": shape}
    [output], rest = await asked(list(results), binary=False)
    assert (output, rest) == ({**described, "data": data}, b"")
    [output], rest = await asked(list(results), binary=True)
    assert output == {**described, "parameters": {"binary_data_size": 2 * len(data)}}
    assert rest == halves(data)


async def test_it_may_be_one_of_several_outputs():
    results = [{"vector": np.array([one, 0.5], BF16), "number": one} for one in (1, 2)]
    outputs, _ = await asked(results, binary=False)
    assert [(one["name"], one["datatype"], one["data"]) for one in outputs] == [
        ("vector", "BF16", [1.0, 0.5, 2.0, 0.5]),
        ("number", "INT64", [1, 2]),
    ]
    outputs, rest = await asked(results, binary=True)
    assert [one["parameters"]["binary_data_size"] for one in outputs] == [8, 16]
    assert rest == halves([1, 0.5, 2, 0.5]) + struct.pack("<2q", 1, 2)


async def test_what_is_not_finite_is_in_binary_data_alone():
    results = list(np.array([[np.inf, -np.inf], [np.nan, 1]], BF16))
    [output], _ = await asked(results, binary=False)
    assert output["data"] == [None, None, None, 1.0]  # JSON has no such numbers
    _, rest = await asked(results, binary=True)
    assert rest == np.stack(results).tobytes()


async def test_an_annotation_of_bfloat16_is_told_of():
    app = shoal.App(protocols=["oip"])

    async def model(x):
        return x

    array = np.ndarray[Any, np.dtype[BF16]]
    model.__annotations__ = {"x": list[array], "return": list[array]}
    app.endpoint("/m", name="m")(model)
    async with app.lifespan():
        told = (await ask(app, "/v2/models/m", method="GET")).json()
    assert told["inputs"] == [{"name": "x", "datatype": "BF16", "shape": [-1, -1]}]
    assert told["outputs"] == [{"name": "output", "datatype": "BF16", "shape": [-1, -1]}]
