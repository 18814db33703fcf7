"""The timers of an event loop: functions that one task calls at given times.

A timer costs far less than a cancel scope or a task, since most are cancelled before they expire.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import anyio.lowlevel

from shoal.core.timers import Timers
from shoal.loops.parking import Bell

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.core.timers import Timer
    from shoal.loops.parking import Parking

# Those that were set together expire together. Calling them takes a while, and other tasks would
# have to wait.
_CALLED_AT_ONCE: Final = 16


class LoopTimers:
    def __init__(self, parking: Parking) -> None:
        self.now = parking.now
        self._timers = Timers()
        self.forget = self._timers.forget
        self._bell = Bell(parking)
        self._asleep_until = math.inf

    def add(self, at: float, call: Callable[[], object]) -> Timer:
        """Calls a function, which must not raise, at a time on the event loop's clock."""
        timer = self._timers.add(at, call)
        if at < self._asleep_until:
            self._bell.ring()
        return timer

    async def run(self) -> None:
        while True:
            for count, call in enumerate(self._timers.due(self.now()), 1):
                call()
                if count % _CALLED_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
            call = None  # it would keep what it is for alive
            self._asleep_until = self._timers.next_at()
            await self._bell.wait(self._asleep_until)
