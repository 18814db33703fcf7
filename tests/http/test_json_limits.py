"""JSON is bounded before it is parsed, and is JSON; numbers of any size come and go."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

import shoal
from shoal.http.payload import encoded
from shoal.testing.asgi import ask

pytestmark = pytest.mark.anyio

JSON = [("content-type", "application/json")]


@pytest.fixture
def app():
    app = shoal.App(max_json_elements=10)

    @app.endpoint("/any")
    async def any_json(items):
        return items

    @app.endpoint("/numbers")
    async def numbers(items: list[list[float]]) -> list[int]:
        return [len(item) for item in items]

    @app.endpoint("/whole")
    async def whole(items: list[int]) -> list[int]:
        return items

    @app.endpoint("/two")
    async def two(a: list[Any], b: list[Any]) -> list[Any]:
        return a

    return app


@pytest.mark.parametrize(
    "body",
    [
        b"[1,2,3,4,5,6,7,8,9,10,11]",
        b"[[],[],[],[],[],[]]",
        b'{"a":{"b":{"c":{"d":{"e":1}}}},"f":1}',
    ],
)
@pytest.mark.parametrize("path", ["/any", "/numbers", "/whole"])
async def test_a_body_of_too_many_elements_is_refused(app, path, body):
    async with app.lifespan():
        answer = await ask(app, path, body=body, headers=JSON)
    assert answer.status == 413
    assert answer.json()["type"] == "urn:shoal:problem:body-too-complex"


@pytest.mark.parametrize(
    "text", ["a,b,c,d,e,f,g,h,i,j,k,l,m", '[[[["{{{{":::::', '\\",",",\\\\",", NaN and Infinity']
)
async def test_what_is_in_a_string_is_no_element(app, text):
    async with app.lifespan():
        answer = await ask(app, "/any", [text, "NaN"])
    assert answer.json() == [text, "NaN"]


@pytest.mark.parametrize("body", [b'"NaN' + b'\\"' * 2**20, b'"' + b'\\",' * 2**20])
async def test_a_string_of_many_escapes_that_does_not_end_is_looked_at_once(app, body):
    async with app.lifespan():
        answer = await ask(app, "/any", body=body, headers=JSON)
    assert answer.status == 400


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/any", b"%s"),
        ("/any", b'{"a": [1, %s]}'),
        ("/numbers", b"[%s]"),
        ("/two", b'{"a":%s,"b":1}'),
    ],
)
async def test_a_number_that_json_does_not_have_is_refused(app, path, form, number):
    async with app.lifespan():
        answer = await ask(app, path, body=form % number, headers=JSON)
    assert answer.status == 400
    assert answer.json()["type"] == "urn:shoal:problem:invalid-json"


@pytest.mark.parametrize("power", [31, 53, 63, 64, 65, 1000, 10_000])
@pytest.mark.parametrize("path", ["/any", "/whole"])
@pytest.mark.parametrize("sign", [1, -1])
async def test_an_integer_of_any_size_is_echoed(app, path, power, sign):
    number = sign * 2**power
    async with app.lifespan():
        answer = await ask(app, path, number)
    assert (answer.status, answer.json()) == (200, number)


async def test_an_integer_beyond_what_python_reads_is_refused(app):
    async with app.lifespan():
        for path in ("/any", "/whole"):
            answer = await ask(app, path, body=b"1" * 5000, headers=JSON)
            assert answer.status in (400, 422)


async def test_deep_nesting_is_refused():
    app = shoal.App()

    @app.endpoint("/any")
    async def any_json(items):
        return items

    async with app.lifespan():
        answer = await ask(app, "/any", body=b"[" * 100_000, headers=JSON)
    assert answer.status == 400


def test_a_large_integer_beside_all_else_is_written_as_without_it():
    np = pytest.importorskip("numpy")
    value = {"nan": float("nan"), "array": np.arange(3), "scalar": np.float32(0.5), 3: "three"}
    large = {**value, "large": 2**70}
    assert json.loads(encoded(large)) == {**json.loads(encoded(value)), "large": 2**70}


def test_what_can_not_be_written_is_still_a_type_error():
    with pytest.raises(TypeError):
        encoded({"large": 2**70, "set": object()})


LIKE_A_SCHEMA = {"type": "list"}


class Form(NamedTuple):
    numbers: list[int]
    form: dict[str, str] = LIKE_A_SCHEMA


async def test_a_default_is_the_same_in_a_large_body():
    app = shoal.App()

    @app.endpoint("/form")
    async def form(forms: list[Form]) -> list[Any]:
        return [one.form for one in forms]

    async with app.lifespan():
        answer = await ask(app, "/form", {"numbers": [1] * 5000})
    assert answer.json() == LIKE_A_SCHEMA


async def test_the_first_error_of_a_large_body_is_all_that_is_told():
    app = shoal.App()

    @app.endpoint("/whole")
    async def whole(items: list[list[int]]) -> list[int]:
        return [len(item) for item in items]

    async with app.lifespan():
        few = await ask(app, "/whole", ["x"] * 50)
        many = await ask(app, "/whole", ["x"] * 50_000)
        right = await ask(app, "/whole", [1] * 50_000)
    assert (few.status, len(few.json()["errors"])) == (422, 50)
    assert (many.status, len(many.json()["errors"])) == (422, 1)
    assert right.json() == 50_000


MEASURED = """
import resource, sys
from types import SimpleNamespace
from typing import Any, NamedTuple
from shoal.http.payload import JsonReader
from shoal.http.problem import Refused
from shoal.http.settings import HttpSettings

unit, annotation = eval(sys.argv[1]), eval(sys.argv[2])
settings = HttpSettings()
exchange = SimpleNamespace(headers={}, max_json_elements=settings.max_json_elements)
reader = JsonReader(annotation)
body = b"[" + unit * (settings.max_body_bytes // len(unit) - 2) + unit[:-1] + b"]"
for body in (body, b"[" + unit * (settings.max_json_elements // sum(map(unit.count, b",[{:")) - 2)
    + unit[:-1] + b"]" + b" " * (settings.max_body_bytes // 2)):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        kept = reader.item(exchange, body)
    except Refused as refused:
        print(refused.problem.status)
    else:
        print(200)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) * 1024 <= 12 * len(body), (after - before) * 1024 / len(body)
"""


@pytest.mark.real_time
@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "annotation", "statuses"),
    [
        (b"1,", "Any", ["413", "200"]),
        (b"[1],", "list[list[int]]", ["413", "200"]),
        (b'{"":0},', "Any", ["413", "200"]),
        (b'"x",', "list[int]", ["413", "422"]),
        (b'{"":"x"},', "list[dict[str, int]]", ["413", "422"]),
    ],
)
def test_a_large_body_takes_at_most_twelve_times_its_size(unit, annotation, statuses):
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED, repr(unit), annotation],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stderr == ""
    assert ended.stdout.split() == statuses
