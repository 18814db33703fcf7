"""Code of every form, each of which says what it was given; see `test_ways_in`."""

from __future__ import annotations

from collections.abc import (  # noqa: TC003 - the annotations are read
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from functools import partial
from typing import Any

import numpy as np  # noqa: TC002 - the same
from starlette.requests import Request  # noqa: TC002 - the same

import shoal


def told(*given: Any) -> Any:
    """Says what was given, once for each result that is wanted."""
    said = ", ".join(f"{type(one).__name__} {one}" for one in given)
    return [said] * len(given[0]) if isinstance(given[0], list) else said


def unannotated(x):
    return told(x)


@shoal.accept_batch
def marked(x):
    return told(x)


def of_lists(xs: list[int]) -> list[str]:
    return told(xs)


@shoal.accept_batch(False)
def of_one_list(xs: list[int]) -> str:
    return f"one {type(xs).__name__} {xs}"


def of_one(x: int) -> str:
    return told(x)


def of_array(x: np.ndarray) -> str:
    return told(x)


def of_sequence(xs: Sequence[int]) -> list[str]:
    return told(xs)


def of_iterable(xs: Iterable[int]) -> list[str]:
    return told(xs)


def of_collection(xs: Collection[int]) -> list[str]:
    return told(xs)


def of_maybe_a_list(xs: list[int] | None) -> str:
    return told(xs)


class OfLists:
    def __call__(self, xs: list[int]) -> list[str]:
        return told(xs)


class BatchedMethod:
    @shoal.batch
    async def many(self, xs: list[int]) -> list[str]:
        return told(xs)

    async def __call__(self, x: int) -> str:
        return await self.many(x)


class BatchedCall:
    @shoal.batch
    async def __call__(self, xs: list[int]) -> list[str]:
        return told(xs)


def of_request(request: Request) -> str:
    return type(request).__name__


def steps_of_lists(xs: list[int]) -> Iterator[list[str]]:
    yield told(xs)


def steps_of_one(x: int) -> Iterator[str]:
    yield told(x)


def of_two_lists(xs: list[int], flags: list[bool]) -> list[str]:
    return told(xs, flags)


def with_a_flag(xs: list[int], flag: bool = False) -> list[str]:
    return told(xs, flag)


def of_one_with_a_flag(x: int, flag: bool = False) -> str:
    return told(x, flag)


flag_filled_in = partial(with_a_flag, flag=True)


def of_any_number(*xs: int) -> str:
    return told(*xs)


def of_nothing() -> str:
    return "nothing"
