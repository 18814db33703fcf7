"""Results that the JSON and MessagePack libraries refuse or write wrongly, in every protocol."""

import array
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import json
import struct
import uuid
from typing import Any

import anyio
import numpy as np
import ormsgpack
import pydantic.dataclasses
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel

import shoal
from event_loops import one_loop_for_the_file  # noqa: F401
from shoal.core.npy import array_of
from shoal.http.json.endpoint import BYTES, written
from shoal.http.requests.plain import encoded
from shoal.testing.asgi import ask
from socket_in_memory import opened

HALF = "a\ud800b"
WHOLE = "a\N{REPLACEMENT CHARACTER}b"
BIG = 2**70
UNITS = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns"]
NAT = np.datetime64("NaT")


class Fish(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    vector: np.ndarray = Field(serialization_alias="Vector")
    name: str = "cod"
    size: int = 1


class Named(BaseModel):
    first: int = Field(alias="First")


class Renamed(Named):
    second: str = Field("x", serialization_alias="Second", validation_alias="Second")


@dataclasses.dataclass
class Point:
    x: Any
    _hidden: int = 1


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Any
    _hidden: int = 1


@pydantic.dataclasses.dataclass
class Tagged:
    first: bytes = Field(alias="First")


class Text(enum.Enum):
    HALF = HALF


Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024 - as users have them


def as_type(value, accept):
    media_type, body = written(value, accept)
    if media_type == b"application/msgpack":
        return ormsgpack.unpackb(body, option=ormsgpack.OPT_NON_STR_KEYS)
    if media_type == b"application/x-npy":
        return array_of(body)
    return json.loads(body)


def packed(value):
    return as_type(value, b"application/msgpack")


REFUSED_BY_ORJSON = {
    "half a pair": (HALF, WHOLE),
    "two halves": ("\ud83d\ude00", "\N{GRINNING FACE}"),
    "a key": ({HALF: 1}, {WHOLE: 1}),
    "an enum": (Text.HALF, WHOLE),
    "a set": ({HALF}, [WHOLE]),
    "an array of texts": (np.array([HALF]), [WHOLE]),
    "an array of objects": (np.array([HALF, BIG], object), [WHOLE, BIG]),
    "a dataclass": (Point(HALF), {"x": WHOLE}),
    "slots": (Slotted([BIG]), {"x": [BIG]}),
    "a named tuple": (Pair(HALF, 1), [WHOLE, 1]),
    "a big integer": (-BIG, -BIG),
    "a big key": ({BIG: 1}, {str(BIG): 1}),
    "a model": (
        Fish(vector=np.array([0.1], "f4"), name=HALF, size=BIG),
        {"Vector": [0.1], "name": WHOLE, "size": BIG},
    ),
    "numpy's keys": (
        {np.int64(1): 1, np.float64(1.5): 2, np.str_("a"): 3, np.datetime64("2026-01-02"): 4},
        {"1": 1, "1.5": 2, "a": 3, "2026-01-02": 4},
    ),
    "no time": (NAT, None),
    **{f"no time in {unit}": (np.datetime64("NaT", unit), None) for unit in UNITS},
    "no times of nanoseconds": (
        [{"a": np.array(["NaT", "2026"], "M8[ns]")}],
        [{"a": [None, "2026-01-01T00:00:00"]}],
    ),
    "no times": (np.array(["2026", "NaT"], "M8[s]"), ["2026-01-01T00:00:00", None]),
    "no times in rows": (
        {"a": np.array([["NaT"], ["2026"]], "M8[s]")},
        {"a": [[None], ["2026-01-01T00:00:00"]]},
    ),
    "no time in numbers": (
        [np.float32(0.5), {"a": np.array([1.5]), "b": [NAT]}, np.int8(1)],
        [0.5, {"a": [1.5], "b": [None]}, 1],
    ),
    "no time as a key of numbers": ({NAT: [np.float32(0.5)]}, {"NaT": [0.5]}),
    "no time in a dataclass of numbers": (
        [np.float32(0.5), Point(np.array([["NaT"]], "M8[s]"))],
        [0.5, {"x": [[None]]}],
    ),
    "times by the 10 seconds": (np.array([1, "NaT"], "M8[10s]"), ["1970-01-01T00:00:10", None]),
    "a time by the 25 microseconds": (np.datetime64(1, "25us"), "1970-01-01T00:00:00.000025"),
    "a far time": (np.datetime64("12026-01-02"), "12026-01-02"),
    "a time of a year of six digits": (np.datetime64("300000-01-02"), "300000-01-02"),
    "another byte order": (np.array([1.5, 2], ">f4"), [1.5, 2]),
}

AS_ALWAYS = [
    np.float32(0.1),
    np.array([0.1, 0.2], "f4"),
    np.datetime64("2026-01-02"),
    dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    dt.timedelta(days=1),
    decimal.Decimal("1.5"),
    uuid.UUID(int=1),
    {2: 2, 1.5: 3, True: 4, None: 5},
    float("nan"),
    1e16,
    b"ab",
    Point(1),
    Fish(vector=np.array([0.1], "f4")),
    (1, 2),
]


@pytest.mark.parametrize("name", REFUSED_BY_ORJSON)
def test_what_orjson_refuses_is_written_and_all_else_as_always(name):
    value, expected = REFUSED_BY_ORJSON[name]
    assert json.loads(encoded(value)) == expected
    others = b",".join(map(encoded, AS_ALWAYS))
    assert encoded([*AS_ALWAYS, value]) == b"[%b,%b]" % (others, encoded(value))


@pytest.mark.parametrize("value", [object(), {"a": object()}, {(1, 2): 3}, b"\xff", {b"a": BIG}])
def test_what_nothing_can_write_is_a_type_error(value):
    with pytest.raises(TypeError):
        encoded([value, HALF])


def test_a_result_that_contains_itself_is_a_type_error():
    value: list[Any] = []
    value.append(value)
    for accept in (b"", b"application/msgpack"):
        with pytest.raises(TypeError):
            written(value, accept)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.array([1, 2], ">i2"), [1, 2]),
        (np.array([[1.5], [2]], ">f8"), [[1.5], [2.0]]),
        (np.array(3, ">i4"), 3),
        (np.arange(6)[::-2], [5, 3, 1]),
        (np.asfortranarray(np.arange(4).reshape(2, 2)), [[0, 1], [2, 3]]),
        (np.array([(1, 2.5)], [("a", "i4"), ("b", ">f4")]), [[1, 2.5]]),
        (np.array([1, "a", None, np.array([1], ">i2")], object), [1, "a", None, [1]]),
        (np.array(["2026-01-02", "NaT"], "M8[D]"), ["2026-01-02T00:00:00", None]),
        (np.array([1, "NaT"], "m8[s]"), ["PT1S", None]),
        (np.array([True, False]), [True, False]),
        (np.array([1 + 2j], ">c8"), ["1+2j"]),
        (np.array(["a", HALF]), ["a", WHOLE]),
        (np.zeros((2, 0), ">i4"), [[], []]),
        (np.float16(1.5), 1.5),
        (np.array([0.25, 0.5], "f4")[::-1], [0.5, 0.25]),
        (np.array([[0.25], [0.5]], "f2").T, [[0.25, 0.5]]),
        (np.array(0.25, "f4"), 0.25),
        (np.bytes_(b"ab"), b"ab"),
        (np.array([1500, "NaT"], "m8[ns]"), ["PT0.000001S", None]),
        (np.array([1, 2], "m8"), [1, 2]),
        (
            np.array([("2026-01-02", 0.5)], [("t", "M8[ns]"), ("x", "f4")]),
            [["2026-01-02T00:00:00", 0.5]],
        ),
        (np.ma.array([1, 2], mask=[0, 1]), [1, None]),
        (bytearray(b"ab"), b"ab"),
        (Point(np.array([1], ">i2")), {"x": [1]}),
        (Fish(vector=np.array([1], ">i2")), {"Vector": [1], "name": "cod", "size": 1}),
        (Tagged(First=b"ab"), {"First": b"ab"}),
        ([Point(1), {"a": Tagged(First=b"ab")}], [{"x": 1}, {"a": {"First": b"ab"}}]),
        (RootModel[list[Named]]([Named(First=1)]), [{"First": 1}]),
    ],
)
def test_a_value_is_the_same_in_messagepack_as_in_json(value, expected):
    assert packed([value]) == [expected]
    assert json.loads(encoded([value])) == json.loads(encoded([expected]))


@pytest.mark.parametrize("accept", [b"", b"application/msgpack"])
def test_a_memoryview_is_its_elements_or_bytes_or_refused(accept):
    assert as_type(memoryview(array.array("d", [1.5, 2])), accept) == [1.5, 2]
    assert as_type(memoryview(np.arange(4).reshape(2, 2)), accept) == [[0, 1], [2, 3]]
    assert written(memoryview(b"abcd")[::2], accept) == (BYTES, b"ac")
    with pytest.raises(TypeError, match="a memoryview can't be written"):
        written(memoryview(np.array([1], ">i4")), accept)


@pytest.mark.parametrize("layout", [lambda a: a, lambda a: a[::-1][::-1], list, lambda a: a.T])
def test_a_float_of_32_bits_is_as_short_in_json_as_it_can_be(layout):
    assert encoded(layout(np.array([0.1, 0.7], "f4"))) == b"[0.1,0.7]"


def test_a_float_of_32_bits_stays_one_in_messagepack():
    _, body = written(np.array([0.5], "f4"), b"application/msgpack")
    assert len(body) == 6


@pytest.mark.parametrize("name", REFUSED_BY_ORJSON)
def test_what_messagepack_has_no_form_for_is_sent_as_json(name):
    value, expected = REFUSED_BY_ORJSON[name]
    made = packed(value)
    assert made == expected or {str(key): one for key, one in made.items()} == expected


def test_types_of_other_packages_are_numbers_or_not_in_a_file():
    types = pytest.importorskip("ml_dtypes")
    for dtype in (types.bfloat16, types.float8_e4m3fn):
        value = np.array([1.5], dtype)
        assert json.loads(encoded(value)) == packed(value) == [1.5]
        assert as_type(value, b"application/x-npy") == [1.5]


@pytest.mark.parametrize(
    "value",
    [
        np.array([1, 2], ">i2"),
        np.array(3.5),
        np.asfortranarray(np.arange(4).reshape(2, 2)),
        np.array(["2026-01-02", "NaT"], "M8[D]"),
        np.array([1 + 2j]),
        np.zeros((0, 3)),
        np.array([(1, 2.5)], [("a", "i4"), ("b", ">f4")]),
        np.int64(3),
    ],
)
def test_a_file_has_the_dtype_of_the_array(value):
    made = as_type(value, b"application/x-npy")
    assert made.dtype == value.dtype
    np.testing.assert_array_equal(made, value)


@pytest.mark.parametrize("value", [np.ma.array([1, 2], mask=[0, 1]), np.array([1, None])])
def test_an_array_that_a_file_would_change_is_sent_as_json(value):
    assert as_type(value, b"application/x-npy") == [1, None]


# Half of a surrogate pair in a result is U+FFFD in every protocol, and the rest is as always


async def halves(items: list[str]) -> list[Any]:
    return [HALF for _ in items]


async def members(items: list[str]) -> list[Any]:
    return [{"text": HALF, HALF: 2**70} for _ in items]


async def stream(prompts: list[str]):
    yield [HALF for _ in prompts]
    await anyio.lowlevel.checkpoint()
    yield ["b" for _ in prompts]


async def same(items: list[Renamed]) -> list[Renamed]:
    return items


@pytest.fixture(scope="module")
async def app(anyio_backend):
    app = shoal.App(protocols=["oip", "openai"])
    for code in (halves, members, stream, same):
        app.endpoint(f"/{code.__name__}", name=code.__name__)(code)
    async with app.lifespan():
        yield app


@pytest.mark.parametrize(
    "accept", ["text/event-stream", "application/x-ndjson", "application/json"]
)
@pytest.mark.one_loop
async def test_in_a_stream(app, accept):
    answer = await ask(app, "/stream", "x", headers=[("accept", accept)])
    assert WHOLE in answer.body.decode()
    assert '"b"' in answer.body.decode()
    assert "error" not in answer.body.decode()


@pytest.mark.one_loop
async def test_on_a_websocket(app):
    async with opened(app, "/halves") as socket:
        socket.say(id=1, item="x")
        assert (await socket.read())["result"] == WHOLE
    async with opened(app, "/stream") as socket:
        socket.say(id=1, item="x")
        assert [(await socket.read()).get("next") for _ in range(2)] == [WHOLE, "b"]


@pytest.mark.one_loop
async def test_in_tensors(app):
    given = {"name": "x", "shape": [1], "datatype": "BYTES", "data": ["x"]}
    url = "/v2/models/halves/infer"
    answer = await ask(app, url, {"inputs": [given]})
    assert answer.json()["outputs"][0]["data"] == [WHOLE]
    binary = {"inputs": [given], "parameters": {"binary_data_output": True}}
    answer = await ask(app, url, binary)
    data = WHOLE.encode()
    assert answer.body.endswith(struct.pack("<I", len(data)) + data)


@pytest.mark.parametrize("model", ["halves", "stream"])
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("stop", [None, ["zz"]])
@pytest.mark.one_loop
async def test_in_openais_completions(app, model, is_stream, stop):
    given = {"model": model, "prompt": "x", "stream": is_stream, "stop": stop}
    answer = await ask(app, "/v1/completions", given)
    assert answer.status == 200
    text = answer.body.decode()
    if is_stream:
        events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    else:
        events = [json.loads(text)]
    found = "".join(one["choices"][0]["text"] for one in events if one["choices"])
    assert found == (WHOLE if model == "halves" else WHOLE + "b")


@pytest.mark.one_loop
async def test_a_handle_in_the_process_passes_the_result_itself(app):
    handle = await app.controller.get_handle("halves")
    assert await handle.call("x") == HALF


@pytest.mark.one_loop
async def test_a_result_in_messagepack_can_be_sent_back_as_an_item(app):
    types = [("content-type", "application/msgpack"), ("accept", "application/msgpack")]
    answer = await ask(app, "/same", {"First": 1, "Second": "y"}, headers=types[1:])
    assert ormsgpack.unpackb(answer.body) == {"First": 1, "Second": "y"}
    again = await ask(app, "/same", body=answer.body, headers=types)
    wrong = await ask(app, "/same", body=ormsgpack.packb({"first": 1}), headers=types)
    assert again.body == answer.body
    assert wrong.status == 422
