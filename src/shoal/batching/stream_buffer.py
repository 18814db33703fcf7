"""The buffer of one stream: what the slot that fills it and the reader that empties it share."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.batching.loops.parking import Parking


class StreamBuffer:
    """What the slot and the reader of one stream share; it stands in the request's cell.

    Invariants:
        ``len(items) <= capacity``.
        ``reader`` is the cell of the task that waits for an item; it waits only while `items` is
        empty and the request has not ended.
        ``hold`` is the cell of the slot that waits for room; it waits only while `items` is full.
    """

    __slots__ = (
        "_held_since",
        "capacity",
        "has_sent",
        "held_s",
        "hold",
        "items",
        "parking",
        "reader",
        "watch",
    )

    def __init__(self, parking: Parking, capacity: int) -> None:
        self.parking = parking
        self.capacity = capacity
        self.items: deque[Any] = deque()
        self.reader: Any = None
        # Whether the reader was given anything.
        self.has_sent = False
        self.hold: Any = None
        # What sees to a stream that is dropped; None where leaving it is sure.
        self.watch: object = None
        # For how long, in seconds, the reader has held its batch back since it last caught up.
        self.held_s = 0.0
        self._held_since = 0.0

    def wake(self) -> None:
        """Wakes the reader, because there is an item, an error or the end."""
        reader = self.reader
        if reader is not None:
            self.reader = None
            self.parking.wake(reader)

    def departed(self) -> bool:
        """A reader leaves by closing its stream, never by a cancelled wait alone."""
        return False

    def begin_hold(self, hold: Any, now: float) -> None:
        """Notes that the slot waits for room, and on which cell."""
        self.hold = hold
        self._held_since = now

    def end_hold(self, now: float) -> None:
        """Notes that the slot does not wait for this reader now, and charges it for its wait."""
        if self.hold is not None:
            self.hold = None
            self.held_s += now - self._held_since

    def release(self) -> None:
        """Lets the slot go on that waits for room."""
        hold = self.hold
        if hold is not None:
            self.end_hold(self.parking.now())
            self.parking.wake(hold)
