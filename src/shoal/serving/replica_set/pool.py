"""The pool: the replicas of a backend that can take work, and the choice among them.

A batch is dispatched only when a replica can take it: through `PoolRoom`, the pool is the batchers'
`Room`. The batch goes to the replica with the fewest batches; among equals, to the least recently
used one. Replicas have no queues of their own, so no request waits for a busy replica while another
one is idle.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from shoal.errors import BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from shoal.core.request import RequestBatch
    from shoal.replicas.contract import Replica


@dataclass(eq=False)
class Member:
    """A replica in the pool.

    Attributes:
        replica: The replica.
        slots: The most batches that it takes at once; infinity for no limit.
        most: The most requests that it takes at once; None for no limit beside `slots`.
        batches: The number of batches that it runs now.
        ongoing: The number of requests in those batches, by which its room is reckoned: an open or
            continuous batch counts as one, whatever it has.
        open: The open and continuous batches among them.
        total: The number of batches that it has been given so far.
        on_withdrawn: Called when it gets no more work.
    """

    replica: Replica
    slots: float
    most: int | None = None
    batches: int = 0
    ongoing: int = 0
    total: int = 0
    open: list[RequestBatch] = field(default_factory=list["RequestBatch"])
    on_withdrawn: list[Callable[[], None]] = field(default_factory=list["Callable[[], None]"])
    _idle: anyio.Event | None = None

    @property
    def requests(self) -> int:
        """The number of requests that it runs now."""
        return self.ongoing - len(self.open) + sum([batch.active for batch in self.open])

    async def wait_idle(self) -> None:
        """Waits until the replica runs no batch."""
        while self.batches:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    def ended(self, requests: int) -> None:
        """Records that a batch with this many requests has ended."""
        self.batches -= 1
        self.ongoing -= requests
        if not self.batches and self._idle is not None:
            self._idle.set()
            self._idle = None

    def room(self, size: int) -> float:
        """Returns how many more batches of some size it can take; at least 1 if it is idle."""
        if not self.replica.takes_work:
            return 0  # its supervisor will notice that
        slots = self.slots - self.batches
        if self.most is not None:
            slots = min(slots, (self.most - self.ongoing) // size)
        return max(0 if self.batches else 1, slots)


class Pool:
    """The replicas that can take work.

    Args:
        name: The backend's tag, for messages.
        on_batch: Called after each batch with the replica that ran it.
        on_wait: Called when a batch that is due finds no room.

    Attributes:
        failure: Why there is no replica and none is expected soon; None otherwise.
    """

    def __init__(
        self,
        name: str,
        on_batch: Callable[[Member], None],
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._on_wait = on_wait
        self._on_batch = on_batch
        # The least recently used one comes first.
        self._members: dict[Replica, Member] = {}
        self._listeners: list[Callable[[], None]] = []
        # The batchers with a batch that is due, in the order in which they found no room.
        self._queue: dict[PoolRoom, None] = {}
        self._run_again = 0
        self._change: anyio.Event | None = None  # set only while a task waits for it
        self.failure: BaseException | None = None

    def free(self, size: int, room: PoolRoom) -> float:
        """Returns how many more batches of some size the replicas can take from a batcher.

        If the backend has failed and has no replica, batches are accepted and fail at once, so that
        their callers learn why. Batches that run again go first, then batchers in the order in
        which they began to wait. Otherwise a batcher with small batches would take all the room
        that becomes free, and one with large batches would starve.
        """
        if self.failure is not None and not self._members:
            return 1
        if self._run_again or (self._queue and next(iter(self._queue)) is not room):
            return 0
        return sum([member.room(size) for member in self._members.values()])

    def queue(self, room: PoolRoom) -> None:
        """Adds a batcher to the queue for room; one that is in it keeps its place."""
        self._queue.setdefault(room)
        self._on_wait()

    def leave_queue(self, room: PoolRoom) -> None:
        """Removes a batcher from the queue for room, if it is in it."""
        if room in self._queue:
            del self._queue[room]
            self._changed()

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Calls a function whenever the room changes; returns a function that ends that."""
        self._listeners.append(on_change)
        return lambda: self._listeners.remove(on_change)

    def add(self, replica: Replica, slots: float, most: int | None = None) -> Member:
        """Adds a replica that is ready.

        Args:
            replica: The replica.
            slots: The most batches that it takes at once.
            most: The most requests that it takes at once; None for no limit beside `slots`.
        """
        member = self._members[replica] = Member(replica, slots, most)
        self.failure = None
        self._changed()
        return member

    def withdraw(self, member: Member) -> None:
        """Stops giving a replica work. Idempotent; the batches that it has go on."""
        if self._members.pop(member.replica, None) is not None:
            for notify in tuple(member.on_withdrawn):
                notify()
            self._changed()

    def resize(self, slots: float, most: int | None) -> None:
        """Changes how much each replica takes at once; arguments as for `add`."""
        for member in self._members.values():
            member.slots, member.most = slots, most
        self._changed()

    def fail(self, failure: BaseException | None) -> None:
        """Records why no replica is expected soon; None if one may come after all."""
        self.failure = failure
        self._changed()

    def take(self, size: int) -> Member | None:
        """Chooses the replica for a batch of some size; None if no replica has room."""
        best: Member | None = None
        for member in self._members.values():
            if member.room(size) and (best is None or member.batches < best.batches):
                best = member
                if not best.batches:
                    break
        return best

    async def wait(self, size: int) -> Member:
        """Waits until a replica can take a batch of some size, and returns it.

        Raises:
            BackendUnavailable: There is no replica, and none is expected soon.
        """
        self._run_again += 1
        try:
            while (member := self.take(size)) is None:
                self.check_available()
                self._change = self._change or anyio.Event()
                await self._change.wait()
            return member
        finally:
            self._run_again -= 1
            if not self._run_again:
                self._changed()

    def check_available(self) -> None:
        """Checks that there is a replica, or will be soon.

        Raises:
            BackendUnavailable: There is no replica, and none is expected soon.
        """
        if self.failure is not None:
            self._on_wait()
            raise BackendUnavailable(
                f"the backend {self._name} has no replica: {self.failure}"
            ) from self.failure

    @contextmanager
    def at_work(self, member: Member, requests: int) -> Generator[Replica]:
        """Counts a batch as running in a replica while the block runs.

        Args:
            member: The replica; from `take` or `wait`, with no ``await`` in between.
            requests: The number of requests in the batch.
        """
        member.batches += 1
        member.ongoing += requests
        member.total += 1
        if len(self._members) > 1 and self._members.pop(member.replica, None) is not None:
            self._members[member.replica] = member  # most recently used: last
        self._changed()
        try:
            yield member.replica
        finally:
            member.ended(requests)
            if not member.replica.takes_work:
                self.withdraw(member)
            self._on_batch(member)
            self._changed()

    def _changed(self) -> None:
        if self._change is not None:
            self._change.set()
            self._change = None
        for listener in tuple(self._listeners):
            listener()


class PoolRoom:
    """The pool as the `Room` of one batcher.

    Args:
        pool: The pool.
        size: Returns the size of the batcher's largest batches.
    """

    def __init__(self, pool: Pool, size: Callable[[], int]) -> None:
        self._pool = pool
        self._size = size

    @property
    def free(self) -> float:
        """The number of further batches that the replicas can take; infinity for no limit."""
        return self._pool.free(self._size(), self)

    def is_full(self) -> bool:
        """See `Room.is_full`."""
        if self.free:
            self._pool.leave_queue(self)
            return False
        self._pool.queue(self)
        return True

    def rest(self) -> None:
        """See `Room.rest`."""
        self._pool.leave_queue(self)

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """See `Room.subscribe`."""
        unsubscribe = self._pool.subscribe(on_change)

        def end() -> None:
            unsubscribe()
            self.rest()

        return end
