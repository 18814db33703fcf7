"""The types of what handlers return, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator

    from shoal.batching.calls.stream import Mark

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Results(Protocol[R_co]):
    """One result for each item: a list, tuple, array, or anything sized and indexable."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> R_co: ...


Answer: TypeAlias = "Awaitable[Results[R]] | Results[R]"
"""What a unary handler returns when it is called."""

Ended: TypeAlias = "Literal[Mark.END] | type[StopIteration | StopAsyncIteration]"
"""The values in a slot that end its stream."""

Slot: TypeAlias = "R | Ended | Literal[Mark.SKIP]"
"""What one slot of a step may hold, besides an exception."""

Steps: TypeAlias = "AsyncIterator[Results[Slot[R]]] | Iterator[Results[Slot[R]]]"
"""What a generator handler returns: steps, each with one slot for each request."""
