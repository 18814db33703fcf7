"""One wait for many requests: what `map` parks on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from shoal.batching.loops.parking import Parking


class GroupCell:
    """Stands in the cell of each request of a group, and wakes the one caller after the last.

    Invariant: ``left`` == number of the group's requests that have not ended.
    """

    __slots__ = ("_cell", "_parking", "left")

    def __init__(self, parking: Parking, size: int) -> None:
        self._parking = parking
        self._cell: Any = parking.new_cell()
        self.left = size

    def __await__(self) -> Generator[Any, Any, Any]:
        wait: Generator[Any, Any, Any] = self._cell.__await__()
        return wait

    def wake(self) -> None:
        """Notes that one request has ended."""
        self.left -= 1
        if self.left == 0:
            self._parking.wake(self._cell)

    def departed(self) -> bool:
        """Says whether the caller was cancelled; it says so itself at its next turn."""
        return self._parking.is_spent(self._cell)


class PartsCell(GroupCell):
    """The same for the parts of one item: the first that fails wakes the caller."""

    __slots__ = ("has_failed",)

    def __init__(self, parking: Parking, size: int) -> None:
        super().__init__(parking, size)
        self.has_failed: Callable[[], bool] = _nothing_failed

    def wake(self) -> None:
        """Notes that one part has ended."""
        self.left -= 1
        if self.left == 0 or self.has_failed():
            self._parking.wake(self._cell)


def _nothing_failed() -> bool:
    return False
