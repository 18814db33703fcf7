"""The worker slots of a batcher whose batches take requests while their handler runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import anyio
import anyio.lowlevel

from shoal.batching.joining import ContinuousJoining, OpenJoining, take_within
from shoal.batching.open_batch import OpenRun
from shoal.batching.running.slots import IDLE_SLOTS_KEPT, LEFT_OPEN, Slots, logger
from shoal.core.counters import Occupancy
from shoal.core.queue import NOTHING, Amount
from shoal.core.request import DispatchReason, State

if TYPE_CHECKING:
    from collections import Counter

    from shoal.batching.joining import Joining
    from shoal.core.options.options import BatchOptions
    from shoal.core.request import Batch
    from shoal.loops.parking import Scope


class OpenSlots(Slots[OpenRun]):
    """Slots that start the handler with the first request, and add others as they arrive."""

    _batches_are_open: ClassVar = True

    def _prepare(self) -> None:
        self._joinings = self.run.joinings
        self._occupancy = self.run.counters.occupancy = Occupancy(self.batches)
        self.former.wake_always()

    def configure(self, options: BatchOptions) -> None:
        # The same one: a running batch takes them up, since it may never end.
        self.run.options = options
        self._resize()

    def flush(self) -> None:
        for joining in self._filling():
            joining.flush()
        super().flush()

    @property
    def is_gathering(self) -> bool:
        return bool(self._filling())

    def _filling(self) -> list[OpenJoining]:
        return [
            joining
            for joining in self._joinings.values()
            if isinstance(joining, OpenJoining) and not joining.is_closed
        ]

    async def _serve(self, scope: Scope) -> bool:
        innermost_scope = self.parking.innermost_scope()
        own_scope = innermost_scope()
        has_run = False
        while len(self._waiting) < IDLE_SLOTS_KEPT:
            if has_run:
                # The handler may never wait, and other tasks must be able to run.
                await anyio.lowlevel.checkpoint()
            has_run = True
            if self._turn_is_taken:
                await self._wait_for_turn()
            self._turn_is_taken = True
            joining = None
            try:
                joining = await self._first_batch()
            finally:
                if not isinstance(joining, OpenJoining):  # which has the turn until it is closed
                    self.pass_turn()
                    self.intake.adopt()
            if joining is None:
                return False
            await self._run_open(joining, scope)
            del joining
            # A scope that a handler has not left would cancel the next batch as well.
            if scope.cancel_called or innermost_scope() is not own_scope:
                return True
        return False

    async def _first_batch(self) -> Joining | None:
        """Waits for the first requests of a batch; returns None when this slot is not needed."""
        former = self.former
        free_at = self.parking.now()
        while self._count <= self._most:
            if former.live and self._joinings:
                await self.parking.one_pass()  # a running batch may take them first
            is_due = bool(former.live)
            if self._capacity is not None and not is_due:
                self._capacity.rest()
            is_full = is_due and self._capacity is not None and self._capacity.is_full()
            room = NOTHING if is_full else former.limit
            requests, because = take_within(self, room)
            if requests:
                batch = self._begun(requests, DispatchReason.OPEN, free_at)
                kind = ContinuousJoining if batch.is_continuous else OpenJoining
                return kind(batch, self, self._occupancy, because)
            if former.closed and not former.live:
                break
            await self._listen(None)
            if is_due:
                free_at = self.parking.now()
        return None

    async def _run_open(self, joining: Joining, scope: Scope) -> None:
        batch = joining.batch
        self._joinings[batch] = joining
        self._report_idle()
        try:
            if isinstance(joining, OpenJoining):
                await self._run_and_feed(joining, scope)
            else:
                await self._run(batch, scope)
        finally:
            joining.end()
            del self._joinings[batch]
            self.counters.batches[batch.reason] += 1
            if not batch.is_continuous:
                self.counters.batch_size.gather((batch.size,))
            self._occupancy.note(self.parking.now())
            self.capacity_changed()

    async def _run_and_feed(self, joining: OpenJoining, scope: Scope) -> None:
        failure: BaseException | None = None
        has_run = False
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(joining.feed)
                try:
                    await self._run(joining.batch, scope)
                except BaseException as error:
                    failure = error
                has_run = True
                if self.parking.leave_scopes_in(tasks.cancel_scope):
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

    def _outcomes(self, batch: Batch) -> Counter[State]:
        return self._joinings[batch].outcomes

    def _are_at_work(self) -> bool:
        # A continuous handler never ends by itself: it is busy while it has a request.
        return any(
            batch.active or isinstance(joining, OpenJoining)
            for batch, joining in self._joinings.items()
        )

    def _report_idle(self) -> None:
        rooms = [joining.room for joining in self._joinings.values()]
        requests, cost = (sum(each) for each in zip(NOTHING, *rooms, strict=True))
        self.former.open_room = Amount(requests, cost)
        super()._report_idle()
