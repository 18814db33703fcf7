"""The slots of a batcher whose batches take requests while their handler runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from shoal.batching.joining import ContinuousJoining, Joining, OpenJoining
from shoal.batching.open_run import OpenRun
from shoal.batching.slots import Slots
from shoal.core.batch import CutReason
from shoal.core.request import State

if TYPE_CHECKING:
    from shoal.batching.parking import Scope
    from shoal.core.batch import Batch
    from shoal.core.forming import Former
    from shoal.core.request import Request


class OpenSlots(Slots):
    """Slots that start the handler with the first request, and hand it the others as they come."""

    def __init__(self, *args: Any, fill: str) -> None:
        super().__init__(*args)
        self._joining_of = OpenJoining if fill == "open" else ContinuousJoining
        self._open: dict[Batch, Joining] = {}

    @property
    def former(self) -> Former:
        """The line."""
        return self._former

    def flush(self) -> None:
        """Closes the batch that takes what is in line."""
        super().flush()
        for joining in self._open.values():
            if isinstance(joining, OpenJoining):
                joining.flush()

    def now(self) -> float:
        """Returns the time on the loop's clock, in seconds."""
        return self._parking.now()

    def taken_within(self, room: float) -> list[Request]:
        """Takes those from the line that fit, in order, and whose callers are there."""
        self._intake.expire_overdue()
        if room <= 0 or not self._former.live:
            return []
        requests = self._former.take_within(room)
        departed = self._parking.departed(requests)
        for request in departed:
            request.state = State.CANCELLED
        self._counters.cancelled += len(departed)
        return [request for request in requests if request.state is State.QUEUED]

    def is_over(self) -> bool:
        """Says whether no request will come to this slot any more."""
        former = self._former
        return (former.closed and not former.live) or self._is_one_too_many()

    def tell_room(self) -> None:
        """Says how much the slots take at once."""
        self._tell_idle()

    async def listen(self, until: float) -> None:
        """Waits for the bell, or for a time on the loop's clock."""
        self._former.wake_at = self._former.live + 1
        await self._listen(until)
        self._former.wake_at = 0

    async def _serve(self, scope: Scope) -> bool:
        while True:
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
            if scope.cancel_called:
                return True

    async def _first_batch(self) -> Batch | None:
        """Waits for the first requests of a batch; returns None when this slot is not needed."""
        while not self.is_over():
            requests = self.taken_within(self._former.options.max_batch_size)
            if requests:
                return self._begun(requests, CutReason.OPEN)
            await self.listen(float("inf"))
        return None

    async def _run_open(self, batch: Batch, scope: Scope) -> None:
        joining = self._open[batch] = self._joining_of(batch, self)
        run = self.run
        assert isinstance(run, OpenRun)
        run.opened[batch] = joining
        try:
            if isinstance(joining, OpenJoining):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(joining.feed)
                    await self._run(batch, scope)
                    tasks.cancel_scope.cancel()
            else:
                joining.leave_line()
                await self._run(batch, scope)
        finally:
            joining.leave_line()
            del self._open[batch], run.opened[batch]
            self._counters.batches[batch.reason] += 1
            self._tell_idle()

    def _open_room(self) -> float:
        return sum(joining.room for joining in self._open.values())
