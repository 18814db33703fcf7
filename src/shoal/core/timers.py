"""A set of timers, most of which are cancelled before they expire.

Most timers have the same duration, so most are added in the order in which they expire. Those go
into a queue, which is cheaper than a heap; only the others go into a heap. A cancelled entry is
emptied and stays where it is until its turn comes, or until there are many such entries.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Timer: TypeAlias = "list[Any]"
"""One entry: its time, its number, and its subject, which is None once it is cancelled."""

_FORGOTTEN_WORTH_A_SWEEP: Final = 64


class Timers:
    # Invariant: the entries of `_queue` are in order of time; `_latest` is the time of the last
    # one.

    __slots__ = ("_heap", "_latest", "_numbers", "_queue", "_sweep_at", "forgotten")

    def __init__(self) -> None:
        self._queue: deque[Timer] = deque()
        self._heap: list[Timer] = []
        self._latest = -math.inf
        self._numbers = count()
        self.forgotten = 0
        # How many cancelled entries trigger a sweep: the number of entries left by the last one.
        self._sweep_at = _FORGOTTEN_WORTH_A_SWEEP

    def add(self, at: float, what: object) -> Timer:
        """`what` is any subject other than None."""
        if self.forgotten > self._sweep_at:
            self.keep(lambda _: True)
        timer = [at, next(self._numbers), what]
        if at >= self._latest:
            self._latest = at
            self._queue.append(timer)
        else:
            heapq.heappush(self._heap, timer)
        return timer

    def forget(self, timer: Timer) -> None:
        if timer[2] is not None:
            timer[2] = None
            self.forgotten += 1

    def keep(self, is_wanted: Callable[[Any], bool]) -> None:
        def remaining(timers: list[Timer] | deque[Timer]) -> list[Timer]:
            return [timer for timer in timers if timer[2] is not None and is_wanted(timer[2])]

        self._queue = deque(remaining(self._queue))
        self._heap = remaining(self._heap)
        heapq.heapify(self._heap)
        self.forgotten = 0
        self._sweep_at = max(_FORGOTTEN_WORTH_A_SWEEP, len(self))

    def next_at(self) -> float:
        timer = self._next()
        at: float = math.inf if timer is None else timer[0]
        return at

    def first(self) -> Any:
        timer = self._next()
        return None if timer is None else timer[2]

    def due(self, now: float) -> Iterator[Any]:
        """Removes the timers that expire by `now`, and yields their subjects in order of time."""
        while (timer := self._next()) is not None and timer[0] <= now:
            if self._queue and self._queue[0] is timer:
                self._queue.popleft()
            else:
                heapq.heappop(self._heap)
            what, timer[2] = timer[2], None
            yield what

    def _next(self) -> Timer | None:
        queue, heap = self._queue, self._heap
        dropped = 0
        while queue and queue[0][2] is None:
            queue.popleft()
            dropped += 1
        self.forgotten -= dropped
        while heap and heap[0][2] is None:
            heapq.heappop(heap)
            self.forgotten -= 1
        if not queue:
            self._latest = -math.inf
            return heap[0] if heap else None
        return min(queue[0], heap[0]) if heap else queue[0]

    def __len__(self) -> int:
        return len(self._queue) + len(self._heap) - self.forgotten
