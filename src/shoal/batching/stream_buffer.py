"""The buffer of one stream, shared by the worker slot that fills it and the reader.

`wait_for_readers` waits for the readers of full buffers, and fails the slow ones.
`wait_for_room` also waits for those that another task fills meanwhile.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from shoal.batching.current import callers_of
from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from shoal.core.request import Request
    from shoal.loops.parking import Parking


class StreamBuffer:
    """The buffer between the slot and the reader of one stream; the waiter of its request."""

    # Invariants: `len(items) <= capacity`. `waiter` is that of the reader that waits for an item;
    # it waits only while `items` is empty and the request has not ended. `passes_on` takes an item
    # for the reader only while that waits. `hold` is the waiter of the slot that waits for room; it
    # waits only while `items` is full.

    __slots__ = (
        "_held_since",
        "capacity",
        "has_sent",
        "held_s",
        "hold",
        "items",
        "parking",
        "passes_on",
        "waiter",
        "watch",
    )

    def __init__(self, parking: Parking, capacity: int) -> None:
        self.parking = parking
        self.capacity = capacity
        self.items: deque[Any] = deque()
        self.waiter: Any = None
        # Takes an item in place of the reader, at once; returns whether it did.
        self.passes_on: Callable[[Any], bool] | None = None
        # Whether any item was put in.
        self.has_sent = False
        self.hold: Any = None
        # Releases the request of a stream that is garbage collected; None once it is left.
        self.watch: object = None
        # For how long, in seconds, the reader has blocked its batch since it last caught up.
        self.held_s = 0.0
        self._held_since = 0.0

    def wake(self) -> None:
        waiter = self.waiter
        if waiter is not None:
            self.waiter = None
            self.parking.wake(waiter)

    def offer(self) -> None:
        """Forwards a new item if the reader waits for it, or wakes the reader."""
        if self.waiter is not None:
            items = self.items
            if self.passes_on is not None and len(items) == 1 and self.passes_on(items[0]):
                items.clear()
            else:
                self.wake()

    def done(self) -> bool:
        # A reader leaves by closing its stream, not with a cancelled wait.
        return False

    def begin_hold(self, hold: Any, now: float) -> None:
        self.hold = hold
        self._held_since = now

    def end_hold(self, now: float) -> None:
        """Adds the slot's wait to the time that the reader has blocked the batch."""
        if self.hold is not None:
            self.hold = None
            self.held_s += now - self._held_since

    def release(self) -> None:
        hold = self.hold
        if hold is not None:
            self.end_hold(self.parking.now())
            self.parking.wake(hold)


def offer_all(buffers: list[StreamBuffer]) -> None:
    """Offers unread items of buffers, once each, and empties the list."""
    for buffer in buffers:
        if buffer.items:
            buffer.offer()
    buffers.clear()


def is_full(request: Request) -> bool:
    buffer: StreamBuffer = request.waiter
    return len(buffer.items) >= buffer.capacity


async def wait_for_room(
    requests: Sequence[Request],
    is_full: Callable[[Request], bool],
    wait: Callable[[list[Request]], Awaitable[None]],
) -> None:
    """Waits until each running stream has room, by a function that waits for full ones."""
    # Again for all of them: another task may have used the room of one that had some.
    while full := [r for r in requests if r.state is State.RUNNING and is_full(r)]:
        if any(reader.waiter.hold is not None for r in full for reader in callers_of(r)):
            raise RuntimeError("another task is sending to this request already")
        await wait(full)


async def wait_for_readers(
    requests: list[Request],
    limit_s: float | None,
    parking: Parking,
    fail: Callable[[Request], None],
) -> None:
    """Waits until no buffer is full, but no longer than a reader may block the batch."""
    # `limit_s` is the total time for which one reader may block it; None for no limit.
    while full := [reader for r in requests for reader in callers_of(r) if _is_blocking(reader)]:
        now = parking.now()
        hold = parking.new_waiter()
        for reader in full:
            reader.waiter.begin_hold(hold, now)
        scope = parking.new_scope()
        due: dict[Request, float] = {}
        if limit_s is not None:
            due = {reader: now + limit_s - reader.waiter.held_s for reader in full}
            scope.deadline = min(due.values())
        try:
            with scope:
                await hold
        finally:
            now = parking.now()
            for reader in full:
                reader.waiter.end_hold(now)
        for reader, at in due.items():
            if now >= at and _is_blocking(reader):
                fail(reader)


def _is_blocking(reader: Request) -> bool:
    return reader.state is State.RUNNING and is_full(reader)
