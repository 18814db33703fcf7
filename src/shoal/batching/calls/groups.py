"""Calls that are many requests: those of `map`, and large items, which no batch has room for.

A group is one wait for all of them. A large item is divided into parts that fit into batches, and
its result is put together from theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from shoal.batching.loops.parking import Parking
    from shoal.core.forming.call_options import CallOptions, RequestOptionsFactory
    from shoal.core.options.options import BatchOptions
    from shoal.core.request import Request, RequestOptions


class GroupWaiter:
    """Stands in the cell of each request of a group, and wakes the one caller after the last.

    Attributes:
        left: How many of the group's requests have not ended.
        has_failed: Says whether the caller need not wait for the others; None where it must.
    """

    __slots__ = ("_parking", "_waiter", "has_failed", "left")

    def __init__(self, parking: Parking, size: int) -> None:
        self._parking = parking
        self._waiter: Any = parking.new_waiter()
        self.left = size
        self.has_failed: Callable[[], bool] | None = None

    def __await__(self) -> Generator[Any, Any, Any]:
        wait: Generator[Any, Any, Any] = self._waiter.__await__()
        return wait

    def wake(self) -> None:
        """Notes that one request has ended."""
        self.left -= 1
        if self.left == 0 or (self.has_failed is not None and self.has_failed()):
            self._parking.wake(self._waiter)

    def departed(self) -> bool:
        """Says whether the caller was cancelled; it says so itself at its next turn."""
        return self._parking.is_spent(self._waiter)


class Part(NamedTuple):
    """One part of an item, or an item that is whole, and what it counts for in line."""

    item: Any
    options: RequestOptions


class Splitting:
    """Divides the items of one batcher and joins their results.

    Args:
        name: The batcher's name, for messages.
        options: Its options.
        options_factory: What makes the records of the parts.
    """

    def __init__(
        self, name: str, options: BatchOptions, options_factory: RequestOptionsFactory
    ) -> None:
        self._name = name
        self._most = options.max_batch_size
        self._split = options.split
        self._join = options.join
        self._options_factory = options_factory

    def parts(
        self, item: Any, whole: RequestOptions, call_options: CallOptions, now: float, queued: float
    ) -> list[Part]:
        """Divides an item so that it fits into the batches that will be cut.

        Args:
            item: What the caller passed.
            whole: What it counts for.
            call_options: What the call asks for.
            now: The time, in seconds.
            queued: The size of what waits in front of it.

        Returns:
            Its parts, in order; the item alone where it fits.

        Raises:
            ItemTooLarge: It, or a part, costs more than a batch may.
            TypeError: ``split`` gave back something other than parts.
            Exception: What ``split`` raised.
        """
        room = self._most - queued % self._most
        parts = [Part(item, whole)]
        if self._split is not None and whole.cost > room:
            parts = [
                Part(part, self._options_factory.of(part, call_options, now))
                for part in self._checked(self._split(item, room))
            ]
        for part in parts:
            # One deadline for all, and one bucket: the item's.
            part.options.deadline, part.options.due = whole.deadline, whole.due
            part.options.key = whole.key
            if part.options.cost > self._most:
                raise self._options_factory.refusal(part.options.cost)
        return parts

    def joined(self, requests: Sequence[Request]) -> Any:
        """Makes the result of an item of those of its parts, which have all ended.

        Raises:
            Exception: The first error of a part, or what ``join`` raised.
        """
        for request in requests:
            if request.error is not None:
                raise request.error
        if len(requests) == 1:
            return requests[0].value
        join = cast("Callable[[list[Any]], Any]", self._join)
        return join([request.value for request in requests])

    def _checked(self, given: Any) -> list[Any]:
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or not given:
            raise TypeError(
                f"split of {self._name} must give back a list of parts, at least one, "
                f"not {given!r:.80}"
            )
        # A copy, since functions of the user's run while it is gone through.
        parts: Sequence[Any] = given  # pyright: ignore[reportUnknownVariableType]
        return list(parts)
