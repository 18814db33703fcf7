"""A type is the same to a body of any size as it is to pydantic."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypeVar
from uuid import UUID

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
from typing_extensions import TypedDict

from shoal.asgi.http_options import HttpOptions
from shoal.http.json.validation import JsonType, adapter_of
from shoal.http.requests.problem import Refused
from shoal.loops import private

T = TypeVar("T")


class Tree(BaseModel):
    value: float
    branches: list[Tree] = []


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
    def _not_empty(self) -> Checked:
        if not self.text:
            raise ValueError("no text")
        return self


class Loose(BaseModel, extra="allow"):
    a: int


class Numbers(RootModel[list[float]]):
    pass


class Color(Enum):
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
    (datetime, ["2026-11-22T15:00:00Z", 0, "x"]),
    (Decimal, ["1.5", 1.5, "x"]),
    (UUID, ["12345678-1234-5678-1234-567812345678", "x"]),
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
    exchange: Any = SimpleNamespace(
        headers={b"content-type": b"application/json"},
        options=HttpOptions(max_json_elements=1_000_000),
    )
    try:
        return type_.parsed(exchange, body)
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
