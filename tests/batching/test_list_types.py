"""Parameters that can't hold the list that a handler gives them, and those that might."""

from __future__ import annotations

import enum
import typing
from collections.abc import (
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
from shoal.batching.handlers.list_types import Holds, held_by

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
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        None,
        tuple[int, int],
        dict[str, Any],
        Mapping[str, int],
        set[int],
        Literal["a", "b"],
        Color,
        Body,
        Fields,
        Pair,
        Record,
        Request,
        UserId,
        Annotated[int, "positive"],
        int | str | None,
        typing.Optional[bool],  # noqa: UP045 - the old form is written as well
        Callable[[int], int],
        Iterator[int],
        Hashable,
        type[int],
    ],
)
def test_an_annotation_that_no_list_fits_is_known(annotation: Any) -> None:
    assert held_by(annotation) is Holds.ITEM


@pytest.mark.parametrize(
    "annotation",
    [
        list,
        list[int],
        Sequence[str],
        MutableSequence[int],
        Iterable[int],
        Collection[int],
        Container[int],
        Reversible[int],
        Annotated[list[int], "many"],
        Ids,
        "list[Unknown]",
        "Sequence[Unknown]",
        "typing.List[Unknown]",
        "Iterable[Unknown]",
        "abc.Collection[Unknown]",
    ],
)
def test_an_annotation_of_a_list_is_known(annotation: Any) -> None:
    assert held_by(annotation) is Holds.LIST


@pytest.mark.parametrize(
    "annotation",
    [
        Any,
        object,
        T,
        Sized,
        np.ndarray,
        npt.NDArray[np.float32],
        Tensor,
        HasShape,
        list[int] | int,
        list[int] | None,
        "Unknown",
        "dict[str, list[Unknown]]",
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
def test_a_scalar_is_refused_where_it_is_decorated_with_the_ways_out(
    way_in: Any, handler: Any, name: str, kind: str
) -> None:
    with pytest.raises(TypeError) as caught:
        way_in(handler)
    for part in (f"{name!r} of", f"{name}: list[{kind}]", f"functools.partial(handler, {name}="):
        assert part in str(caught.value)


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
    "handler",
    [anything, named_too, wrapper, partial(wrapper, 1), partial(named_too, factor=[1])],
)
def test_parameters_without_names_are_refused_where_they_are_decorated(
    way_in: Any, handler: Any
) -> None:
    with pytest.raises(TypeError, match="parameters must be named"):
        way_in(handler)


def test_a_signature_without_names_is_refused() -> None:
    def one(*xs: int) -> int: ...

    def handler(xs: list[int]) -> list[int]: ...

    with pytest.raises(TypeError, match="must be named"):
        shoal.batch(signature=one)(handler)


async def _batch(batch: shoal.OpenBatch[int, int]) -> None: ...


def test_a_signature_of_an_open_batch_without_names_is_refused() -> None:
    def one(**fields: int) -> int: ...

    with pytest.raises(TypeError, match="must be named"):
        shoal.batch(signature=one, fill="open")(_batch)
