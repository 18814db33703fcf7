"""The queue, as batches that take requests while their handler runs see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batching.running.slots import SlotParts
    from shoal.core.batch import Batch
    from shoal.core.counters import Occupancy
    from shoal.core.request import Request


class OpenQueue:
    """Takes requests from the queue, and waits for it to change."""

    def __init__(
        self, parts: SlotParts, pass_turn: Callable[[], None], occupancy: Occupancy
    ) -> None:
        self.former = parts.intake.former
        self.now: Callable[[], float] = parts.parking.now
        # Waits until the queue changes; needs no turn.
        self.change = parts.bell.change
        # Lets each task that is ready run once; a checkpoint.
        self.one_pass = parts.parking.one_pass
        self.occupancy = occupancy
        self._intake = parts.intake
        self._pass_turn = pass_turn
        self._bell = parts.bell
        self._parking = parts.parking
        self._counters = parts.counters

    def began(self, batch: Batch) -> None:
        """Counts the requests that a batch begins with."""
        self.occupancy.joined += batch.size
        self.occupancy.note(self.now())

    def joined(self, batch: Batch, requests: list[Request]) -> None:
        """Counts requests that have joined a batch, and notifies the observers."""
        now = self.now()
        self.occupancy.joined += len(requests)
        self.occupancy.note(now)
        self._counters.wait_s.gather([now - request.arrived_at for request in requests])
        if (observers := self._counters.observers).all:
            name = self._intake.name
            observers.tell(lambda each: each.requests_joined(name, batch, requests, now))

    def ended(self, batch: Batch, request: Request) -> None:
        """Counts a request that has ended, and notifies the observers."""
        now = self.now()
        self.occupancy.note(now)
        has_failed = request.state is State.FAILED
        observers = self._counters.observers
        if observers.all or (has_failed and observers.of_failures):
            name = self._intake.name
            observers.tell(
                lambda each: each.request_ended(name, batch, request, now), has_failed=has_failed
            )

    def taken_within(self, room: float) -> list[Request]:
        """Takes requests that fit and have waiting callers from the queue, in order."""
        self._intake.deadlines.expire_all()
        there: list[Request] = []
        while room > 0 and (requests := self.former.take_within(room)):
            departed = self._parking.departed(requests)
            for request in departed:
                request.state = State.CANCELLED
            self._counters.cancelled += len(departed)
            there += [request for request in requests if request.state is State.QUEUED]
            if not departed:
                break
            self.former.reform()  # their room in the queue is free
            room -= sum([request.cost for request in requests if request.state is State.QUEUED])
        return there

    def pass_turn(self) -> None:
        self._pass_turn()
        self._intake.adopt()

    async def listen(self, until: float) -> None:
        """Waits until the queue changes, or until a time on the loop's clock; needs the turn."""
        await self._bell.wait(until)
