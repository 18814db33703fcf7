"""Who makes room when the line is full: the requests by level, in order of arrival."""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Final

from shoal.core.request import State

if TYPE_CHECKING:
    from shoal.core.request import Request

QUEUED = State.QUEUED
_LEFTOVERS_WORTH_A_SWEEP: Final = 64


class Shedding:
    """Finds the request that is to be shed for a newcomer.

    Args:
        newest: Whether the newest of the lowest level goes, and only for a newcomer of a higher
            level; else it is the oldest, also for a newcomer of the same level.
    """

    __slots__ = ("_by_level", "_levels", "_newest", "_places")

    def __init__(self, *, newest: bool) -> None:
        self._newest = newest
        self._by_level: dict[int, deque[Request]] = {}
        # The levels of `_by_level`, each negated, so that the lowest comes first.
        self._levels: list[int] = []
        self._places = 0

    def add(self, request: Request, live: int) -> None:
        """Takes in a request that waits from now on, beside `live` others."""
        level = request.priority
        line = self._by_level.get(level)
        if line is None:
            line = self._by_level[level] = deque()
            heapq.heappush(self._levels, -level)
        line.append(request)
        self._places += 1
        if self._places - live > max(live, _LEFTOVERS_WORTH_A_SWEEP):
            self._sweep()

    def victim(self, newcomer: Request) -> Request | None:
        """Returns the request that makes room for a newcomer; None if the newcomer must go."""
        while self._levels:
            level = -self._levels[0]
            line = self._by_level[level]
            while line and line[-1 if self._newest else 0].state is not QUEUED:
                self._drop(line)
            if not line:
                heapq.heappop(self._levels)
                del self._by_level[level]
                continue
            if level < newcomer.priority or (self._newest and level == newcomer.priority):
                return None
            return line[-1 if self._newest else 0]
        return None

    def clear(self) -> None:
        """Forgets what has ended, when nobody waits any more."""
        self._by_level.clear()
        self._levels.clear()
        self._places = 0

    def _drop(self, line: deque[Request]) -> None:
        self._places -= 1
        if self._newest:
            line.pop()
        else:
            line.popleft()

    def _sweep(self) -> None:
        self._by_level = {
            level: deque(request for request in line if request.state is QUEUED)
            for level, line in self._by_level.items()
        }
        self._places = sum(map(len, self._by_level.values()))
