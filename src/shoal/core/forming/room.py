"""How many requests may be in line.

Requests that an idle slot takes at once do not count as waiting, so a burst into an idle batcher is
let in.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.core.options.options import BatchOptions


class QueueRoom:
    """The room of one line, and how much of it slots are about to take.

    Args:
        options: The options in force.

    Attributes:
        most: How many requests may be in line; above it, calls meet the overload rule.
        at_once: How much of the line idle slots and open batches are about to take.
        closed: Whether nobody is let in any more.

    Invariant: ``most`` and ``at_once`` are as of the last `measure`, but for the end of a line,
    which lets everybody in who waits for room (`Former.close`).
    """

    __slots__ = ("_idle_slots", "_open_room", "_options", "at_once", "closed", "most")

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        self._idle_slots: float = 0
        self._open_room: float = 0
        self.most: float = 0
        self.at_once: float = 0
        self.closed = False

    def change(self, options: BatchOptions) -> None:
        """Takes in new options; they count from the next `measure` on."""
        self._options = options

    def measure(self, idle_slots: float | None, open_room: float) -> None:
        """Takes in another number of idle slots.

        Args:
            idle_slots: How many slots are idle, infinity where their number has no bound; None for
                as many as before, and for as much room in open batches.
            open_room: How much more the batches take that are open.
        """
        options = self._options
        if idle_slots is not None:
            self._idle_slots = idle_slots
            self._open_room = open_room
        self.at_once = self._idle_slots * options.max_batch_size + self._open_room
        bound = options.max_queued_requests
        if self.closed:
            self.most = 0
        elif bound is None:
            self.most = math.inf
        elif options.batch_size_fn is not None:
            self.most = bound
        else:
            self.most = bound + self.at_once

    def takes_at_once(self, size: float) -> bool:
        """Says whether slots are about to take a line of some size, however many requests it has.

        An item may be as large as a batch, so where items have costs it is by these that idle slots
        take them.
        """
        return not self.closed and self._options.batch_size_fn is not None and size <= self.at_once

    def spare(self, size: float) -> float:
        """Returns how much more would be taken at once, beyond a line of some size."""
        return 0 if self.closed else max(0, self.at_once - size)

    def fullness(self, live: int) -> str:
        """Says why there is no room, for an error.

        Args:
            live: How many requests are in line.
        """
        return (
            f"{live} requests are waiting, "
            f"and max_queued_requests={self._options.max_queued_requests}"
        )
