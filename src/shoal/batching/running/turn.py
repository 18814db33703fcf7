"""The turn at the queue, which one worker slot has at a time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batching.loops.parking import Parking


class Turn:
    """Passes the turn at the queue from slot to slot, in the order in which they ask for it.

    Args:
        parking: The event loop's way to wait.
        add_slot: Called when the turn is free and no slot waits for it.

    Attributes:
        waiters: Those of the slots that wait for the turn.
    """

    def __init__(self, parking: Parking, add_slot: Callable[[], None]) -> None:
        self._parking = parking
        self._add_slot = add_slot
        self._is_taken = False
        self.waiters: deque[Any] = deque()

    async def take(self) -> None:
        """Waits until no other slot has the turn, and takes it."""
        while self._is_taken:
            waiter = self._parking.new_waiter()
            self.waiters.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter in self.waiters:
                    self.waiters.remove(waiter)
                else:
                    self.offer()  # this one had been woken
                raise
        self._is_taken = True

    def pass_on(self) -> None:
        """Gives the turn up; the next slot gets it."""
        self._is_taken = False
        self.offer()

    def offer(self) -> None:
        """Wakes the slot that waits longest, if the turn is free; asks for one if none waits."""
        if self._is_taken:
            return
        if self.waiters:
            self._parking.wake(self.waiters.popleft())
        else:
            self._add_slot()
