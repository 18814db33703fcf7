"""The queue, as batches that take requests while their handler runs see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batching.calls.intake import Intake
    from shoal.batching.loops.bell import Bell
    from shoal.batching.loops.parking import Parking
    from shoal.batching.running.turn import Turn
    from shoal.core.batch import Batch
    from shoal.core.counters import Counters
    from shoal.core.request import Request


class OpenQueue:
    """Takes requests from the queue, and waits for it to change.

    Args:
        intake: The callers' side of the queue.
        turn: The turn at the queue.
        bell: Rings when the queue has changed.
        parking: The event loop's way to wait.
        counters: The counts of how requests ended, and the observers.

    Attributes:
        former: The queue itself.
        now: The event loop's clock.
        change: Waits until the queue changes; needs no turn.
        one_pass: Lets each task that is ready run once; a checkpoint.
    """

    def __init__(
        self, intake: Intake, turn: Turn, bell: Bell, parking: Parking, counters: Counters
    ) -> None:
        self.former = intake.former
        self.now: Callable[[], float] = parking.now
        self.change = bell.change
        self.one_pass = parking.one_pass
        self._intake = intake
        self._turn = turn
        self._bell = bell
        self._parking = parking
        self._counters = counters

    def tell_joined(self, batch: Batch, requests: list[Request]) -> None:
        """Tells the observers that requests have joined a batch."""
        if (observers := self._counters.observers).all:
            name, now = self._intake.name, self.now()
            observers.tell(lambda each: each.requests_joined(name, batch, requests, now))

    def tell_ended(self, batch: Batch, request: Request) -> None:
        """Tells the observers that a request of a batch has ended."""
        has_failed = request.state is State.FAILED
        observers = self._counters.observers
        if observers.all or (has_failed and observers.of_failures):
            name, now = self._intake.name, self.now()
            observers.tell(
                lambda each: each.request_ended(name, batch, request, now), has_failed=has_failed
            )

    def taken_within(self, room: float) -> list[Request]:
        """Takes the requests that fit and whose callers still wait from the queue, in order."""
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
        """Passes the turn at the queue to the next slot."""
        self._turn.pass_on()
        self._intake.adopt()

    async def listen(self, until: float) -> None:
        """Waits until the queue changes, or until a time on the loop's clock; needs the turn."""
        await self._bell.wait(until)
