"""How requests get from the line into a batch whose handler runs already.

`fill="open"`: the batch has the line to itself until it is closed: by being full, by the first
request that does not fit, by its wait, by a flush or a drain. A task of the slot puts requests into
it as they come, whether the handler looks at them or not, so the wait ends on time whatever the
handler does. (TensorFlow's streaming scheduler does the same with a thread that closes batches.)

`fill="continuous"`: the batch takes requests when its handler asks, between two steps, as many as
have ended meanwhile. It never has the line to itself; an idle slot lets it go first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from shoal.core.batch import DispatchReason
from shoal.core.request import State

if TYPE_CHECKING:
    from shoal.core.batch import Batch
    from shoal.core.forming.former import Former
    from shoal.core.request import Request


class Gateway(Protocol):
    """What a batch needs of the slots, to take requests from the line."""

    @property
    def former(self) -> Former:
        """The line."""
        ...

    def taken_within(self, room: float) -> list[Request]:
        """Takes those from the line that fit, in order."""
        ...

    def pass_turn(self) -> None:
        """Lets the next slot come to the line."""
        ...

    async def listen(self, until: float) -> None:
        """Waits for the line to change, or for a time on the loop's clock; with the turn."""
        ...

    async def queue_changes(self) -> None:
        """Waits for the line to change, without the turn."""
        ...

    def now(self) -> float:
        """Returns the time on the loop's clock, in seconds."""
        ...

    def tell_room(self) -> None:
        """Says that a batch has more room, or less, or something new for its handler."""
        ...

    def takes_no_more(self, batch: Batch) -> bool:
        """Says whether no request will come to a batch any more."""
        ...


class Joining(ABC):
    """How one batch takes requests in.

    Attributes:
        batch: The batch.
        joined: Those of its requests that the handler has not been told of.
        has_ended: Whether the handler has ended, and takes nobody any more.
        is_leaving: Whether it is to end once those that it has have ended.
    """

    def __init__(self, batch: Batch, gateway: Gateway) -> None:
        self.batch = batch
        self.joined: list[Request] = list(batch.members)
        self.has_ended = self.is_leaving = False
        self._gateway = gateway
        self._has_turn = True
        # What those sum up to that take up room.
        self._size = sum([request.cost for request in batch.members])

    @property
    @abstractmethod
    def room(self) -> float:
        """How much more the batch takes now."""

    @property
    @abstractmethod
    def is_abandoned(self) -> bool:
        """Whether the handler has nobody left to work for."""

    @abstractmethod
    def pull(self) -> None:
        """Takes those in that may join because the handler asks, and drops those that have ended.

        Else a batch that is open for long, or for ever, would keep all that it had.
        """

    @abstractmethod
    async def wait(self) -> bool:
        """Waits until a request may have joined; returns False when none will any more."""

    @abstractmethod
    def ended(self, request: Request) -> None:
        """Notes that one of the batch's requests has ended."""

    def changed(self) -> None:
        """Notes that a place is free, or that the handler may find something new."""
        self._gateway.tell_room()

    def leave_queue(self) -> None:
        """Lets the next slot come to the line, if the batch has it to itself."""
        if self._has_turn:
            self._has_turn = False
            self._gateway.pass_turn()

    def _drop_ended(self) -> None:
        members = self.batch.members
        if len(members) > self.batch.active:
            members[:] = [request for request in members if request.state is State.RUNNING]

    def _room_left(self) -> float:
        return self._gateway.former.options.max_batch_size - self._size

    def _take(self) -> list[Request]:
        taken = self._gateway.taken_within(self.room)
        if taken:
            self.batch.admit(taken)
            self.joined += taken
            self._size += sum([request.cost for request in taken])
            self.changed()
        return taken


class OpenJoining(Joining):
    """For ``fill="open"``."""

    def __init__(self, batch: Batch, gateway: Gateway) -> None:
        super().__init__(batch, gateway)
        self._is_flushed = gateway.former.took_flushed
        self._has_lost = False
        self._first_at = batch.members[0].arrived_at
        self._newest_at = max(request.arrived_at for request in batch.members)

    @property
    def room(self) -> float:
        return 0 if self.is_closed else self._room_left()

    @property
    def is_closed(self) -> bool:
        """Whether nobody joins any more."""
        return self.has_ended or self.batch.reason is not DispatchReason.OPEN

    @property
    def is_abandoned(self) -> bool:
        return self.is_closed and self.batch.active == 0

    def ended(self, request: Request) -> None:
        if request.state is State.CANCELLED:
            self._has_lost = True
        self.changed()

    async def feed(self) -> None:
        """Puts requests into the batch until it is closed; with the turn at the line."""
        gateway = self._gateway
        try:
            while not self.has_ended:
                for request in self._take():
                    self._newest_at = max(self._newest_at, request.arrived_at)
                    self._is_flushed = self._is_flushed or gateway.former.took_flushed
                until, reason = self._closing()
                if until <= gateway.now():
                    self.batch.reason = reason
                    break
                await gateway.listen(until)
        finally:
            if self.batch.reason is DispatchReason.OPEN:  # the handler has ended, or its time is up
                self.has_ended = True
            self.leave_queue()
        self.changed()
        if self._has_lost and self.batch.on_left is not None:
            self.batch.on_left(None)  # they left when others could have come

    def flush(self) -> None:
        """Closes the batch as soon as it has taken what is in line."""
        self._is_flushed = True

    def pull(self) -> None:
        self._drop_ended()  # requests are put in as they come

    async def wait(self) -> bool:
        if self.is_closed:
            return False
        await self._gateway.queue_changes()
        return True

    def _closing(self) -> tuple[float, DispatchReason]:
        """Returns when the batch must be closed, and why."""
        former = self._gateway.former
        if former.live or self.room <= 0:
            return -math.inf, DispatchReason.FULL
        if self._is_flushed:
            return -math.inf, DispatchReason.FLUSH
        if former.draining:
            return -math.inf, DispatchReason.DRAIN
        options = former.options
        wait_s, idle_s = options.batch_wait_timeout_s, options.idle_timeout_s
        if wait_s is None or (wait_s == 0 and idle_s is not None):
            wait_s = math.inf
        due = self._first_at + wait_s
        if idle_s is not None and self._newest_at + idle_s < due:
            return self._newest_at + idle_s, DispatchReason.IDLE
        return due, DispatchReason.TIMER


class ContinuousJoining(Joining):
    """For ``fill="continuous"``."""

    @property
    def room(self) -> float:
        if self._takes_no_more():
            return 0
        return self._room_left()

    @property
    def is_abandoned(self) -> bool:
        return False  # others will come, and starting the handler again has its price

    def ended(self, request: Request) -> None:
        self._size = self._size - request.cost if self.batch.active else 0
        self.changed()

    def pull(self) -> None:
        self._drop_ended()
        self._take()

    def _takes_no_more(self) -> bool:
        is_over = self.has_ended or self.is_leaving
        return is_over or self._gateway.takes_no_more(self.batch)

    async def wait(self) -> bool:
        if self._takes_no_more():
            return False
        await self._gateway.queue_changes()
        return True
