"""The pool: the replicas of a backend that can take work, and the choice among them.

A batch is dispatched only when a replica can take it: through `PoolCapacity`, the pool is the
batchers' `Capacity`. `Members` chooses the replica. Replicas have no queues of their own, so no
request waits for a busy replica while another one is idle, unless it prefers the busy one.

A batcher reads its free capacity several times per batch, so the pool computes it at each change.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import anyio

from shoal.core.forming.limiter import Limiter
from shoal.core.replicas.members import Member, Members
from shoal.errors import BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.core.replicas.members import LoadedModel
    from shoal.replicas.contract import Replica


PoolMember: TypeAlias = "Member[Replica]"


class Pool:
    def __init__(self, name: str, on_wait: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._on_wait = on_wait  # called when a due batch finds no room
        self.limiter = Limiter()
        self.members: Members[Replica] = Members()
        self._capacities: list[PoolCapacity] = []
        # The batchers with a due batch, in the order in which they found no room.
        self.queue: dict[PoolCapacity, None] = {}
        self._running = 0  # batches, also of members that were withdrawn
        self._change: anyio.Event | None = None  # set only while a task waits for it
        # Why there is no replica and none is expected soon.
        self.failure: BaseException | None = None
        self.on_batch: Callable[[PoolMember], None] | None = None  # called after each batch

    def add(
        self, replica: Replica, max_batches: float, max_requests: int | None = None
    ) -> PoolMember:
        member = Member(replica.tag, replica, max_batches, max_requests)
        self.members.add(member)
        self.failure = None
        self.changed()
        return member

    def withdraw(self, member: PoolMember) -> None:
        """Stops assigning work to a replica; its batches go on. Idempotent."""
        if self.members.discard(member):
            for notify in tuple(member.on_withdrawn):
                notify()
            self.changed()

    def resize(self, max_batches: float, max_requests: int | None) -> None:
        for member in self.members:
            member.max_batches, member.max_requests = max_batches, max_requests
        self.changed()

    def fail(self, failure: BaseException | None) -> None:
        """Records why no replica is expected soon; None if one may start after all."""
        self.failure = failure
        self.changed()

    def choose(
        self, size: int, home: PoolMember | None = None, model: str | None = None
    ) -> PoolMember | None:
        """Chooses a replica with room for a batch of a size, if any; withdraws dead ones."""
        while True:
            best = self.members.choose(size, home, model)
            if best is None or best.replica.takes_work:
                return best
            self.withdraw(best)

    async def wait(self, size: int) -> PoolMember:
        """Waits for a replica, where the one that a batch was formed for has died, for example."""
        while (member := self.choose(size)) is None:
            self.check_available()
            await self._wait_change()
        return member

    async def wait_idle(self, member: PoolMember) -> None:
        while member.batches:
            await self._wait_change()

    async def _wait_change(self) -> None:
        self._change = self._change or anyio.Event()
        await self._change.wait()

    def check_available(self) -> None:
        """Raises `BackendUnavailable` if there is no replica, and none is expected soon."""
        if self.failure is not None:
            self._on_wait()
            raise BackendUnavailable(
                f"the backend {self._name} has no replica: {self.failure}"
            ) from self.failure

    def begin(self, member: PoolMember, requests: int) -> None:
        """Counts a batch as running; no ``await`` may come after `choose` or `wait`."""
        self.members.begin(member, requests)
        self._running += 1
        self.changed()

    def end(self, member: PoolMember, requests: int, used: LoadedModel | None = None) -> None:
        self.members.end(member, requests, used)
        self._running -= 1
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
        # that their callers learn why. Batchers take turns in the order in which a slot of theirs
        # began to wait. Otherwise a batcher with small batches would take all the room that becomes
        # free, and one with large batches would starve.
        if self._change is not None:
            self._change.set()
            self._change = None
        # With several batchers, each has one slot more than fit. While the others are busy, it
        # notices that the next batch is due, and enqueues the batcher.
        spare = len(self._capacities) > 1
        for capacity in tuple(self._capacities):
            room = self.members.room(capacity.size)
            capacity.slots = self._running + room + spare
            if self.failure is not None and not self.members:
                room = 1
            elif self.queue and next(iter(self.queue)) is not capacity:
                room = 0
            capacity.free = room
            capacity.on_change()


class PoolCapacity:
    def __init__(self, pool: Pool, size: int) -> None:
        self._pool = pool
        self.members = pool.members
        self.limiter = pool.limiter
        self.size = size  # of its largest batches; changes apply from the pool's next change
        # Of the replicas, now: the most batches at once, and how many more; 0 before `subscribe`.
        self.slots = self.free = 0.0
        self.on_change: Callable[[], None] = lambda: None

    def is_full(self) -> bool:
        for dead in [one for one in self.members if not one.replica.takes_work]:
            self._pool.withdraw(dead)
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
