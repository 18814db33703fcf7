"""Moves requests from the queue into a batch whose handler is already running.

`fill="open"`: only this batch takes from the queue until it is closed. It is closed when it is
full, by the first request that does not fit, by its wait timeout, by a flush or a drain, by a
retried request, or by `OpenBatch.leave`. A task of the worker slot adds requests as they arrive,
whether the handler takes them or not, so the wait ends on time whatever the handler does.
(TensorFlow's streaming scheduler does the same with a thread that closes batches.)

`fill="continuous"`: the batch takes requests when its handler asks for them between two steps, as
many as have ended since. It has no exclusive use of the queue; an idle slot lets it go first.
A caller that calls again as soon as it is answered gets its place again in the next step, because
the batch looks at the queue only after the callers that were just answered have run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio.lowlevel

from shoal.core.queue import NOTHING, cost_of
from shoal.core.request import DispatchReason, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batching.calls.intake import Intake
    from shoal.core.counters import Counters, Occupancy
    from shoal.core.queue import Amount
    from shoal.core.request import Batch, Request
    from shoal.loops.parking import Bell


class OpenQueue:
    """Takes requests from the queue for batches whose handlers are running."""

    def __init__(
        self, intake: Intake, bell: Bell, counters: Counters, occupancy: Occupancy
    ) -> None:
        self.former = intake.former
        self.parking = intake.parking
        self.bell = bell
        self.occupancy = occupancy
        self._intake = intake
        self._counters = counters
        # Why some of the requests that were taken last can't wait: FLUSH, RETRY, or None.
        self.taken_because: DispatchReason | None = None

    def joined(self, batch: Batch, requests: list[Request]) -> None:
        now = self.parking.now()
        self.occupancy.joined += len(requests)
        self.occupancy.note(now)
        self._counters.wait_s.gather([now - request.arrived_at for request in requests])
        if (observers := self._counters.observers).all:
            name = self._intake.name
            observers.notify(lambda each: each.requests_joined(name, batch, requests, now))

    def ended(self, batch: Batch, request: Request) -> None:
        now = self.parking.now()
        self.occupancy.note(now)
        has_failed = request.state is State.FAILED
        observers = self._counters.observers
        if observers.all or (has_failed and observers.of_failures):
            name = self._intake.name
            observers.notify(
                lambda each: each.request_ended(name, batch, request, now), has_failed=has_failed
            )

    def taken_within(self, room: Amount) -> list[Request]:
        """Takes requests that fit and have waiting callers from the queue, in order."""
        self._intake.deadlines.expire_all()
        there: list[Request] = []
        self.taken_because = None
        while not room.is_used_up and (requests := self.former.take_within(room)):
            self.taken_because = self.taken_because or self.former.pressures.taken_because
            departed = self.parking.departed(requests)
            for request in departed:
                request.state = State.CANCELLED
            self._counters.cancelled += len(departed)
            present = [request for request in requests if request.state is State.QUEUED]
            there += present
            if not departed:
                break
            self.former.reform()  # their room in the queue is free
            room = room.minus(len(present), cost_of(present))
        return there


@dataclass(eq=False)
class Joining(ABC):
    batch: Batch
    _queue: OpenQueue
    # Reports that room is free, or that the handler should look again.
    changed: Callable[[], None]
    _pass_turn: Callable[[], None]
    _gets_no_more: Callable[[Batch], bool]

    def __post_init__(self) -> None:
        batch = self.batch
        self.joined: list[Request] = list(batch.members)
        self.has_ended = self.is_leaving = False
        self._has_turn = True
        # The total cost of the requests that use room in the batch.
        self._cost = cost_of(batch.members)
        self.outcomes: Counter[State] = Counter()

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Whether no more requests will join."""

    @property
    @abstractmethod
    def requests_inside(self) -> int:
        """How many requests use room in the batch."""

    @property
    def room(self) -> Amount:
        if self.is_closed:
            return NOTHING
        return self._queue.former.limit.minus(self.requests_inside, self._cost)

    @property
    def is_abandoned(self) -> bool:
        """Whether the batch has no callers and will get none."""
        return False

    def pull(self) -> None:
        """Adds requests that join when the handler asks, and drops those that have ended."""
        self.batch.forget_ended()

    async def wait(self) -> bool:
        """Waits until a request may have joined; returns False if no more will join."""
        if self.is_closed:
            return False
        await self.change()
        return True

    async def change(self) -> None:
        """Waits until requests may have joined or ended."""
        await self._queue.bell.change()

    @property
    def rings(self) -> int:
        return self._queue.bell.rings

    def look_again(self) -> None:
        self._queue.bell.ring()

    @abstractmethod
    def stepped(self, *active: int) -> None:
        """Called when the handler begins steps, with how many requests are active in each."""

    def ended(self, request: Request) -> None:
        self.outcomes[request.state] += 1
        self._queue.ended(self.batch, request)

    async def pause(self) -> None:
        """Executes a checkpoint between two steps, so that callers can take free places."""
        # Callers that were just answered may call again.
        await anyio.lowlevel.checkpoint()

    def end(self) -> None:
        """Takes no more requests, because the handler has ended or run out of time."""
        self.has_ended = True

    def leave(self) -> None:
        """Takes no more requests, and ends when the present ones have ended."""
        self.is_leaving = True
        self.changed()

    def leave_queue(self) -> None:
        """Passes the turn at the queue to the next slot, if the batch has it."""
        if self._has_turn:
            self._has_turn = False
            self._pass_turn()

    def _take(self) -> list[Request]:
        taken = self._queue.taken_within(self.room)
        if taken:
            self.batch.admit(taken)
            self._queue.joined(self.batch, taken)
            self.joined += taken
            self._cost += cost_of(taken)
            self.changed()
        return taken


class OpenJoining(Joining):
    def __post_init__(self) -> None:
        super().__post_init__()
        # Why the batch is closed as soon as it has taken the queued requests; None if it is not.
        self._closes_for: DispatchReason | None = self._queue.taken_because
        self._has_lost = False
        self._first_at = self.batch.members[0].arrived_at
        self._newest_at = max(request.arrived_at for request in self.batch.members)

    @property
    def is_closed(self) -> bool:
        has_reason = self.batch.reason is not DispatchReason.OPEN
        return self.has_ended or self.is_leaving or has_reason

    @property
    def requests_inside(self) -> int:
        return self.batch.size

    @property
    def is_abandoned(self) -> bool:
        return self.is_closed and self.batch.active == 0

    def ended(self, request: Request) -> None:
        super().ended(request)
        if request.state is State.CANCELLED:
            self._has_lost = True
        self.changed()

    async def feed(self) -> None:
        """Adds requests to the batch until it is closed; needs the turn at the queue."""
        queue = self._queue
        try:
            while not self.is_closed:
                for request in self._take():
                    self._newest_at = max(self._newest_at, request.arrived_at)
                    self._closes_for = self._closes_for or queue.taken_because
                until, reason = self._closing()
                if until <= queue.parking.now():
                    self.batch.reason = reason
                    break
                await queue.bell.wait(until)
        finally:
            # The handler has ended or takes no more, or its time is up.
            if self.batch.reason is DispatchReason.OPEN:
                self.has_ended = True
            self.leave_queue()
        self.changed()
        if self._has_lost and self.batch.on_left is not None:
            self.batch.on_left(None)  # callers left while others could still have joined

    def flush(self) -> None:
        """Closes the batch as soon as it has taken the queued requests."""
        self._closes_for = DispatchReason.FLUSH

    def stepped(self, *active: int) -> None:
        pass  # such a batch is counted as a whole

    def _closing(self) -> tuple[float, DispatchReason]:
        former = self._queue.former
        if former.live or self.room.is_used_up:
            return -math.inf, DispatchReason.FULL
        if self._closes_for is not None:
            return -math.inf, self._closes_for
        if former.pressures.draining:
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
    def __post_init__(self) -> None:
        super().__post_init__()
        # How many requests have ended since the handler last asked.
        self._ended = 0

    @property
    def is_closed(self) -> bool:
        return self.has_ended or self.is_leaving or self._gets_no_more(self.batch)

    @property
    def requests_inside(self) -> int:
        return self.batch.active

    # It is never abandoned: others may join, and restarting the handler is expensive.

    def ended(self, request: Request) -> None:
        super().ended(request)
        self._ended += 1
        self._cost = self._cost - request.cost if self.batch.active else 0
        self.changed()

    def pull(self) -> None:
        self._ended = 0
        super().pull()
        self._take()

    def stepped(self, *active: int) -> None:
        if any(active):
            self._queue.occupancy.steps.gather([number for number in active if number])

    async def pause(self) -> None:
        await super().pause()
        if self._ended > self._queue.former.live and not self.room.is_used_up:
            # An answered caller runs in the next pass of the scheduler. One that leaves a stream
            # goes through a checkpoint first, and calls again in the pass after that.
            await self._queue.parking.one_pass()
