"""Parameters that can't hold the list that a handler gives them, and those that might."""

from __future__ import annotations

import enum
import typing
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    MutableSequence,
    Reversible,
    Sequence,
    Sized,
)
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, NewType, Protocol, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import BaseModel
from starlette.requests import Request

import shoal
from shoal.batching.handlers.annotations import Holds, held_by

T = TypeVar("T")
UserId = NewType("UserId", int)
Ids = NewType("Ids", list[int])


class Color(enum.Enum):
    RED = 1


class Body(BaseModel):
    text: str


class Fields(TypedDict):
    text: str


class Pair(NamedTuple):
    left: int
    right: int


@dataclass
class Record:
    text: str


class HasShape(Protocol):
    shape: tuple[int, ...]


class Tensor:
    def __len__(self) -> int: ...

    def __getitem__(self, place: int) -> Tensor: ...


@pytest.mark.parametrize(
    "annotation",
    [
        *(bool, int, float, complex, str, bytes, None, UserId, type[int], int | str | None),
        *(tuple[int, int], dict[str, Any], Mapping[str, int], set[int], Literal["a", "b"]),
        *(Color, Body, Fields, Pair, Record, Request, Annotated[int, "positive"]),
        *(Callable[[int], int], Iterator[int], Hashable),
        typing.Optional[bool],  # noqa: UP045 - the old form is written as well
    ],
)
def test_an_annotation_that_no_list_fits_is_known(annotation: Any) -> None:
    assert held_by(annotation) is Holds.ITEM


@pytest.mark.parametrize(
    "annotation",
    [
        *(list, list[int], Sequence[str], MutableSequence[int], Iterable[int], Collection[int]),
        *(Container[int], Reversible[int], Annotated[list[int], "many"], Ids),
        *("list[Unknown]", "Sequence[Unknown]", "typing.List[Unknown]", "Iterable[Unknown]"),
        "abc.Collection[Unknown]",
    ],
)
def test_an_annotation_of_a_list_is_known(annotation: Any) -> None:
    assert held_by(annotation) is Holds.LIST


@pytest.mark.parametrize(
    "annotation",
    [
        *(Any, object, T, Sized, np.ndarray, npt.NDArray[np.float32], Tensor, HasShape),
        *(list[int] | int, list[int] | None, "Unknown", "dict[str, list[Unknown]]"),
    ],
)
def test_what_might_hold_a_list_is_let_pass(annotation: Any) -> None:
    assert held_by(annotation) is Holds.EITHER


def scaled(xs: list[float], factor: float = 2.0) -> list[float]:
    return [factor * x for x in xs]


def flagged(xs: list[str], normalize: bool = False) -> list[str]:
    return xs


def of_one(x: int) -> int:
    return x


class Model:
    def predict(self, xs: list[str], top_k: int) -> list[str]:
        return xs


WAYS_IN = [
    shoal.batch,
    shoal.batch(max_batch_size=4),
    shoal.Batcher,
    lambda handler: shoal.blocking(shoal.Batcher(handler)),
]


@pytest.mark.parametrize("way_in", WAYS_IN)
@pytest.mark.parametrize(
    ("handler", "name", "kind"),
    [
        (scaled, "factor", "float"),
        (flagged, "normalize", "bool"),
        (of_one, "x", "int"),
        (Model.predict, "top_k", "int"),
        (Model().predict, "top_k", "int"),
    ],
)
def test_a_scalar_is_refused_where_it_is_decorated_with_the_ways_out(way_in, handler, name, kind):
    with pytest.raises(TypeError) as caught:
        way_in(handler)
    for part in (f"{name!r} of", f"{name}: list[{kind}]", f"functools.partial(handler, {name}="):
        assert part in str(caught.value)


@pytest.mark.parametrize("way_in", WAYS_IN)
@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        (dict[str, float], "dict[str, float]"),
        (Mapping[str, int], "collections.abc.Mapping[str, int]"),
        (str, "str"),
        (int | None, "int | None"),
        (set[str], "set[str]"),
        (Fields, f"{__name__}.Fields"),
        (Body, f"{__name__}.Body"),
        (Iterator[dict[str, int]], "dict[str, int]"),
        (AsyncIterator[str], "str"),
        (Annotated[dict[str, int], "counts"], "dict[str, int]"),
        (None, "None"),
    ],
)
def test_a_handler_that_returns_no_list_is_refused_where_it_is_declared(way_in, returned, kind):
    async def handler(texts: list[str]) -> Any: ...

    def plain(left: list[str], right: list[str]) -> Any: ...

    for function in (handler, plain, partial(plain, right="")):
        getattr(function, "func", function).__annotations__["return"] = returned
        with pytest.raises(TypeError, match="returns a list with a result for") as told:
            way_in(function)
        assert f"write list[{kind}]" in str(told.value)


class Ask:
    async def __call__(self, texts: list[str]) -> dict[str, int]: ...

    async def method(self, texts: list[str]) -> dict[str, int]: ...


def test_classes_and_endpoints_that_return_no_list_are_refused() -> None:
    app = shoal.App()

    async def count(texts: list[str]) -> dict[str, int]: ...

    for declare in (
        lambda: shoal.Batcher(Ask()),
        lambda: shoal.batch(Ask.method),
        lambda: app.endpoint("/a")(Ask),
        lambda: app.endpoint("/b")(count),
        lambda: app.endpoint("/b", max_batch_size=4)(count),
    ):
        with pytest.raises(TypeError, match="returns a list with a result for"):
            declare()
    app.post("/c")(count)  # whose item is a list
    app.endpoint("/d", name="d")(shoal.accept_batch(False)(count))


@pytest.mark.parametrize(
    "returned",
    [
        *(list[str], list, Sequence[str], tuple[str, ...], Iterable[str], Iterator, AsyncIterator),
        *(AsyncIterable[list[str]], Iterator[list[str]], npt.NDArray[np.float32], Any, T, Pair),
        *(list[str] | dict[str, int], typing.NoReturn, "dict[str, Unknown]", typing.Never, object),
    ],
)
def test_what_might_return_a_list_is_let_pass(returned: Any) -> None:
    async def handler(texts: list[str]) -> Any: ...

    handler.__annotations__["return"] = returned
    shoal.Batcher(handler)


@pytest.mark.parametrize("fill", ["open", "continuous"])
@pytest.mark.parametrize(
    ("parameter", "returned"),
    [
        (list[str], list[str]),
        (Sequence[str], None),
        (str, str),
        (dict[str, int], None),
        ("list[Unknown]", None),
        (npt.NDArray[np.float32], None),
        (Any, list[str]),
        (shoal.OpenBatch[str, str], dict[str, int]),
        (list[str] | None, None),
    ],
)
def test_a_handler_of_lists_is_refused_for_open_batches(fill, parameter, returned):
    async def handler(batch: Any) -> Any: ...

    class Model:
        async def method(self, batch: Any) -> Any: ...

    def one(text: str) -> str: ...

    for function in (handler, Model.method):
        function.__annotations__.update(batch=parameter, **{"return": returned})
    for declare in (
        lambda: shoal.batch(fill=fill)(handler),
        lambda: shoal.batch(fill=fill, streams=True)(handler),
        lambda: shoal.batch(fill=fill, signature=one)(handler),
        lambda: shoal.Batcher(handler, fill=fill),
        lambda: shoal.batch(fill=fill)(Model.method),
        lambda: shoal.App().endpoint("/", fill=fill)(handler),
    ):
        wanted = r"async def handler\(batch: shoal.OpenBatch\[T, R\]\)|can't be read"
        with pytest.raises(TypeError, match=wanted):
            declare()


@pytest.mark.parametrize("parameter", [shoal.OpenBatch[str, str], shoal.OpenBatch, Any, T, object])
@pytest.mark.parametrize("returned", [None, Any, typing.NoReturn])
def test_a_handler_of_open_batches_is_let_pass(parameter: Any, returned: Any) -> None:
    async def handler(batch: Any) -> Any: ...

    handler.__annotations__.update(batch=parameter, **{"return": returned})
    shoal.Batcher(handler, fill="open")


@pytest.mark.parametrize("way_in", WAYS_IN)
def test_a_scalar_that_is_filled_in_is_no_parameter_of_a_call(way_in: Any) -> None:
    way_in(partial(scaled, factor=3.0))


def test_a_handler_of_a_signature_gets_lists_as_well() -> None:
    def one(xs: str, normalize: bool = False) -> str: ...

    with pytest.raises(TypeError, match="'normalize' of"):
        shoal.batch(signature=one)(flagged)

    def of_lists(xs: list[str], normalize: list[bool]) -> list[str]: ...

    shoal.batch(signature=one)(of_lists)


def anything(*xs: list[int]) -> list[int]: ...


def named_too(xs: list[int], **options: list[int]) -> list[int]: ...


def wrapper(*args: Any, **kwargs: Any) -> list[int]: ...


@pytest.mark.parametrize("way_in", WAYS_IN)
@pytest.mark.parametrize(
    "handler", [anything, named_too, wrapper, partial(wrapper, 1), partial(named_too, factor=[1])]
)
def test_parameters_without_names_are_refused_where_they_are_decorated(way_in, handler):
    with pytest.raises(TypeError, match="must be named"):
        way_in(handler)


async def _batch(batch: shoal.OpenBatch[int, int]) -> None: ...


def test_a_signature_without_names_is_refused() -> None:
    def any_number(*xs: int) -> int: ...

    def any_name(**fields: int) -> int: ...

    def handler(xs: list[int]) -> list[int]: ...

    with pytest.raises(TypeError, match="must be named"):
        shoal.batch(signature=any_number)(handler)
    with pytest.raises(TypeError, match="must be named"):
        shoal.batch(signature=any_name, fill="open")(_batch)
