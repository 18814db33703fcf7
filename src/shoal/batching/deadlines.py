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

from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batching.parking import Parking
    from shoal.core.request import Request

_ALIVE: Final = (State.PARKED, State.QUEUED, State.RUNNING)
_WORTH_A_SWEEP: Final = 64


class Deadlines:
    """Ends requests at their deadlines, unless they have come to an end before."""

    def __init__(self, parking: Parking, expire: Callable[[Request], None]) -> None:
        self._parking = parking
        self._expire = expire
        self._heap: list[tuple[float, int, Request]] = []
        self._order = count()
        self._bell: Any = None
        # Ended requests stay in the heap until their time; it is swept whenever it has doubled.
        self._sweep_at = _WORTH_A_SWEEP

    def add(self, request: Request, deadline: float) -> None:
        """Watches a request until a time on the loop's clock, in seconds."""
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[2].state in _ALIVE]
            heapq.heapify(self._heap)
            self._sweep_at = max(_WORTH_A_SWEEP, 2 * len(self._heap))
        heapq.heappush(self._heap, (deadline, next(self._order), request))
        if self._heap[0][2] is request and self._bell is not None:
            self._parking.wake(self._bell)

    async def run(self) -> None:
        """Watches until it is cancelled."""
        while True:
            now = self._parking.now()
            while self._heap and self._heap[0][0] <= now:
                self._end(heapq.heappop(self._heap)[2])
            self._bell = bell = self._parking.new_cell()
            with self._parking.new_scope() as scope:
                if self._heap:
                    scope.deadline = self._heap[0][0]
                await bell

    def _end(self, request: Request) -> None:
        if request.state in _ALIVE:
            self._expire(request)
            request.cell.end_by_deadline()
