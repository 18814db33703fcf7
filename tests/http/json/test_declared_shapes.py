"""Arrays of another shape or dtype than declared are refused before they enter a batch."""

from dataclasses import dataclass
from io import BytesIO
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

import shoal
from event_loops import one_loop_for_the_file  # noqa: F401
from shoal.testing.asgi import ask

np = pytest.importorskip("numpy")
ormsgpack = pytest.importorskip("ormsgpack")

pytestmark = pytest.mark.one_loop

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
async def app(anyio_backend):
    app = shoal.App(protocols=["oip"])
    for name, (code, _) in CODE.items():
        app.endpoint(f"/{name}", name=name)(code)
    async with app.lifespan():
        yield app


def npy(array):
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


def assert_refused(answer, status=422):
    assert answer.status == status, answer.body
    text = answer.body.decode()
    assert "(3,)" in text, text
    assert "(4,)" in text, text


@pytest.mark.parametrize("name", CODE)
async def test_a_wrong_shape_is_a_422_that_has_both(app, name):
    item = CODE[name][1]
    types = [("content-type", "application/msgpack")]
    assert (await ask(app, f"/{name}", item([1, 2, 3, 4]))).status == 200
    assert_refused(await ask(app, f"/{name}", item([1, 2, 3])))
    for numbers, status in (([1, 2, 3, 4], 200), ([1, 2, 3], 422)):
        body = ormsgpack.packb(item(numbers))
        answer = await ask(app, f"/{name}", body=body, headers=types)
        assert answer.status == status
    assert_refused(answer)


@pytest.mark.parametrize("name", ["array", "optional"])
async def test_a_file_of_a_wrong_shape_is_refused_and_of_another_float_converted(app, name):
    types = [("content-type", "application/x-npy")]
    answer = await ask(app, f"/{name}", body=npy(np.ones(4, ">f8")), headers=types)
    assert answer.json() == [1.0] * 4
    assert_refused(await ask(app, f"/{name}", body=npy(np.ones(3)), headers=types))
    wrong = await ask(app, f"/{name}", body=npy(np.ones(4) * 1j), headers=types)
    texts = await ask(app, f"/{name}", body=npy(np.array(["a"])), headers=types)
    assert (wrong.status, texts.status) == (422, 422)
    assert "complex128" in wrong.json()["detail"]
    assert "float32" in wrong.json()["detail"]
    assert "<U1" in texts.json()["detail"]


async def test_an_array_that_is_optional_may_be_null(app):
    assert (await ask(app, "/optional", None)).json() is None


def tensor(name, shape, data):
    return {"name": name, "shape": shape, "datatype": "FP32", "data": data}


@pytest.mark.parametrize(
    ("name", "others"),
    [("array", ()), ("optional", ()), ("parameters", ("b",)), ("record", ()), ("model", ())],
)
async def test_a_wrong_shape_of_a_tensor_is_a_400_that_has_both(app, name, others):
    names = ("A" if name == "model" else "a", *others)
    url = f"/v2/models/{name}/infer"
    good = [tensor(one, [2, 4], [0.5] * 8) for one in names]
    bad = [tensor(one, [2, 3], [0.5] * 6) for one in names]
    answer = await ask(app, url, {"inputs": good})
    assert answer.status == 200, answer.body
    assert_refused(await ask(app, url, {"inputs": bad}), 400)
