"""The pool: the replicas of a backend that can take work, and the choice among them.

A batch is dispatched only when a replica can take it: through `PoolCapacity`, the pool is the
batchers' `Capacity`. The batch goes to the replica with the fewest batches; among equals, to the
least recently used one. Replicas have no queues of their own, so no request waits for a busy
replica while another one is idle.

A batcher reads its free capacity several times per batch, so the pool computes it at each change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import anyio

from shoal.core.forming.limiter import Limiter
from shoal.errors import BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.core.request import RequestBatch
    from shoal.replicas.contract import Replica


@dataclass(eq=False)
class Member:
    replica: Replica
    slots: float  # the most batches at once; infinity for no limit
    most: int | None = None  # the most requests at once, beside `slots`
    batches: int = 0
    # Requests in its batches, used to compute its free capacity: an open batch counts as one.
    ongoing: int = 0
    total: int = 0
    open: list[RequestBatch] = field(default_factory=list["RequestBatch"])
    # called when it gets no more work
    on_withdrawn: list[Callable[[], None]] = field(default_factory=list["Callable[[], None]"])
    # set when its last batch ends; None while no task waits for that
    idle: anyio.Event | None = None

    @property
    def requests(self) -> int:
        """The number of requests that it runs now."""
        return self.ongoing - len(self.open) + sum([batch.active for batch in self.open])

    async def wait_idle(self) -> None:
        while self.batches:
            self.idle = self.idle or anyio.Event()
            await self.idle.wait()

    def room(self, size: int) -> float:
        """Returns how many more batches of a size fit; at least 1 if it is idle."""
        slots = self.slots - self.batches
        if self.most is not None:
            slots = min(slots, (self.most - self.ongoing) // size)
        return max(0 if self.batches else 1, slots)


class Pool:
    def __init__(self, name: str, on_wait: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._on_wait = on_wait  # called when a due batch finds no room
        self.limiter = Limiter()
        # The least recently used one comes first.
        self._members: dict[Replica, Member] = {}
        self._capacities: list[PoolCapacity] = []
        # The batchers with a due batch, in the order in which they found no room.
        self.queue: dict[PoolCapacity, None] = {}
        self._run_again = 0
        self._change: anyio.Event | None = None  # set only while a task waits for it
        # Why there is no replica and none is expected soon.
        self.failure: BaseException | None = None
        self.on_batch: Callable[[Member], None] | None = None  # called after each batch

    def add(self, replica: Replica, slots: float, most: int | None = None) -> Member:
        member = self._members[replica] = Member(replica, slots, most)
        self.failure = None
        self.changed()
        return member

    def withdraw(self, member: Member) -> None:
        """Stops assigning work to a replica; its batches go on. Idempotent."""
        if self._members.pop(member.replica, None) is not None:
            for notify in tuple(member.on_withdrawn):
                notify()
            self.changed()

    def resize(self, slots: float, most: int | None) -> None:
        for member in self._members.values():
            member.slots, member.most = slots, most
        self.changed()

    def fail(self, failure: BaseException | None) -> None:
        """Records why no replica is expected soon; None if one may start after all."""
        self.failure = failure
        self.changed()

    def choose(self, size: int) -> Member | None:
        """Chooses a replica with room for a batch of a size, if any; withdraws dead ones."""
        while True:
            best: Member | None = None
            for member in self._members.values():
                if member.room(size) and (best is None or member.batches < best.batches):
                    best = member
                    if not best.batches:
                        break
            if best is None or best.replica.takes_work:
                return best
            self.withdraw(best)

    async def wait(self, size: int) -> Member:
        """Waits for a replica with room for a batch of a size."""
        self._run_again += 1
        if self._run_again == 1:
            self.changed()
        try:
            while (member := self.choose(size)) is None:
                self.check_available()
                self._change = self._change or anyio.Event()
                await self._change.wait()
            return member
        finally:
            self._run_again -= 1
            if not self._run_again:
                self.changed()

    def check_available(self) -> None:
        """Raises `BackendUnavailable` if there is no replica, and none is expected soon."""
        if self.failure is not None:
            self._on_wait()
            raise BackendUnavailable(
                f"the backend {self._name} has no replica: {self.failure}"
            ) from self.failure

    def begin(self, member: Member, requests: int) -> None:
        """Counts a batch as running; no ``await`` may come after `choose` or `wait`."""
        member.batches += 1
        member.ongoing += requests
        member.total += 1
        if len(self._members) > 1 and self._members.pop(member.replica, None) is not None:
            self._members[member.replica] = member  # most recently used: last
        self.changed()

    def end(self, member: Member, requests: int) -> None:
        member.batches -= 1
        member.ongoing -= requests
        if not member.batches and member.idle is not None:
            member.idle.set()
            member.idle = None
        if self.on_batch is not None:
            self.on_batch(member)
        self.changed()

    def enter(self, capacity: PoolCapacity) -> None:
        self._capacities.append(capacity)
        self.changed()

    def leave(self, capacity: PoolCapacity) -> None:
        self._capacities.remove(capacity)
        capacity.rest()

    def enqueue(self, capacity: PoolCapacity) -> None:
        """Adds a batcher to the queue for room; one that is queued keeps its place."""
        if not self.queue:
            for other in self._capacities:
                if other is not capacity:
                    other.free = 0
        self.queue.setdefault(capacity)
        self._on_wait()

    def changed(self) -> None:
        """Computes the free capacity of each batcher, and notifies all waiting tasks."""
        # If the backend has failed and has no replica, batches are accepted and fail at once, so
        # that their callers learn why. Batches that run again go first, then batchers in the order
        # in which they began to wait. Otherwise a batcher with small batches would take all the
        # room that becomes free, and one with large batches would starve.
        if self._change is not None:
            self._change.set()
            self._change = None
        for capacity in tuple(self._capacities):
            free: float = 0
            if self.failure is not None and not self._members:
                free = 1
            elif not self._run_again and (not self.queue or next(iter(self.queue)) is capacity):
                for member in self._members.values():
                    free += member.room(capacity.size)
            capacity.free = free
            capacity.on_change()


class PoolCapacity:
    """The pool as the `Capacity` of one batcher."""

    def __init__(self, pool: Pool, size: int) -> None:
        self._pool = pool
        self.size = size  # of its largest batches; changes apply from the pool's next change
        self.free: float = 0  # further batches that the replicas can take; 0 before `subscribe`
        self.on_change: Callable[[], None] = lambda: None

    @property
    def limiter(self) -> Limiter:
        return self._pool.limiter

    def is_full(self) -> bool:
        if self.free:
            self._pool.choose(self.size)  # replicas that have died leave the pool
        if not self.free:
            self._pool.enqueue(self)
            return True
        self.rest()
        return False

    def rest(self) -> None:
        if self in self._pool.queue:
            del self._pool.queue[self]
            self._pool.changed()

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        self.on_change = on_change
        self._pool.enter(self)
        return partial(self._pool.leave, self)
