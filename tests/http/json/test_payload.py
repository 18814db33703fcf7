"""From bodies to items by annotation, as pydantic does it, and from results to JSON."""

import datetime as dt
import decimal
import enum
import inspect
import json
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypeVar

import numpy as np
import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Json,
    RootModel,
    Tag,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from starlette.requests import Request
from typing_extensions import TypedDict

import shoal
from shoal.asgi.http_options import HttpOptions
from shoal.http.json.payload import reader_for
from shoal.http.json.validation import JsonType, adapter_of
from shoal.http.requests.exchange import Exchange
from shoal.http.requests.plain import encoded
from shoal.http.requests.problem import Refused
from shoal.http.requests.shared_parts import SharedParts
from shoal.loops import private
from shoal.testing.asgi import Call


class Comment(BaseModel):
    author: str
    score: Annotated[float, Field(ge=0)] = 0.5


def exchange(*headers, **options):
    if not any(name == "content-type" for name, _ in headers):
        headers = (("content-type", "application/json"), *headers)
    call = Call(None, "/", headers=headers)
    shared = SharedParts(HttpOptions(**options))
    return Exchange(shared, call.scope, call._receive, call._send)


def read(handler, body, *headers):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return reader_for(shoal.Batcher(handler).signature).read(exchange(*headers), body)


def problem(handler, body, *headers):
    with pytest.raises(Refused) as refused:
        read(handler, body, *headers)
    return refused.value.problem


def anything(items): ...
def numbers(items: list[int]): ...
def comments(items: list[Comment]): ...
def raw(items: list[bytes]): ...
def requests(items: list[Request]): ...
def several(text: list[str], count: list[int] = 3, *, json=None): ...
def positional(text: list[str], count: list[int], /): ...
def arrays(batch: np.ndarray): ...


@pytest.mark.parametrize(
    ("handler", "body", "item"),
    [
        *[(anything, one, one) for one in (1, "x", None, [1, {"a": [None]}], {"b": 2.5})],
        (arrays, [1, 2], [1, 2]),  # its annotation names no element
        (numbers, 5, 5),
        (comments, {"author": "cod"}, Comment(author="cod", score=0.5)),
    ],
)
def test_an_item_is_the_json_or_made_of_it_by_the_annotation(handler, body, item):
    assert read(handler, body) == item


def test_a_bytes_item_is_the_body_of_whatever_type():
    assert read(raw, b"\xff\x00", ("content-type", "image/png")) == b"\xff\x00"
    assert read(raw, b"") == b""


async def test_a_request_item_is_the_request_with_its_body():
    item = read(requests, b"body", ("content-type", "text/plain"), ("x-mine", "yes"))
    assert isinstance(item, Request)
    assert item.headers["x-mine"] == "yes"
    assert await item.body() == b"body"
    assert not await item.is_disconnected()


def test_several_parameters_come_from_an_object():
    assert read(several, {"text": "a", "count": 1, "json": [2]}) == ("a", 1, [2])
    assert read(several, {"text": "a"}) == ("a", 3, None)
    assert read(positional, {"count": 1, "text": "a"}) == ("a", 1)


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"text": "a", "counts": 1}, ["counts"]),
        ({"count": 1}, ["text"]),
        ({"text": "a", "count": "many"}, ["count"]),
        (["a", 1], []),
    ],
)
def test_a_wrong_object_is_told_where_it_is_wrong(body, loc):
    found = problem(several, body)
    assert found.status == 422
    assert [list(error["loc"]) for error in found.more["errors"]] == [loc]


@pytest.mark.parametrize("body", [b"", b"{", b"'a'", b'"\xff"', b"1 2", b"[" * 300 + b"]" * 300])
@pytest.mark.parametrize("handler", [anything, numbers, comments, several])
def test_what_is_not_json_is_a_400(handler, body):
    found = problem(handler, body)
    assert (found.status, found.kind) == (400, "invalid-json")
    assert ("Send UTF-8" in found.detail) is (body == b'"\xff"')


@pytest.mark.parametrize(
    "body",
    [
        *('\ufeff"a"'.encode(), '"é"'.encode("utf-16"), '"é"'.encode("utf-32")),
        *('{"a": 1}'.encode("utf-16-be"), '{"text": "é"}'.encode("latin-1")),
    ],
)
@pytest.mark.parametrize("handler", [anything, numbers, comments, several])
def test_a_body_in_another_encoding_is_told_the_right_one(handler, body):
    found = problem(handler, body)
    assert (found.status, found.kind) == (400, "invalid-json")
    assert found.detail.endswith(". Send UTF-8 without a byte order mark.")


def texts(items: list[str]): ...
def either(items: list[int | str]): ...
def pairs(items: list[list[int]]): ...


@pytest.mark.parametrize(
    ("handler", "body"),
    [
        (texts, ["abc"]),
        (texts, []),
        (texts, ["a"] * 5000),
        (numbers, [1, 2]),
        (either, [1]),
        (comments, [{"author": "cod"}]),
        (several, [{"text": "a"}]),
    ],
)
def test_a_list_of_items_in_place_of_one_is_told(handler, body):
    found = problem(handler, body)
    assert (found.status, found.kind) == (422, "invalid-item")
    said = "One request is one item: send it without a list around it, or many as JSON lines."
    assert found.detail.endswith(said)


@pytest.mark.parametrize(
    ("handler", "body"),
    [(pairs, ["a"]), (pairs, "a"), (texts, 1), (texts, {"a": ["b"]}), (comments, {"author": [1]})],
)
def test_nothing_else_is_told_to_be_a_list_of_items(handler, body):
    assert "One request is one item" not in problem(handler, body).detail


def test_the_place_of_an_error_is_that_of_pydantic():
    class Asked(BaseModel):
        words: list[int] = Field(default=[], alias="the words")
        by: dict[int, int] = {}
        of: Comment | None = None

    def asks(items: list[Asked]): ...

    def places(handler, body):
        found = problem(handler, body)
        assert found.detail.startswith(".".join(str(s) for s in found.more["errors"][0]["loc"]))
        return {one["loc"] for one in found.more["errors"]}

    assert places(asks, {"the words": [1, None]}) == {("the words", 1)}
    assert places(asks, {"of": {"id": 1}}) == {("of", "author")}
    assert places(asks, {"by": {"2": None}}) == {("by", "2")}
    assert places(either, None) == {("int",), ("str",)}


def test_a_wrong_item_is_a_422_that_says_where_and_nothing_else():
    found = problem(comments, {"author": 1, "score": -1})
    assert (found.status, found.kind) == (422, "invalid-item")
    assert [error["loc"] for error in found.more["errors"]] == [("author",), ("score",)]
    assert set(found.more["errors"][0]) == {"loc", "msg", "type"}
    assert found.detail.startswith("author: ")
    json.loads(encoded(found.members("id")))


def test_a_million_mistakes_are_counted_and_not_listed():
    class Asked(BaseModel, extra="forbid"):
        text: str = ""

    def asks(items: list[Asked]): ...

    found = problem(asks, {str(number): 1 for number in range(1000)})
    assert found.detail == "It has 1000 errors."
    assert "errors" not in found.more


def test_a_validator_that_refuses_is_a_422():
    def refuse(value):
        raise ValueError("not today")

    def refusing(items: list[Annotated[int, AfterValidator(refuse)]]): ...

    found = problem(refusing, 1)
    assert "not today" in found.detail
    json.loads(encoded(found.members("id")))


@pytest.mark.parametrize(
    "media_type", ["application/json", "application/JSON; charset=utf-8", "application/vnd.x+json"]
)
def test_json_media_types_are_taken(media_type):
    assert read(numbers, 1, ("content-type", media_type)) == 1


@pytest.mark.parametrize(
    "header",
    [
        ("content-type", "application/x-www-form-urlencoded"),
        ("content-type", "text/plain"),
        ("content-type", "multipart/form-data; boundary=application/json"),
        ("content-type", ""),
        ("content-encoding", "br"),
    ],
)
def test_other_media_types_are_a_415(header):
    assert problem(numbers, 1, header).status == 415


@pytest.mark.parametrize("annotation", [np.random.Generator, "Nowhere"])
def test_an_annotation_that_pydantic_does_not_know_is_refused_with_its_reason(annotation):
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameter = inspect.Parameter("items", kind, annotation=annotation)
    with pytest.raises(TypeError, match=r"can't be checked against.*pydantic says: "):
        reader_for(inspect.Signature([parameter]))


def test_what_takes_the_whole_request_must_be_alone():
    def handler(a: list[Request], b): ...

    with pytest.raises(TypeError, match="only parameter"):
        reader_for(shoal.Batcher(handler).signature)


@pytest.mark.parametrize(
    ("value", "json_text"),
    [
        (None, "null"),
        ({"a": (1, 2.5, True)}, '{"a":[1,2.5,true]}'),
        ({1: "int keys"}, '{"1":"int keys"}'),
        (float("nan"), "null"),
        (dt.date(2026, 1, 2), '"2026-01-02"'),
        (decimal.Decimal("1.5"), '"1.5"'),
    ],
)
def test_results_are_written_as_json(value, json_text):
    assert encoded(value) == json_text.encode()


T = TypeVar("T")


class Tree(BaseModel):
    value: float
    branches: list["Tree"] = []


class Box(BaseModel, Generic[T]):
    inside: T


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(9, gt=0)


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    names: set[str]


class Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True, populate_by_name=True)
    text: str = Field(alias="words", max_length=5)
    rest: dict[str, Any] = Field(default_factory=dict)

    @field_validator("text")
    @classmethod
    def _upper(cls, text: str) -> str:
        return text.upper()

    @model_validator(mode="after")
    def _not_empty(self) -> "Checked":
        if not self.text:
            raise ValueError("no text")
        return self


class Loose(BaseModel, extra="allow"):
    a: int


class Numbers(RootModel[list[float]]):
    pass


class Color(enum.Enum):
    RED = "red"


@dataclass(slots=True)
class Point:
    x: float
    y: float = 0.0
    tags: list[str] = field(default_factory=list)


class Pair(NamedTuple):
    left: int
    right: float = 0.5


class Fields(TypedDict):
    text: str
    more: NotRequired[list[float]]


def _kind(value: Any) -> str:
    return "text" if isinstance(value, str) else "number"


TYPES: list[tuple[Any, list[Any]]] = [
    (Any, [None, {"a": [1, 2.5, "x"]}]),
    (Tree, [{"value": 1, "branches": [{"value": 2.5}]}, {"value": "x"}, {"branches": []}]),
    (Box[list[int]], [{"inside": [1]}, {"inside": ["x", "y"]}, {}]),
    (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        [{"kind": "cat"}, {"kind": "cat", "lives": 0}, {"kind": "dog", "names": ["a", "a"]}, {}],
    ),
    (Cat | Dog | int, [{"kind": "cat"}, 3, "x"]),
    (
        Annotated[
            Annotated[str, Tag("text")] | Annotated[float, Tag("number")], Discriminator(_kind)
        ],
        ["x", 2.5, 3],
    ),
    (Checked, [{"words": " ab "}, {"text": "a"}, {"words": "  "}, {"words": "a", "b": 1}, {}]),
    (Loose, [{"a": 1, "b": [2.5]}, {"b": 1}]),
    (Numbers, [[1, 2.5], ["x"]]),
    (Color, ["red", "blue"]),
    (Point, [{"x": 1}, {"x": 1, "tags": ["a"]}, {"y": 1}]),
    (Pair, [[1], [1, 2], {"left": 1}, ["x", "y"]]),
    (Fields, [{"text": "a"}, {"text": "a", "more": [1]}, {"more": ["x", "y"]}]),
    (dt.datetime, ["2026-11-22T15:00:00Z", 0, "x"]),
    (decimal.Decimal, ["1.5", 1.5, "x"]),
    (uuid.UUID, ["12345678-1234-5678-1234-567812345678", "x"]),
    (Json[list[float]], ["[1, 2]", "[", "x"]),
    (deque[float], [[1, 2], ["x"]]),
    (OrderedDict[str, float], [{"a": 1}, {"a": "x"}]),
    (tuple[int, ...], [[1, 2], ["x", "y"]]),
    (frozenset[int], [[1, 1], ["x"]]),
    (Annotated[list[int], Field(min_length=2)], [[1, 2], [1]]),
    (Annotated[float, BeforeValidator(lambda value: value or 1)], [0, "x"]),
    (Annotated[int, AfterValidator(lambda value: value + 1)], [1, "x"]),
    (dict[int, list[Point]], [{"1": [{"x": 1}]}, {"x": []}]),
    (bool | None, [True, None, 3]),
]


REFUSED = object()


def checked_by_pydantic(annotation: Any, body: bytes) -> Any:
    try:
        return TypeAdapter(annotation).validate_json(body)
    except ValidationError:
        return REFUSED


def checked_here(type_: JsonType, body: bytes) -> Any:
    try:
        return type_.parsed(exchange(max_json_elements=1_000_000), body)
    except Refused as refused:
        return REFUSED if refused.problem.status in (400, 422) else refused


@pytest.mark.parametrize(("annotation", "values"), TYPES, ids=range(len(TYPES)))
def test_small_and_large_bodies_are_read_or_refused_as_pydantic_does(annotation, values):
    large = [[value] * 5000 for value in values]
    for kind, items in ((annotation, values), (list[annotation], large)):
        type_ = JsonType(adapter_of(kind))
        for body in (json.dumps(item).encode() for item in items):
            assert checked_here(type_, body) == checked_by_pydantic(kind, body)


@pytest.mark.parametrize("parameter", [private.OF_PYDANTIC, "_absent"])
def test_models_are_rebuilt_where_pydantic_can(parameter, monkeypatch):
    monkeypatch.setattr(private, "OF_PYDANTIC", parameter)
    type_ = JsonType(adapter_of(Tree))
    assert checked_here(type_, b'{"value": 1.5}') == Tree(value=1.5)
    assert checked_here(type_, b'{"value": "x"}') is REFUSED
    assert (checked_here(type_, b'{"value": "nan"}') is REFUSED) == (parameter != "_absent")
