"""Ends requests that run out of time, with one task for all of them.

For a unary call a cancel scope around the caller's wait would do, but it costs as much as all the
rest of a call. The reader of a stream may be anywhere when the stream's time is up. So the queue
knows when requests are overdue (`Overdue`), and one task sleeps until the earliest of these times.
If there are none it is never woken.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shoal.loops.bell import Bell

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.core.forming.deadlines import Overdue
    from shoal.core.request import Request
    from shoal.loops.parking import Parking


class Deadlines:
    """Ends requests that run out of time."""

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
        # In a function, whose frame ends: the task's would keep the last request while it sleeps.
        for request, what_it_did in self._overdue.pop(self._parking.now()):
            self._expire(request, what_it_did)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            self.expire_all()
            self.asleep_until = self._overdue.timers.next_at()
            await self._bell.wait(self.asleep_until)
