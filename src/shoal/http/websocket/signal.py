"""A signal that one task waits for, and others set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.loops.parking import Parking


class Signal:
    """Wakes the task that waits for it; it is not kept, so the task checks what it waits for.

    Args:
        parking: The event loop's way to wait.
    """

    __slots__ = ("_parking", "_waiter")

    def __init__(self, parking: Parking) -> None:
        self._parking = parking
        self._waiter: Any = None

    async def wait(self) -> None:
        """Waits until it is set."""
        self._waiter = waiter = self._parking.new_waiter()
        try:
            await waiter
        finally:
            self._waiter = None

    def set(self) -> None:
        """Wakes the task that waits, if one does."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            self._parking.wake(waiter)
