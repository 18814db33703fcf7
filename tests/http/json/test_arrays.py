"""Items that are numpy arrays, as JSON and as ``.npy`` files."""

import io
import pickle
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

import shoal
from event_loops import one_loop_for_the_file  # noqa: F401
from handlers import app_of
from shoal.testing.asgi import ask

np = pytest.importorskip("numpy")
NDArray = pytest.importorskip("numpy.typing").NDArray

pytestmark = pytest.mark.one_loop


def npy(array, **options):
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), **options)
    return file.getvalue()


async def twice(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [2 * array for array in arrays]


async def kind(arrays: list[NDArray[np.float32]]) -> list[str]:
    for array in arrays:
        array += 1  # it is the handler's own
    return [str(array.dtype) for array in arrays]


@pytest.fixture(scope="module")
async def app(anyio_backend):
    app = shoal.App()
    app.endpoint("/twice")(twice)
    app.endpoint("/kind")(kind)
    async with app.lifespan():
        yield app


async def send(app, path, body):
    return await ask(app, path, body=body, headers=[("content-type", "application/x-npy")])


async def test_nested_lists_come_and_go(app):
    assert (await ask(app, "/twice", [[1, 2], [3.5, 4]])).json() == [[2, 4], [7, 8]]
    assert (await ask(app, "/kind", [1, 2])).json() == "float32"


@pytest.mark.parametrize("array", [np.arange(6).reshape(2, 3), np.array(3.5), np.zeros((0, 2))])
@pytest.mark.parametrize("order", ["C", "F"])
async def test_a_file_comes_and_lists_go(app, array, order):
    answer = await send(app, "/twice", npy(np.asarray(array, order=order)))
    assert answer.json() == (2 * array).tolist()


@pytest.mark.parametrize("dtype", [">f8", ">i4", ">c16", ">f2"])
async def test_a_file_of_another_byte_order_is_an_array_of_this_machine(dtype):
    async def native(arrays: list[np.ndarray]) -> list[bool]:
        return [array.dtype.isnative for array in arrays]

    app = app_of(native, "/native")
    async with app.lifespan():
        assert (await send(app, "/native", npy(np.ones(2, dtype)))).json() is True


async def test_a_file_is_made_of_what_the_annotation_says(app):
    assert (await send(app, "/kind", npy(np.arange(3.0)))).json() == "float32"
    for size in (0, 3):
        assert (await send(app, "/kind", npy(np.arange(size) * 1j))).status == 422


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64])
async def test_whole_numbers_fit_or_are_refused(dtype):
    async def numbers(arrays: list[NDArray[dtype]]) -> list[object]:
        return [(str(array.dtype), *map(int, array.ravel())) for array in arrays]

    numbers.__annotations__["arrays"] = list[NDArray[dtype]]
    app = app_of(numbers, "/numbers")
    name, bounds = dtype.__name__, np.iinfo(dtype)
    fitting = [[bounds.min, 1], [2, bounds.max]]
    async with app.lifespan():
        answer = await ask(app, "/numbers", fitting)
        assert answer.json() == [name, bounds.min, 1, 2, bounds.max]
        assert (await ask(app, "/numbers", [])).json() == [name]
        assert (await send(app, "/numbers", npy(np.array([1, 2])))).json() == [name, 1, 2]
        for wrong in (bounds.min - 1, bounds.max + 1, 1.5):
            assert (await ask(app, "/numbers", [wrong])).status == 422
        if bounds.max < 300:
            assert (await send(app, "/numbers", npy(np.array([300])))).status == 422


async def test_a_number_beyond_the_range_of_a_float_is_refused(app):
    assert (await ask(app, "/kind", [1.5, 3e38])).status == 200
    assert (await ask(app, "/kind", [1.5, 1e300])).status == 422
    assert (await send(app, "/kind", npy([1e300]))).status == 422
    assert (await send(app, "/kind", npy([np.inf, np.nan]))).status == 200


@pytest.mark.parametrize("item", [[[1], [1, 2]], "text", ["a"], {"a": 1}, None, [None], [2**70]])
async def test_lists_that_are_no_array_of_numbers_are_refused(app, item):
    assert (await ask(app, "/twice", item)).status == 422


async def test_a_body_of_another_kind_or_none_is_told_what_is_taken(app):
    other = await ask(app, "/twice", body=npy([1]), headers=[("content-type", "text/plain")])
    none = await ask(app, "/twice", method="GET")
    assert (other.status, none.status) == (415, 400)
    assert other.json()["detail"] == (
        "This endpoint takes JSON; send Content-Type: application/json or application/msgpack or "
        "application/x-npy."
    )
    assert none.json()["detail"] == "The request has no body, and the item is in its body."


def huge():
    file = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (2**40,)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + bytes(8)


BROKEN_HEADERS = [
    (b"False,", b"False#"),
    (b"'<f8'", b"'<,8'"),
    (b" 'fortran", b"b'fortran"),
    (b"'<f8'", b"'\\d8'"),
    (b"(6,)", b"(6L)"),
]


class Trap:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


@pytest.mark.parametrize(
    "body",
    [
        b"no file",
        huge(),
        npy(np.arange(9))[:-1],
        npy(np.arange(9)) + b"x",
        npy(np.array([Trap()], dtype=object), allow_pickle=True),
        pickle.dumps(Trap()),
        npy(np.array(["text"])),
        b"\x93NUMPY\x01\x00\x10\x00{'descr': 1}     ",
        *(npy(np.arange(6.0)).replace(*change) for change in BROKEN_HEADERS),
    ],
    ids=range(13),
)
async def test_a_file_that_lies_or_holds_objects_is_refused(app, body):
    answer = await send(app, "/twice", body)
    assert answer.status == 422, answer.body
    assert answer.json()["type"] == "urn:shoal:problem:invalid-item"


async def test_an_array_beside_other_parameters_is_a_member_with_its_name():
    async def both(a: list[NDArray[np.float32]], b: list[int]) -> list[list]:
        return [[x.dtype.name, x.tolist(), y] for x, y in zip(a, b, strict=True)]

    app = app_of(both, "/both", placement="task")
    async with app.lifespan():
        answer = await ask(app, "/both", {"a": [[1, 2]], "b": 3})
        assert answer.json() == ["float32", [[1.0, 2.0]], 3]
        for wrong in ("x", [[1], [1, 2]], None):
            answer = await ask(app, "/both", {"a": wrong, "b": 3})
            assert answer.status == 422
            assert answer.json()["detail"].startswith("a: ")


@pytest.mark.parametrize("shape", ["(True,)", "(False, 1)", "(1, True)"])
async def test_a_shape_that_is_not_of_integers_is_refused(app, shape):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    body = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    answer = await send(app, "/twice", body + bytes(0 if "False" in shape else 8))
    assert answer.status == 422


@pytest.mark.parametrize(("dtype", "told"), [(np.longdouble, 3.0), (np.clongdouble, "3+0j")])
async def test_numbers_of_more_than_64_bits_are_written_as_far_as_json_has_them(app, dtype, told):
    answer = await send(app, "/twice", npy(np.array([1.5], dtype)))
    assert (answer.status, answer.json()) == (200, [told])


# Arrays of another shape or dtype than declared are refused before they enter a batch


ormsgpack = pytest.importorskip("ormsgpack")

Four = np.ndarray[tuple[Literal[4]], np.dtype[np.float32]]


class Model(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    a: Annotated[Four, AfterValidator(lambda array: array)] = Field(alias="A")


@dataclass
class Record:
    a: Four
    name: str = "x"


class Table(TypedDict):
    a: Four
    others: list[Four | None]


async def of_array(items: list[Four]) -> list[Any]:
    return np.stack(items).tolist()


async def of_optional(items: list[Four | None]) -> list[Any]:
    return [None if one is None else one.tolist() for one in items]


async def of_lists(items: list[list[Four]]) -> list[Any]:
    return [np.stack(one).tolist() for one in items]


async def of_parameters(a: list[Four], b: list[Four | None], c: list[int] = 3) -> list[Any]:
    return [[x.tolist(), [] if y is None else y.tolist()] for x, y in zip(a, b, strict=True)]


async def of_model(items: list[Model]) -> list[Any]:
    return [one.a.tolist() for one in items]


async def of_record(items: list[Record]) -> list[Any]:
    return [one.a.tolist() for one in items]


async def of_table(items: list[Table]) -> list[Any]:
    return [[one["a"].tolist(), len(one["others"])] for one in items]


CODE = {
    "array": (of_array, lambda a: a),
    "optional": (of_optional, lambda a: a),
    "lists": (of_lists, lambda a: [a]),
    "parameters": (of_parameters, lambda a: {"a": [0, 0, 0, 0], "b": a}),
    "model": (of_model, lambda a: {"A": a}),
    "record": (of_record, lambda a: {"a": a}),
    "table": (of_table, lambda a: {"a": [1, 2, 3, 4], "others": [None, a]}),
}


@pytest.fixture(scope="module")
async def shapes(anyio_backend):
    shapes = shoal.App(protocols=["oip"])
    for name, (code, _) in CODE.items():
        shapes.endpoint(f"/{name}", name=name)(code)
    async with shapes.lifespan():
        yield shapes


def assert_refused(answer, status=422):
    assert answer.status == status, answer.body
    text = answer.body.decode()
    assert "(3,)" in text, text
    assert "(4,)" in text, text


@pytest.mark.parametrize("name", CODE)
async def test_a_wrong_shape_is_a_422_that_has_both(shapes, name):
    item = CODE[name][1]
    types = [("content-type", "application/msgpack")]
    assert (await ask(shapes, f"/{name}", item([1, 2, 3, 4]))).status == 200
    assert_refused(await ask(shapes, f"/{name}", item([1, 2, 3])))
    for numbers, status in (([1, 2, 3, 4], 200), ([1, 2, 3], 422)):
        body = ormsgpack.packb(item(numbers))
        answer = await ask(shapes, f"/{name}", body=body, headers=types)
        assert answer.status == status
    assert_refused(answer)


@pytest.mark.parametrize("name", ["array", "optional"])
async def test_a_file_of_a_wrong_shape_is_refused_and_of_another_float_converted(shapes, name):
    assert (await send(shapes, f"/{name}", npy(np.ones(4, ">f8")))).json() == [1.0] * 4
    assert_refused(await send(shapes, f"/{name}", npy(np.ones(3))))
    wrong = await send(shapes, f"/{name}", npy(np.ones(4) * 1j))
    texts = await send(shapes, f"/{name}", npy(np.array(["a"])))
    assert (wrong.status, texts.status) == (422, 422)
    assert "complex128" in wrong.json()["detail"]
    assert "float32" in wrong.json()["detail"]
    assert "<U1" in texts.json()["detail"]


async def test_an_array_that_is_optional_may_be_null(shapes):
    assert (await ask(shapes, "/optional", None)).json() is None


def tensor(name, shape, data):
    return {"name": name, "shape": shape, "datatype": "FP32", "data": data}


@pytest.mark.parametrize(
    ("name", "others"),
    [("array", ()), ("optional", ()), ("parameters", ("b",)), ("record", ()), ("model", ())],
)
async def test_a_wrong_shape_of_a_tensor_is_a_400_that_has_both(shapes, name, others):
    names = ("A" if name == "model" else "a", *others)
    url = f"/v2/models/{name}/infer"
    good = [tensor(one, [2, 4], [0.5] * 8) for one in names]
    bad = [tensor(one, [2, 3], [0.5] * 6) for one in names]
    answer = await ask(shapes, url, {"inputs": good})
    assert answer.status == 200, answer.body
    assert_refused(await ask(shapes, url, {"inputs": bad}), 400)


# What a server without the extra ``bodies`` says to its operator, and to clients that need it


async def sizes(items: list[bytes], names: list[str]) -> list[int]:
    return [len(item) for item in items]


@pytest.mark.parametrize("kind", ["application/msgpack", "application/x-msgpack"])
async def test_a_body_that_needs_the_extra_is_refused_by_its_name(monkeypatch, kind):
    monkeypatch.setattr("shoal.http.json.payload.has_msgpack", lambda: False)
    app = app_of(sizes, "/sizes")
    async with app.lifespan():
        answer = await ask(app, "/sizes", body=b"x", headers=[("content-type", kind)])
        other = await ask(app, "/sizes", body=b"x", headers=[("content-type", "text/plain")])
        good = await ask(app, "/sizes", {"items": "ab", "names": "x"})
    assert answer.status == other.status == 415
    assert "pip install 'shoal[bodies]'" in answer.json()["detail"]
    assert "shoal[bodies]" not in other.json()["detail"]
    assert (good.status, good.json()) == (200, 2)
