"""How requests get from the line into a batch whose handler runs already.

`fill="open"`: the batch has the line to itself until it is closed: by being full, by the first
request that does not fit, by its wait, by a flush or a drain. A task of the slot puts requests into
it as they come, whether the handler looks at them or not, so the wait ends on time whatever the
handler does. (TensorFlow's streaming scheduler does the same with a thread that closes batches.)

`fill="continuous"`: the batch takes requests when its handler asks, between two steps, as many as
have ended meanwhile. It takes the line to itself only while it has nothing else to do.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

import anyio

from shoal.core.batch import CutReason
from shoal.core.request import State

if TYPE_CHECKING:
    from shoal.core.batch import Batch
    from shoal.core.forming import Former
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

    async def take_turn(self) -> None:
        """Waits until no other slot is at the line."""
        ...

    def pass_turn(self) -> None:
        """Lets the next slot come to the line."""
        ...

    async def listen(self, until: float) -> None:
        """Waits for the bell, or for a time on the loop's clock; with the turn at the line."""
        ...

    def now(self) -> float:
        """Returns the time on the loop's clock, in seconds."""
        ...

    def tell_room(self) -> None:
        """Says that a batch has more room, or less."""
        ...

    def is_over(self) -> bool:
        """Says whether no request will come to this slot any more."""
        ...


class Joining(ABC):
    """How one batch takes requests in.

    Attributes:
        batch: The batch.
        joined: Those of its requests that the handler has not been told of.
    """

    def __init__(self, batch: Batch, gateway: Gateway) -> None:
        self.batch = batch
        self.joined: list[Request] = list(batch.requests)
        self._gateway = gateway
        self._has_turn = True
        self._changed: anyio.Event | None = None

    @property
    def room(self) -> float:
        """How much more the batch takes now."""
        return self._most - sum(request.cost for request in self._counted())

    @property
    def _most(self) -> int:
        return self._gateway.former.options.max_batch_size

    @property
    @abstractmethod
    def is_abandoned(self) -> bool:
        """Whether the handler has nobody left to work for."""

    @abstractmethod
    def _counted(self) -> list[Request]:
        """Returns the requests that take up room."""

    @abstractmethod
    def pull(self) -> None:
        """Takes those in that may join because the handler asks."""

    @abstractmethod
    async def wait(self) -> bool:
        """Waits until a request may have joined; returns False when none will any more."""

    def changed(self) -> None:
        """Notes that the handler may find something new, or has a place free."""
        self._gateway.tell_room()
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def leave_line(self) -> None:
        """Lets the next slot come to the line, if the batch has it to itself."""
        if self._has_turn:
            self._has_turn = False
            self._gateway.pass_turn()

    async def _wait_for_change(self) -> None:
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    def _take(self) -> list[Request]:
        taken = self._gateway.taken_within(self.room)
        if taken:
            self.batch.admit(taken)
            self.joined += taken
            self._gateway.tell_room()
        return taken


class OpenJoining(Joining):
    """For ``fill="open"``."""

    def __init__(self, batch: Batch, gateway: Gateway) -> None:
        super().__init__(batch, gateway)
        self._is_flushed = False

    @property
    def room(self) -> float:
        return 0 if self._is_closed else super().room

    @property
    def _is_closed(self) -> bool:
        return self.batch.reason is not CutReason.OPEN

    def _counted(self) -> list[Request]:
        return self.batch.requests

    async def feed(self) -> None:
        """Puts requests into the batch until it is closed; with the turn at the line."""
        gateway = self._gateway
        while True:
            if self._take():
                self.changed()
            until, reason = self._closing()
            if until <= gateway.now():
                break
            await gateway.listen(until)
        self.batch.reason = reason
        self.leave_line()
        self.changed()

    @property
    def is_abandoned(self) -> bool:
        return self._is_closed and self.batch.active == 0

    def flush(self) -> None:
        """Closes the batch as soon as it has taken what is in line."""
        self._is_flushed = True

    def pull(self) -> None:
        """Nothing: requests are put in as they come."""

    async def wait(self) -> bool:
        if self._is_closed:
            return False
        await self._wait_for_change()
        return True

    def _closing(self) -> tuple[float, CutReason]:
        """Returns when the batch must be closed, and why."""
        former = self._gateway.former
        if former.live or self.room <= 0:
            return -math.inf, CutReason.FULL
        if self._is_flushed:
            return -math.inf, CutReason.FLUSH
        if former.draining:
            return -math.inf, CutReason.DRAIN
        options = former.options
        wait_s, idle_s = options.batch_wait_timeout_s, options.idle_timeout_s
        if wait_s is None or (wait_s == 0 and idle_s is not None):
            wait_s = math.inf
        requests = self.batch.requests
        due = requests[0].arrived_at + wait_s
        if idle_s is not None and requests[-1].arrived_at + idle_s < due:
            return requests[-1].arrived_at + idle_s, CutReason.IDLE
        return due, CutReason.TIMER


class ContinuousJoining(Joining):
    """For ``fill="continuous"``."""

    @property
    def is_abandoned(self) -> bool:
        return False  # others will come, and starting the handler again has its price

    def _counted(self) -> list[Request]:
        # What has ended is dropped here, or a batch that never closes would keep it all.
        requests = self.batch.requests
        requests[:] = [request for request in requests if request.state is State.RUNNING]
        return requests

    def pull(self) -> None:
        self._take()

    async def wait(self) -> bool:
        gateway = self._gateway
        while self.room <= 0:
            await self._wait_for_change()
        await gateway.take_turn()
        try:
            while not gateway.former.live:
                if gateway.is_over():
                    return False
                await gateway.listen(math.inf)
            if self._take() or self.batch.active == 0:
                return True
        finally:
            gateway.pass_turn()
        # The first in line does not fit beside those that are active.
        await self._wait_for_change()
        return True
