"""The marks that a generator handler may yield are no part of what its readers get."""

from collections.abc import AsyncIterator, Iterator
from typing import Literal, assert_type

import shoal
from shoal import END, SKIP, ResultStream
from shoal.batching.calls.stream import Mark


@shoal.batch
async def with_end(items: list[int]) -> AsyncIterator[list[str | Literal[Mark.END]]]:
    yield [str(item) if item else END for item in items]


@shoal.batch
async def with_both(
    items: list[int],
) -> AsyncIterator[list[str | Literal[Mark.END, Mark.SKIP]]]:
    yield [str(item) if item else SKIP for item in items]


@shoal.batch
def with_any_mark(items: list[int]) -> Iterator[list[str | Mark]]:
    yield [str(item) if item else END for item in items]


@shoal.batch
def with_classes(items: list[int]) -> Iterator[list[str | type[StopIteration]]]:
    yield [str(item) if item else StopIteration for item in items]


def streams() -> None:
    assert_type(with_end(1), ResultStream[str])
    assert_type(with_both(1), ResultStream[str])
    assert_type(with_any_mark(1), ResultStream[str])
    assert_type(with_classes(1), ResultStream[str])
