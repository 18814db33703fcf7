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
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from shoal.core.queue import NOTHING, cost_of
from shoal.core.request import DispatchReason, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.batching.running.slots import Slots
    from shoal.core.counters import Occupancy
    from shoal.core.queue import Amount
    from shoal.core.request import Batch, Request


def take_within(slots: Slots[Any], room: Amount) -> tuple[list[Request], DispatchReason | None]:
    """Takes requests that fit and have waiting callers from the queue, in order."""
    # Also returns why some of them can't wait: FLUSH, RETRY, or None.
    former = slots.former
    slots.intake.expire_due()
    there: list[Request] = []
    because: DispatchReason | None = None
    while not room.is_used_up and (requests := former.take_within(room)):
        because = because or former.pressures.taken_because
        departed = slots.parking.departed(requests)
        for request in departed:
            request.state = State.CANCELLED
        slots.counters.cancelled += len(departed)
        present = [request for request in requests if request.state is State.QUEUED]
        there += present
        if not departed:
            break
        former.reform()  # their room in the queue is free
        room = room.minus(len(present), cost_of(present))
    return there, because


@dataclass(eq=False)
class Joining:
    batch: Batch
    _slots: Slots[Any]
    _occupancy: Occupancy
    # Why an open batch is closed as soon as it has taken the queued requests; None if it is not.
    _closes_for: DispatchReason | None

    def __post_init__(self) -> None:
        batch = self.batch
        # Rings when requests may have joined or ended, or the handler should look again.
        self.bell = self._slots.bell
        self.joined: list[Request] = list(batch.members)
        self._takes_no_more = False
        # The total cost of the requests that use room in the batch.
        self._cost = cost_of(batch.members)
        self.outcomes: Counter[State] = Counter()
        self._note_joined(batch.members)

    @property
    def is_closed(self) -> bool:
        """Whether no more requests will join."""
        return self._takes_no_more

    @property
    def room(self) -> Amount:
        if self.is_closed:
            return NOTHING
        batch = self.batch
        # Those that have ended use room as well, unless others may take their places.
        inside = batch.active if batch.is_continuous else batch.size
        return self._slots.former.limit.minus(inside, self._cost)

    def pull(self) -> None:
        """Adds requests that join when the handler asks, and drops those that have ended."""
        self.batch.forget_ended()

    async def wait(self) -> bool:
        """Waits until a request may have joined; returns False if no more will join."""
        if self.is_closed:
            return False
        await self.bell.change()
        return True

    def stepped(self, *active: int) -> None:
        """Called when the handler begins steps, with how many requests are active in each."""
        if self.batch.is_continuous and any(active):  # others are counted as a whole
            self._occupancy.steps.gather([number for number in active if number])

    def ended(self, request: Request) -> None:
        self.outcomes[request.state] += 1
        now = self._slots.parking.now()
        self._occupancy.note(now)
        has_failed = request.state is State.FAILED
        observers = self._slots.counters.observers
        if observers.all or (has_failed and observers.of_failures):
            name, batch = self._slots.intake.name, self.batch
            observers.notify(
                lambda each: each.request_ended(name, batch, request, now), has_failed=has_failed
            )
        self._slots.capacity_changed()

    async def pause(self) -> None:
        """Executes a checkpoint between two steps, so that callers can take free places."""
        # Callers that were just answered may call again.
        await anyio.lowlevel.checkpoint()

    def end(self) -> None:
        """Takes no more requests, because the handler has ended or run out of time."""
        self._takes_no_more = True

    def leave(self) -> None:
        """Takes no more requests, and ends when the present ones have ended."""
        self._takes_no_more = True
        self._slots.capacity_changed()

    def _take(self) -> list[Request]:
        batch, slots = self.batch, self._slots
        taken, because = take_within(slots, self.room)
        if taken:
            self._closes_for = self._closes_for or because
            batch.admit(taken)
            self.joined += taken
            self._cost += cost_of(taken)
            now = self._note_joined(taken)
            slots.counters.wait_s.gather([now - request.arrived_at for request in taken])
            if (observers := slots.counters.observers).all:
                name = slots.intake.name
                observers.notify(lambda each: each.requests_joined(name, batch, taken, now))
            slots.capacity_changed()
        return taken

    def _note_joined(self, requests: Sequence[Request]) -> float:
        now = self._slots.parking.now()
        self._occupancy.joined += len(requests)
        self._occupancy.note(now)
        return now


class OpenJoining(Joining):
    def __post_init__(self) -> None:
        super().__post_init__()
        self._first_at = self.batch.members[0].arrived_at
        self._newest_at = max(request.arrived_at for request in self.batch.members)

    async def feed(self) -> None:
        """Adds requests to the batch until it is closed, and passes on the turn at the queue."""
        try:
            while not self.is_closed:
                for request in self._take():
                    self._newest_at = max(self._newest_at, request.arrived_at)
                until, reason = self._closing()
                if until <= self._slots.parking.now():
                    self.batch.reason = reason
                    break
                await self.bell.wait(until)
        finally:
            # The batch is complete, its handler has ended or takes no more, or its time is up.
            self.end()
            self._slots.pass_turn()
            self._slots.intake.adopt()
        self._slots.capacity_changed()
        if self.outcomes[State.CANCELLED] and self.batch.on_left is not None:
            self.batch.on_left(None)  # callers left while others could still have joined

    def flush(self) -> None:
        """Closes the batch as soon as it has taken the queued requests."""
        self._closes_for = DispatchReason.FLUSH

    def _closing(self) -> tuple[float, DispatchReason]:
        former = self._slots.former
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
    # How many requests have ended since the handler last asked.
    _ended = 0

    @property
    def is_closed(self) -> bool:
        return self._takes_no_more or self._slots.gets_no_more(self.batch)

    def ended(self, request: Request) -> None:
        self._ended += 1
        self._cost = self._cost - request.cost if self.batch.active else 0
        super().ended(request)

    def pull(self) -> None:
        self._ended = 0
        super().pull()
        self._take()

    async def pause(self) -> None:
        await super().pause()
        if self._ended > self._slots.former.live and not self.room.is_used_up:
            # An answered caller runs in the next pass of the scheduler. One that leaves a stream
            # goes through a checkpoint first, and calls again in the pass after that.
            await self._slots.parking.one_pass()
