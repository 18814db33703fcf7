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
from shoal.failures.exceptions import own_copy
from shoal.failures.held import holding

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from shoal.batching.calls.intake import Intake
    from shoal.core.request import Request
    from shoal.loops.parking import Parking


_WAITING: Final = (State.PARKED, State.QUEUED)


class Flight(RequestBatch):
    """Calls that wait for one request; also the batch of their own requests."""

    __slots__ = ("_intake", "_keep", "_table", "buffer", "key", "leader", "members")

    # The request in the engine; this object is its waiter.
    leader: Request

    def __init__(
        self,
        key: Hashable,
        table: dict[Hashable, Flight],
        intake: Intake,
        keep: Callable[[Hashable, Any], object],
    ) -> None:
        # Equal for calls that share the request. Later calls find it in the table by its key.
        self.key = key
        self._table = table
        self._intake = intake
        # Keeps the result for later calls.
        self._keep = keep
        # The calls' requests that have not ended, in order.
        self.members: dict[Request, None] = {}
        self.active = 0
        # Gives each item of a stream to all calls; None for calls with one result.
        self.buffer: SharedBuffer | None = None
        self.on_left: Callable[[Request | None], object] | None = None

    def admit(self, request: Request) -> None:
        request.state = State.RUNNING
        request.batch = self
        self.members[request] = None
        self.active += 1

    def close(self) -> bool:
        """Lets no more calls join; returns whether they could."""
        try:
            with holding():
                if self._table.get(self.key) is not self:
                    return False
                del self._table[self.key]
        except Exception:  # of a user's key that is compared
            self._table.clear()
            return False
        return True

    def left(self, request: Request | None) -> None:
        """Handles a call that ended before the leader; drops the leader after the last one."""
        if request is not None:
            del self.members[request]
        if not self.active:
            self.close()
            self._intake.abandon(self.leader)
            self._intake.counters.cancelled -= 1  # the call was counted
            self._drop_references()

    def fail(self, request: Request, error: Exception) -> None:
        """Fails one call; the others go on."""
        request.state, request.batch = State.FAILED, None
        self.active -= 1
        self._intake.fail_one(request, error)
        self.left(request)

    def _drop_references(self) -> None:
        """Drops the references to this object once no call is in it."""
        # Otherwise each flight, with the requests of its calls, stays until the garbage collector
        # runs.
        self.on_left = None
        if self.leader.waiter is self:  # a stream's waiter asks for the state of the leader later
            del self.leader

    # What the engine calls on the waiter of the leader, where that has one result.

    def wake(self) -> None:
        """Ends all calls, since the leader has ended."""
        # A flight that no call could join may be of another version of the code.
        is_current = self.close()
        leader, counters = self.leader, self._intake.counters
        error, leader.error = leader.error, None
        requests = list(self.members)
        self.members.clear()
        self.active = 0
        if error is None:
            counters.finished += len(requests) - 1  # the leader was counted
        elif leader.state is State.DECLINED:
            counters.declined += len(requests) - 1
        else:
            counters.failed += len(requests) - 1
        buffer, self.buffer = self.buffer, None
        self._drop_references()
        value: Any = None
        if error is None:
            value = leader.value if buffer is None else buffer.history
            if is_current and (buffer is None or value is not None):
                self._keep(self.key, value)
        for request in requests:
            request.batch = None
            if error is None:
                request.state, request.value = State.FINISHED, value
            else:
                request.state, request.error = leader.state, own_copy(error)
        self._intake.parking.wake_all(requests)

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

    capacity: int
    flight: Flight
    # The items so far; None if they are not kept any more.
    history: list[Any] | None = field(default_factory=list[Any])
    has_sent: bool = False

    @property
    def items(self) -> SharedBuffer:
        """Itself: takes the items of the engine; its length is that of the longest buffer."""
        return self

    def append(self, item: Any) -> None:
        if self.history is not None:
            self.history.append(item)
            if len(self.history) > REPLAYED_MOST:
                self.history = None
                self.flight.close()
        for request in list(self.flight.members):  # a reader may leave when it gets the item
            buffer: StreamBuffer = request.waiter
            buffer.items.append(item)
            buffer.has_sent = True
            buffer.offer()

    def __len__(self) -> int:
        return max([len(request.waiter.items) for request in self.flight.members], default=0)

    def wake(self) -> None:
        """Ends the streams if the request has ended; the readers already have its items."""
        if self.flight.leader.batch is None and not self.flight.is_queued:
            self.flight.wake()

    def offer(self) -> None:
        # `append` has offered the item to each reader.
        ...

    def done(self) -> bool:
        return False


def filled_buffer(parking: Parking, capacity: int, items: list[Any]) -> StreamBuffer:
    buffer = StreamBuffer(parking, capacity)
    buffer.items = deque(items)
    buffer.has_sent = bool(items)
    return buffer
