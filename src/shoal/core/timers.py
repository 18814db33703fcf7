"""Times at which something is to happen: a heap of which entries can be forgotten in O(1).

Most timers here are forgotten, since most requests end before their time is up. A forgotten entry
stays in the heap, empty, until its turn comes or until more than half of the heap is such
leftovers.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Timer: TypeAlias = "list[Any]"
"""One entry: its time, its number, and what it is about; None once it is forgotten."""

_FORGOTTEN_WORTH_A_SWEEP: Final = 64


class Timers:
    """What is to happen, and when.

    Invariant: ``_forgotten`` == number of entries in ``_heap`` that are about nothing.
    """

    __slots__ = ("_count", "_forgotten", "_heap")

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._count = 0
        self._forgotten = 0

    def add(self, at: float, what: object) -> Timer:
        """Notes that something is to happen at a time.

        Args:
            at: The time, in seconds on the clock that the caller goes by.
            what: What it is about; not None.
        """
        self._count = number = self._count + 1
        timer = [at, number, what]
        heapq.heappush(self._heap, timer)
        return timer

    def forget(self, timer: Timer) -> None:
        """Drops a timer; does nothing if it has gone off or was dropped."""
        if timer[2] is None:
            return
        timer[2] = None
        self._forgotten += 1
        if self._forgotten > _FORGOTTEN_WORTH_A_SWEEP and self._forgotten * 2 > len(self._heap):
            self._heap = [other for other in self._heap if other[2] is not None]
            heapq.heapify(self._heap)
            self._forgotten = 0

    def next_at(self) -> float:
        """Returns the time of the next timer; infinity if there is none."""
        heap = self._heap
        while heap and heap[0][2] is None:
            heapq.heappop(heap)
            self._forgotten -= 1
        return heap[0][0] if heap else math.inf

    def keep(self, is_wanted: Callable[[Any], bool]) -> None:
        """Drops every timer but those about something that is wanted."""
        self._heap = [timer for timer in self._heap if timer[2] is not None and is_wanted(timer[2])]
        heapq.heapify(self._heap)
        self._forgotten = 0

    def first(self) -> Any:
        """Returns what is to happen next; None for nothing."""
        return None if self.next_at() == math.inf else self._heap[0][2]

    def due(self, now: float) -> Iterator[Any]:
        """Takes out, one by one, what is to happen by `now`, in order of time."""
        while self.next_at() <= now and self._heap:
            timer = heapq.heappop(self._heap)
            what, timer[2] = timer[2], None
            yield what

    def __len__(self) -> int:
        return len(self._heap) - self._forgotten
