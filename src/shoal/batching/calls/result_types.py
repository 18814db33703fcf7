"""The types of what handlers return, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, SupportsIndex, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator

    from shoal.batching.calls.stream import Mark

MYPY = False
"""Whether mypy reads this, which takes it as True."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
N = TypeVar("N")
N_co = TypeVar("N_co", covariant=True)


class Results(Protocol[R_co]):
    """One result for each item: a list, tuple, array, or anything sized and indexable."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> R_co: ...


class ResultList(Protocol[R, N_co]):
    """A list of results and exceptions."""

    # The methods and their order matter. `__contains__` makes pyright match an exception class with
    # `Exception` before R. `append` makes mypy refuse an R that is wider than the elements, such as
    # `object` for `int | str`. `__len__` makes it refuse a generic handler, for which it finds no
    # R. A handler that is refused here is treated as one that returns `Results`.

    if not MYPY:

        def __contains__(self, element: R, /) -> bool: ...

    def __getitem__(self, index: SupportsIndex, /) -> R | Exception: ...

    def __len__(self) -> N_co: ...

    def append(self, element: R, /) -> None: ...


class SlotList(Protocol[R, N_co]):
    """A list of slots, with the methods of `ResultList` for the same reasons."""

    if not MYPY:

        def __contains__(self, element: R, /) -> bool: ...

    def __getitem__(self, index: SupportsIndex, /) -> Slot[R] | Exception: ...

    def __len__(self) -> N_co: ...

    def append(self, element: R, /) -> None: ...


Answer: TypeAlias = "Awaitable[Results[R]] | Results[R]"
"""What a unary handler returns when it is called."""

ListAnswer: TypeAlias = "Awaitable[ResultList[R, N]] | ResultList[R, N]"
"""The same for a list, in which exceptions are no results."""

Ended: TypeAlias = "Literal[Mark.END] | type[StopIteration | StopAsyncIteration]"
"""The values in a slot that end its stream."""

Slot: TypeAlias = "R | Ended | Literal[Mark.SKIP]"
"""What one slot of a step may hold, besides an exception."""

Steps: TypeAlias = "AsyncIterator[Results[R]] | Iterator[Results[R]]"
"""What a generator handler returns: steps, each with one slot for each request."""

ListSteps: TypeAlias = "AsyncIterator[SlotList[R, N]] | Iterator[SlotList[R, N]]"
"""The same for lists, in which marks and exceptions are no results."""
