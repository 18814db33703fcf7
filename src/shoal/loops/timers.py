"""The timers of an event loop: functions that one task calls at given times.

A timer costs far less than a cancel scope or a task, since most are cancelled before they expire.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

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


def _call(function: Callable[[], object]) -> None:
    function()


class LoopTimers:
    def __init__(self, parking: Parking, *others: tuple[Timers, Callable[[Any], object]]) -> None:
        self.now = parking.now
        self._timers = Timers()
        self.forget = self._timers.forget
        # Timers, and what is called with the subject of each that has expired.
        self._all = (*others, (self._timers, _call))
        self._bell = Bell(parking)
        # When the next timer expires; infinity if there is none.
        self.asleep_until = math.inf

    def add(self, at: float, call: Callable[[], object]) -> Timer:
        """Calls a function, which must not raise, at a time on the event loop's clock."""
        timer = self._timers.add(at, call)
        self.wake_at(at)
        return timer

    def wake_at(self, at: float) -> None:
        """Makes the task look at the timers at a time, since one was added that expires then."""
        if at < self.asleep_until:
            self.asleep_until = at
            self._bell.ring()

    async def run(self) -> None:
        while True:
            for timers, expire in self._all:
                for count, what in enumerate(timers.due(self.now()), 1):
                    expire(what)
                    if count % _CALLED_AT_ONCE == 0:
                        await anyio.lowlevel.checkpoint()
            what = None  # it would keep what it is for alive
            self.asleep_until = min([timers.next_at() for timers, _ in self._all])
            await self._bell.wait(self.asleep_until)
