"""The deadlines of streams: one task that ends those which run out of time.

A unary caller is always in its wait, and so its deadline is a cancel scope round that wait. The
reader of a stream may be anywhere when the stream's time is up, and its request must give its place
back even so. One task for all of them sleeps until the earliest; where there are none it is never
woken.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batching.parking import Parking
    from shoal.core.request import Request

_FORGOTTEN_WORTH_A_SWEEP: Final = 64


class Deadlines:
    """Ends requests at their deadlines, unless they have come to an end before."""

    def __init__(self, parking: Parking, expire: Callable[[Request], None]) -> None:
        self._parking = parking
        self._expire = expire
        # (deadline, order, request); a request that is forgotten leaves None behind.
        self._heap: list[list[Any]] = []
        self._entries: dict[Request, list[Any]] = {}
        self._order = count()
        self._bell: Any = None

    def add(self, request: Request, deadline: float) -> None:
        """Watches a request until a time on the loop's clock, in seconds."""
        self._entries[request] = entry = [deadline, next(self._order), request]
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._ring()

    def forget(self, request: Request) -> None:
        """Watches a request no more; does nothing if it is not watched."""
        entry = self._entries.pop(request, None)
        if entry is None:
            return
        entry[2] = None
        if self._heap[0] is entry:
            self._drop_forgotten()
            self._ring()
        elif len(self._heap) > 2 * len(self._entries) + _FORGOTTEN_WORTH_A_SWEEP:
            self._heap = [entry for entry in self._heap if entry[2] is not None]
            heapq.heapify(self._heap)

    async def run(self) -> None:
        """Watches until it is cancelled."""
        while True:
            now = self._parking.now()
            while self._heap and self._heap[0][0] <= now:
                request = self._heap[0][2]
                self.forget(request)
                self._expire(request)
                request.cell.end_by_deadline()
            self._bell = bell = self._parking.new_cell()
            with self._parking.new_scope() as scope:
                if self._heap:
                    scope.deadline = self._heap[0][0]
                await bell

    def _drop_forgotten(self) -> None:
        while self._heap and self._heap[0][2] is None:
            heapq.heappop(self._heap)

    def _ring(self) -> None:
        if self._bell is not None:
            self._parking.wake(self._bell)
