"""The pool: the replicas of a backend that can take work, and who gets the next batch.

Work is pulled. A batch is cut only when a replica can take it (the pool is the batchers' `Room`, by
way of `PoolRoom`), and goes to the one that has the fewest, among those to the one whose turn is
longest past. So no replica has a line of its own in which work could wait beside an idle neighbour.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from shoal.errors import BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from shoal.replicas.contract import Replica


@dataclass(eq=False)
class Member:
    """A replica in the pool.

    Attributes:
        replica: The replica.
        slots: How many batches it takes at once; infinity for any number.
        most: How many requests it takes at once; None for as many as those have.
        batches: How many it has now.
        ongoing: How many requests these are.
        total: How many batches it has had.
        on_withdrawn: Called when it gets no more work.
    """

    replica: Replica
    slots: float
    most: int | None = None
    batches: int = 0
    ongoing: int = 0
    total: int = 0
    on_withdrawn: list[Callable[[], None]] = field(default_factory=list["Callable[[], None]"])
    _idle: anyio.Event | None = None

    async def wait_idle(self) -> None:
        """Waits until it has no batch."""
        while self.batches:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    def ended(self, requests: int) -> None:
        """Counts a batch out."""
        self.batches -= 1
        self.ongoing -= requests
        if not self.batches and self._idle is not None:
            self._idle.set()
            self._idle = None

    def room(self, size: int) -> float:
        """Returns how many more batches of some size it can take; an idle one takes any."""
        if not self.replica.takes_work:
            return 0  # its supervisor will hear of it
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
        failure: Why there is no replica, nor will be soon; None otherwise.
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
        # The one whose turn is longest past comes first.
        self._members: dict[Replica, Member] = {}
        self._listeners: list[Callable[[], None]] = []
        # Lines with a batch that is due, in the order in which they found no room.
        self._queue: dict[PoolRoom, None] = {}
        self._run_again = 0
        self._change: anyio.Event | None = None  # there is one while somebody waits for it
        self.failure: BaseException | None = None

    def free(self, size: int, room: PoolRoom) -> float:
        """Returns how many more batches of some size it can take from a line.

        While the backend has failed it takes any, which fail at once: their callers are told.
        Batches that run again go first, and lines that had to wait before this one: a line of small
        batches would take each place that comes free from one of large batches.
        """
        if self.failure is not None and not self._members:
            return 1
        if self._run_again or (self._queue and next(iter(self._queue)) is not room):
            return 0
        return sum([member.room(size) for member in self._members.values()])

    def queue(self, room: PoolRoom) -> None:
        """Gives a line a place in the queue; it keeps the one that it has."""
        self._queue.setdefault(room)
        self._on_wait()

    def leave_queue(self, room: PoolRoom) -> None:
        """Takes a line's place in the queue away."""
        if room in self._queue:
            del self._queue[room]
            self._changed()

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Has a function called whenever there is more or less room; gives back what ends that."""
        self._listeners.append(on_change)
        return lambda: self._listeners.remove(on_change)

    def add(self, replica: Replica, slots: float, most: int | None = None) -> Member:
        """Takes in a replica that is ready.

        Args:
            replica: The replica.
            slots: How many batches it takes at once.
            most: How many requests it takes at once; None for as many as those have.
        """
        member = self._members[replica] = Member(replica, slots, most)
        self.failure = None
        self._changed()
        return member

    def withdraw(self, member: Member) -> None:
        """Gives a replica no more work. Idempotent; what it has goes on."""
        if self._members.pop(member.replica, None) is not None:
            for tell in tuple(member.on_withdrawn):
                tell()
            self._changed()

    def resize(self, slots: float, most: int | None) -> None:
        """Changes how much each replica takes at once; arguments as for `add`."""
        for member in self._members.values():
            member.slots, member.most = slots, most
        self._changed()

    def fail(self, failure: BaseException | None) -> None:
        """Says that there will be no replica soon, or that there may be after all."""
        self.failure = failure
        self._changed()

    def take(self, size: int) -> Member | None:
        """Chooses the replica for a batch of some size; None if all have what they can take."""
        best: Member | None = None
        for member in self._members.values():
            if member.room(size) and (best is None or member.batches < best.batches):
                best = member
                if not best.batches:
                    break
        return best

    async def wait(self, size: int) -> Member:
        """Waits until a replica can take a batch of some size, and chooses it.

        Raises:
            BackendUnavailable: There is none, nor will be soon.
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
            BackendUnavailable: There is none, nor will be soon.
        """
        if self.failure is not None:
            self._on_wait()
            raise BackendUnavailable(
                f"the backend {self._name} has no replica: {self.failure}"
            ) from self.failure

    @contextmanager
    def at_work(self, member: Member, requests: int) -> Generator[Replica]:
        """Counts a batch in while it runs.

        Args:
            member: Who runs it; from `take` or `wait`, without a pause in between.
            requests: How many requests it has.
        """
        member.batches += 1
        member.ongoing += requests
        member.total += 1
        if len(self._members) > 1 and self._members.pop(member.replica, None) is not None:
            self._members[member.replica] = member  # its turn is the latest
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
    """The pool as the room of one line.

    Args:
        pool: The pool.
        size: Gives the size of the line's largest batches.
    """

    def __init__(self, pool: Pool, size: Callable[[], int]) -> None:
        self._pool = pool
        self._size = size

    @property
    def free(self) -> float:
        """How many more batches the replicas can take; infinity for any number."""
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
