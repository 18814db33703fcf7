"""The buffer of a stream that several readers share: each item goes to the buffer of each reader.

A reader that comes later is given the items from the start, as long as those are kept: up to
`REPLAYED_MOST`. After that nobody can join. The slowest reader holds the batch back, as the reader
of a stream of its own does, and then fails alone.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.stream_buffer import StreamBuffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batching.calls.flight import Flight
    from shoal.core.request import Request
    from shoal.loops.parking import Parking

REPLAYED_MOST: Final = 1024
"""How many items of a stream are kept for readers that join it later."""


class SharedBuffer:
    """The waiter of the request that readers share; for the engine it is a `StreamBuffer`.

    Args:
        parking: The event loop's way to wait.
        capacity: How many items may wait for a reader.
        flight: The readers' requests.
        ended: Called when the request has ended.
        overflowed: Called when nobody can join any more.
        fail: Called with the request of a reader that is too slow, and its error.

    Attributes:
        items: Takes the items of the engine; it is as long as the longest buffer of a reader.
        flight: As above.
        history: The items so far; None if they are not kept any more.
        waiter, hold, has_sent, capacity, held_s: As in `StreamBuffer`; there is no single reader.
    """

    waiter = None
    watch = None
    passes_on = None

    def __init__(
        self,
        parking: Parking,
        capacity: int,
        flight: Flight,
        *,
        ended: Callable[[], object],
        overflowed: Callable[[], object],
        fail: Callable[[Request, Exception], object],
    ) -> None:
        self.parking = parking
        self.capacity = capacity
        self.items = self
        self.history: list[Any] | None = []
        self.has_sent = False
        self.hold: Any = None
        self.flight = flight
        self._ended = ended
        self._overflowed = overflowed
        self._fail = fail

    def buffer_of_new_reader(self) -> StreamBuffer:
        """Returns a buffer with the items so far."""
        assert self.history is not None
        return filled_buffer(self.parking, self.capacity, self.history)

    def append(self, item: Any) -> None:
        """Gives each reader an item."""
        if self.history is not None:
            self.history.append(item)
            if len(self.history) > REPLAYED_MOST:
                self.history = None
                self._overflowed()
        for buffer in self._buffers():
            buffer.items.append(item)
            buffer.has_sent = True
            buffer.offer()

    def __len__(self) -> int:
        return max([len(buffer.items) for buffer in self._buffers()], default=0)

    def wake(self) -> None:
        """Ends the streams if the request has ended; the readers got its items before."""
        if self.flight.leader.batch is None and not self.flight.waits:
            self._ended()

    def offer(self) -> None:
        """Does nothing: `append` has offered the item to each reader."""

    def done(self) -> bool:
        """See `StreamBuffer.done`."""
        return False

    @property
    def held_s(self) -> float:
        """For how long, in seconds, the slowest reader has blocked the batch."""
        return max([buffer.held_s for buffer in self._full()], default=0.0)

    def begin_hold(self, hold: Any, now: float) -> None:
        """See `StreamBuffer.begin_hold`."""
        self.hold = hold
        for buffer in self._full():
            buffer.begin_hold(hold, now)

    def end_hold(self, now: float) -> None:
        """See `StreamBuffer.end_hold`."""
        self.hold = None
        for buffer in self._buffers():
            buffer.end_hold(now)

    def release(self) -> None:
        """See `StreamBuffer.release`."""
        for buffer in self._buffers():
            buffer.release()

    def fail_slow(self, error: Callable[[], Exception]) -> bool:
        """Fails the readers whose buffers are full; returns True."""
        for request in list(self.flight.members):
            if len(request.waiter.items) >= self.capacity:
                self._fail(request, error())
        return True

    def _buffers(self) -> list[StreamBuffer]:
        return [request.waiter for request in self.flight.members]

    def _full(self) -> list[StreamBuffer]:
        return [buffer for buffer in self._buffers() if len(buffer.items) >= self.capacity]


def filled_buffer(parking: Parking, capacity: int, items: list[Any]) -> StreamBuffer:
    """Returns the buffer of a reader, with items."""
    buffer = StreamBuffer(parking, capacity)
    buffer.items = deque(items)
    buffer.has_sent = bool(items)
    return buffer
