"""Ends requests that run out of time, and batches that run for too long; each with one task.

A cancel scope around the wait of each caller costs as much as the rest of a call, and the reader of
a stream may be anywhere when the stream's time is up. So the queue knows when requests are overdue
(`Overdue`), and one task sleeps until the earliest of these times.

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

    from shoal.core.forming.deadlines import Overdue
    from shoal.core.request import Request
    from shoal.core.timers import Timer
    from shoal.loops.parking import Parking


class Deadlines:
    def __init__(
        self, parking: Parking, overdue: Overdue, expire: Callable[[Request, str], None]
    ) -> None:
        self._parking = parking
        self._overdue = overdue
        self._expire = expire
        self._bell = Bell(parking)
        # When the next request runs out of time; infinity if none does.
        self.asleep_until = math.inf

    def watch(self, request: Request) -> None:
        until = self._overdue.watch(request)
        if until < self.asleep_until:
            self.asleep_until = until
            self._bell.ring()

    def expire_all(self) -> None:
        # In a function, since its frame ends: the task's keeps the last request while it sleeps.
        for request, what_it_did in self._overdue.pop(self._parking.now()):
            self._expire(request, what_it_did)

    async def run(self) -> None:
        while True:
            self.expire_all()
            self.asleep_until = self._overdue.timers.next_at()
            await self._bell.wait(self.asleep_until)


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
