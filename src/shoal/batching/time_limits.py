"""Ends batches that run for too long, with one task for all.

A deadline on the handler's cancel scope would be enough for handlers that end when cancelled. But a
handler may shield its clean-up, and a handler in a thread can't be cancelled; their callers must
get the error in time, too. A task for each run would cost more than the run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shoal.core.timers import Timers
from shoal.loops.parking import Bell

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.core.timers import Timer
    from shoal.loops.parking import Parking


class TimeLimits:
    """Calls functions at given times, unless they are cancelled before."""

    def __init__(self, parking: Parking) -> None:
        self._parking = parking
        self._timers = Timers()
        self._bell = Bell(parking)
        self._asleep_until = math.inf

    def add(self, at: float, on_time: Callable[[], object]) -> Timer:
        if at < self._asleep_until:
            self._bell.ring()
        return self._timers.add(at, on_time)

    def forget(self, timer: Timer) -> None:
        self._timers.forget(timer)

    async def run(self) -> None:
        while True:
            for on_time in self._timers.due(self._parking.now()):
                on_time()
            on_time = None  # it would keep the last batch alive
            self._asleep_until = self._timers.next_at()
            await self._bell.wait(self._asleep_until)
