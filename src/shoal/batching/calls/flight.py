"""Calls that share one request, and the buffer of a stream that several readers share.

Each item goes to the buffer of each reader. A later reader gets the items from the start while they
are kept: up to `REPLAYED_MOST`. After that no reader can join. The slowest reader holds the batch
back, as the only reader of a stream does, and then fails alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from shoal.batching.stream_buffer import StreamBuffer
from shoal.core.request import RequestBatch, State

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from shoal.core.request import Request
    from shoal.loops.parking import Parking


_WAITING: Final = (State.PARKED, State.QUEUED)


class Flight(RequestBatch):
    """Calls that wait for one request; also the batch of their own requests."""

    __slots__ = ("_landed", "buffer", "key", "leader", "members")

    # The request in the engine; this object is its waiter.
    leader: Request

    def __init__(self, key: Hashable, landed: Callable[[Flight], object]) -> None:
        # Equal for calls that share the request.
        self.key = key
        # The calls' requests that have not ended, in order.
        self.members: dict[Request, None] = {}
        self.active = 0
        # Gives each item of a stream to all calls; None for calls with one result.
        self.buffer: Any = None  # a `SharedBuffer`
        self.on_left: Callable[[Request | None], object] | None = None
        self._landed = landed

    def admit(self, request: Request) -> None:
        request.state = State.RUNNING
        request.batch = self
        self.members[request] = None
        self.active += 1

    def drop_references(self) -> None:
        """Drops the references to this object once no call is in it."""
        # Otherwise each flight, with the requests of its calls, stays until the garbage collector
        # runs.
        self.on_left = None
        if self.leader.waiter is self:  # a stream's waiter asks for the state of the leader later
            del self.leader

    # What the engine calls on the waiter of the leader, where that has one result.

    def wake(self) -> None:
        self._landed(self)

    @property
    def flight(self) -> Flight:
        """Itself; the waiters of all leaders have this attribute."""
        return self

    @property
    def is_queued(self) -> bool:
        return self.leader.state in _WAITING

    def done(self) -> bool:
        # The last call that leaves abandons the leader itself.
        return False


REPLAYED_MOST: Final = 1024
"""How many items of a stream are kept for readers that join it later."""


@dataclass(eq=False, repr=False)
class SharedBuffer:
    """The waiter of a request that readers share; a `StreamBuffer` for the engine."""

    waiter: ClassVar = None
    watch: ClassVar = None
    passes_on: ClassVar = None

    parking: Parking
    capacity: int
    flight: Flight
    ended: Callable[[], object]
    overflowed: Callable[[], object]
    fail: Callable[[Request, Exception], object]
    # The items so far; None if they are not kept any more.
    history: list[Any] | None = field(default_factory=list[Any])
    has_sent: bool = False
    hold: Any = None

    @property
    def items(self) -> SharedBuffer:
        """Itself: takes the items of the engine; its length is that of the longest buffer."""
        return self

    def buffer_of_new_reader(self) -> StreamBuffer:
        assert self.history is not None
        return filled_buffer(self.parking, self.capacity, self.history)

    def append(self, item: Any) -> None:
        if self.history is not None:
            self.history.append(item)
            if len(self.history) > REPLAYED_MOST:
                self.history = None
                self.overflowed()
        for buffer in self._buffers():
            buffer.items.append(item)
            buffer.has_sent = True
            buffer.offer()

    def __len__(self) -> int:
        return max([len(buffer.items) for buffer in self._buffers()], default=0)

    def wake(self) -> None:
        """Ends the streams if the request has ended; the readers already have its items."""
        if self.flight.leader.batch is None and not self.flight.is_queued:
            self.ended()

    def offer(self) -> None:
        # `append` has offered the item to each reader.
        ...

    def done(self) -> bool:
        return False

    @property
    def held_s(self) -> float:
        """For how long, in seconds, the slowest reader has blocked the batch."""
        return max([buffer.held_s for buffer in self._full()], default=0.0)

    def begin_hold(self, hold: Any, now: float) -> None:
        self.hold = hold
        for buffer in self._full():
            buffer.begin_hold(hold, now)

    def end_hold(self, now: float) -> None:
        self.hold = None
        for buffer in self._buffers():
            buffer.end_hold(now)

    def release(self) -> None:
        for buffer in self._buffers():
            buffer.release()

    def fail_slow(self, error: Callable[[], Exception]) -> bool:
        """Fails the readers with full buffers; returns True."""
        for request in list(self.flight.members):
            if len(request.waiter.items) >= self.capacity:
                self.fail(request, error())
        return True

    def _buffers(self) -> list[StreamBuffer]:
        return [request.waiter for request in self.flight.members]

    def _full(self) -> list[StreamBuffer]:
        return [buffer for buffer in self._buffers() if len(buffer.items) >= self.capacity]


def filled_buffer(parking: Parking, capacity: int, items: list[Any]) -> StreamBuffer:
    buffer = StreamBuffer(parking, capacity)
    buffer.items = deque(items)
    buffer.has_sent = bool(items)
    return buffer
