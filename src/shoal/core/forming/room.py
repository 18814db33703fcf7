"""How many requests may be queued.

Requests that an idle slot takes at once do not count as waiting, so a burst into an idle batcher is
admitted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.core.options.options import BatchOptions


class QueueRoom:
    """The capacity of one queue, and how much of it slots are about to take.

    Args:
        options: The options in force.

    Attributes:
        most: How many requests may be queued; beyond it, the overload option applies to calls.
        at_once: How much of the queue idle slots and open batches are about to take.
        closed: Whether requests are no longer admitted.
        idle_slots: The number of idle slots; infinity for no limit.

    Invariant: ``most`` and ``at_once`` are as of the last `measure`, except during `Former.close`,
    which admits all parked requests.
    """

    __slots__ = (
        "_batch_size",
        "_bound",
        "_has_costs",
        "_open_room",
        "_options",
        "at_once",
        "closed",
        "idle_slots",
        "most",
    )

    def __init__(self, options: BatchOptions) -> None:
        self.change(options)
        self.idle_slots: float = 0
        self._open_room: float = 0
        self.most: float = 0
        self.at_once: float = 0
        self.closed = False

    def change(self, options: BatchOptions) -> None:
        """Sets new options, which take effect with the next `measure`."""
        bound = options.max_queued_requests
        self._options = options
        self._bound = math.inf if bound is None else bound
        self._batch_size = options.max_batch_size
        self._has_costs = options.batch_size_fn is not None

    def measure(self, idle_slots: float | None, open_room: float) -> None:
        """Computes the capacity from the number of idle slots.

        Args:
            idle_slots: The number of idle slots, infinity if slots are unlimited; None if neither
                this nor `open_room` has changed.
            open_room: How much more the open batches can take.
        """
        if idle_slots is not None:
            self.idle_slots = idle_slots
            self._open_room = open_room
        self.at_once = at_once = self.idle_slots * self._batch_size + self._open_room
        if self.closed:
            self.most = 0
        else:
            self.most = self._bound if self._has_costs else self._bound + at_once

    def takes_at_once(self, size: float) -> bool:
        """Returns whether slots are about to take a queue of some size, if items have costs.

        Then the number of requests does not tell how much idle slots take, since one item may be as
        large as a batch.
        """
        return not self.closed and self._has_costs and size <= self.at_once

    def spare(self, size: float) -> float:
        """Returns how much more would be taken at once, beyond a queue of some size."""
        return 0 if self.closed else max(0, self.at_once - size)

    def fullness(self, live: int) -> str:
        """Returns why there is no room, for an error message.

        Args:
            live: The number of queued requests.
        """
        return (
            f"{live} requests are waiting, "
            f"and max_queued_requests={self._options.max_queued_requests}"
        )
