"""Wakes the tasks of one batcher that wait for its queue to change."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from shoal.loops.parking import Parking


class Bell:
    """Wakes one task that waits often, and any others that wait for the next change."""

    __slots__ = ("_change", "_parking", "waiter")

    def __init__(self, parking: Parking) -> None:
        self._parking = parking
        # The waiter of the last wait; after that wait, waking it does nothing.
        self.waiter: Any = None
        self._change: anyio.Event | None = None

    def ring(self) -> None:
        if self.waiter is not None:
            self._parking.wake(self.waiter)
        if self._change is not None:
            self._change.set()
            self._change = None

    def wait(self, until: float) -> Awaitable[Any]:
        """Returns an awaitable for `ring` or a time (infinity for no limit); one task at a time."""
        return self._parking.park(self) if until == math.inf else self._wait_until(until)

    async def _wait_until(self, until: float) -> None:
        scope = self._parking.new_scope()
        scope.deadline = until
        with scope:
            await self._parking.park(self)

    async def change(self) -> None:
        """Waits for `ring`, in any number of tasks."""
        if self._change is None:
            self._change = anyio.Event()
        await self._change.wait()
