"""The worker slots of a batcher whose batches take requests while their handler runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from shoal.batching.open.joining import ContinuousJoining, Joining, OpenJoining
from shoal.batching.open.run import OpenRun
from shoal.batching.running.slots import LEFT_OPEN, Slots, logger
from shoal.core.batch import DispatchReason
from shoal.core.request import State

if TYPE_CHECKING:
    from shoal.batching.loops.parking import Scope
    from shoal.core.batch import Batch
    from shoal.core.forming.former import Former
    from shoal.core.request import Request


class OpenSlots(Slots):
    """Slots that start the handler with the first request, and add others as they arrive."""

    def __init__(self, *args: Any, fill: str) -> None:
        self._open: dict[Batch, Joining] = {}
        super().__init__(*args)
        self._joining_of = OpenJoining if fill == "open" else ContinuousJoining
        self._change: anyio.Event | None = None
        self._former.tell_all()

    @property
    def former(self) -> Former:
        """The queue."""
        return self._former

    def ring(self) -> None:
        """Wakes all tasks that wait for the queue to change."""
        super().ring()
        if self._change is not None:
            self._change.set()
            self._change = None

    def flush(self) -> None:
        """Closes the open batch after it has taken the queued requests."""
        for joining in self._open.values():
            if isinstance(joining, OpenJoining) and not joining.is_closed:
                joining.flush()
        super().flush()

    @property
    def is_gathering(self) -> bool:
        """Whether a batch takes requests until it is full or its wait is over."""
        return any(
            isinstance(joining, OpenJoining) and not joining.is_closed
            for joining in self._open.values()
        )

    def pass_turn(self) -> None:
        """Passes the turn at the queue to the next slot."""
        super().pass_turn()
        if self._intake.adopt is not None:
            self._intake.adopt()

    def now(self) -> float:
        """Returns the time on the loop's clock, in seconds."""
        return self._parking.now()

    def taken_within(self, room: float) -> list[Request]:
        """Takes the requests that fit and whose callers still wait from the queue, in order."""
        self._intake.deadlines.expire_all()
        there: list[Request] = []
        while room > 0 and (requests := self._former.take_within(room)):
            departed = self._parking.departed(requests)
            for request in departed:
                request.state = State.CANCELLED
            self._counters.cancelled += len(departed)
            there += [request for request in requests if request.state is State.QUEUED]
            if not departed:
                break
            self._former.reform()  # their room in the queue is free
            room -= sum([request.cost for request in requests if request.state is State.QUEUED])
        return there

    def takes_no_more(self, batch: Batch) -> bool:
        """Returns whether no more requests will join a batch."""
        former = self._former
        if former.room.closed and not former.live:
            return True
        return self._is_one_too_many() and list(self._open).index(batch) >= self._most

    def tell_room(self) -> None:
        """Updates how much the slots can take at once, and wakes the tasks that wait."""
        self._tell_idle()
        self.ring()

    async def listen(self, until: float) -> None:
        """Waits until the queue changes, or until a time on the loop's clock; needs the turn."""
        await self._listen(None if until == math.inf else until)

    async def queue_changes(self) -> None:
        """Waits until the queue changes; needs no turn."""
        if self._change is None:
            self._change = anyio.Event()
        await self._change.wait()

    async def _serve(self, scope: Scope) -> bool:
        has_run = False
        while not self._are_enough_idle():
            if has_run:
                # The handler may never wait, and other tasks must be able to run.
                await anyio.lowlevel.checkpoint()
            has_run = True
            await self.take_turn()
            batch = None
            try:
                batch = await self._first_batch()
            finally:
                if batch is None:
                    self.pass_turn()
            if batch is None:
                return False
            await self._run_open(batch, scope)
            del batch
            if self._is_used_up(scope):
                return True
        return False

    async def _first_batch(self) -> Batch | None:
        """Waits for the first requests of a batch; returns None when this slot is not needed."""
        former = self._former
        while not self._is_one_too_many():
            if former.live and self._open:
                await self._parking.one_pass()  # a running batch may take them first
            is_due = bool(former.live)
            if self._room is not None and not is_due:
                self._room.rest()
            room = 0 if is_due and self._is_full() else former.options.max_batch_size
            requests = self.taken_within(room)
            if requests:
                return self._begun(requests, DispatchReason.OPEN)
            if former.room.closed and not former.live:
                break
            await self.listen(math.inf)
        return None

    async def _run_open(self, batch: Batch, scope: Scope) -> None:
        joining = self._open[batch] = self._joining_of(batch, self)
        run = self.run
        assert isinstance(run, OpenRun)
        run.opened[batch] = joining
        try:
            if isinstance(joining, OpenJoining):
                await self._run_and_feed(batch, joining, scope)
            else:
                joining.leave_queue()
                await self._run(batch, scope)
        finally:
            joining.has_ended = True
            joining.leave_queue()
            del self._open[batch], run.opened[batch]
            self._counters.batches[batch.reason] += 1
            self._counters.batch_size.observe(batch.size)
            self._tell_idle()
            self.ring()

    async def _run_and_feed(self, batch: Batch, joining: OpenJoining, scope: Scope) -> None:
        failure: BaseException | None = None
        has_run = False
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(joining.feed)
                try:
                    await self._run(batch, scope)
                except BaseException as error:
                    failure = error
                has_run = True
                if self._parking.leave_scopes_in(tasks.cancel_scope):
                    logger.warning(LEFT_OPEN)
                tasks.cancel_scope.cancel()
        except RuntimeError as error:  # trio leaves the scopes with the nursery, and raises this
            if not has_run:
                raise
            logger.warning(LEFT_OPEN, exc_info=error)
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback holds this frame

    def _are_at_work(self) -> bool:
        # A continuous handler never ends by itself: it is busy while it has a request.
        return any(
            batch.active or isinstance(joining, OpenJoining)
            for batch, joining in self._open.items()
        )

    def _open_room(self) -> float:
        return sum(joining.room for joining in self._open.values())
