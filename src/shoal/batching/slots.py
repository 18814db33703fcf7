"""The slots: the tasks that take batches from the line and run the handler on them.

Each slot is a task, and so the permit to run a batch can't be lost: it is the task itself. A slot
loops: wait for its turn at the line, take the next batch, run the handler. Only the slot whose turn
it is looks at the line, so batches are cut one at a time and only for a slot that is free; with
``max_concurrent_batches=1`` a request meets no task but its caller's and the one slot's.

The rival shape, one task that forms batches and starts another for each, costs a task and a task
switch a batch, and has permits to guard.

The slot that waits at the line has told it how many requests it waits for. An arrival rings when
there are that many, so filling a batch wakes the slot twice at most, and an idle one is never
woken.
"""

from __future__ import annotations

from collections import deque
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from shoal.core.batch import Batch, CutReason
from shoal.core.policies.base import Cut
from shoal.core.request import Request, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anyio.abc import TaskGroup

    from shoal.batching.intake import Intake
    from shoal.batching.parking import Parking, Scope
    from shoal.batching.room import Room
    from shoal.batching.run import Run
    from shoal.core.counters import Counters

RUNNING = State.RUNNING


class Slots:
    """The slots of one open batcher.

    Attributes:
        run: How a batch is run; another one when the options change.
        batches: The batches in the handler now, and since when, in seconds on the loop's clock.
        ended: Set when the last slot has ended.
    """

    def __init__(
        self,
        intake: Intake,
        parking: Parking,
        counters: Counters,
        run: Run,
        on_death: Callable[[BaseException], None],
        room: Room | None = None,
    ) -> None:
        self._intake = intake
        self._former = intake.former
        self._parking = parking
        self._counters = counters
        self.run = run
        self._on_death = on_death
        self._room = room
        self._tasks: TaskGroup | None = None
        # Only all slots together are cancelled, so no cell in this queue is ever left behind.
        self._at_line = False
        self._next_at_line: deque[Any] = deque()
        self._bell: Any = None
        self._count = 0
        self._last_id = 0
        self.batches: dict[Batch, float] = {}
        self._former.batches = self.batches
        self.coroutines: list[object] = []
        self.ended = anyio.Event()
        intake.ring = self.ring

    def start(self, tasks: TaskGroup) -> None:
        """Starts the slots in a nursery."""
        self._tasks = tasks
        self._context = copy_context()
        self.resize()

    def flush(self) -> None:
        """Sends what is in line without waiting for more."""
        self._former.flush()
        self.ring()

    def resize(self) -> None:
        """Takes in a changed number of slots; those that are too many end after their batch."""
        assert self._tasks is not None
        if self.ended.is_set():
            return
        while self._count < self._wanted:
            self._count += 1
            # In the batcher's context, whoever asks for another slot.
            self._context.run(partial(self._tasks.start_soon, self._slot, name="shoal slot"))
        self._tell_idle()
        self.ring()

    def room_changed(self) -> None:
        """Looks again whether the handler can take a batch."""
        self.resize()

    def ring(self) -> None:
        """Makes the slot that waits at the line decide again."""
        if self._bell is not None:
            self._parking.wake(self._bell)

    def running(self) -> Iterator[Request]:
        """Yields the requests that are in a handler."""
        for batch in self.batches:
            yield from [request for request in batch.requests if request.state is RUNNING]

    async def _slot(self) -> None:
        coroutine = anyio.get_current_task().coro
        self.coroutines.append(coroutine)
        try:
            # A scope is good for one cancellation. Entering one for each batch would cost more than
            # the rest of the slot's work, so it lasts until an interrupted handler has used it up.
            is_needed = True
            while is_needed:
                with self._parking.new_scope() as scope:
                    is_needed = await self._serve(scope)
        except BaseException as error:
            self._on_death(error)
            raise
        finally:
            self.coroutines.remove(coroutine)
            self._count -= 1
            if self._count == 0:
                self.ended.set()

    async def _serve(self, scope: Scope) -> bool:
        """Runs batches until the scope is used up; returns False when the slot is not needed."""
        has_run = False
        while True:
            await self.take_turn()
            try:
                batch = await self._next_batch(has_run)
            finally:
                self.pass_turn()
            if batch is None:
                return False
            await self._run(batch, scope)
            del batch  # an idle slot must not keep its items and results
            has_run = True
            if scope.cancel_called:
                return True

    async def _run(self, batch: Batch, scope: Scope) -> None:
        started = self.batches[batch]
        self._tell_idle()
        try:
            await self.run.run(batch, scope)
        except BaseException as error:
            if batch.active:  # the requests that are left are found by their batch
                self._on_death(error)
            raise
        finally:
            del self.batches[batch]
            run_s = self._parking.now() - started
            self._counters.run_s.observe(run_s)
            if scope.cancel_called:
                self._former.model.interrupted(batch.load, run_s)
            else:
                self._former.model.observe(batch.load, run_s)
            self._tell_idle()

    async def take_turn(self) -> None:
        """Waits until no other slot is at the line."""
        while self._at_line:
            cell = self._parking.new_cell()
            self._next_at_line.append(cell)
            await cell
        self._at_line = True

    def pass_turn(self) -> None:
        """Lets the next slot come to the line."""
        self._at_line = False
        if self._next_at_line:
            self._parking.wake(self._next_at_line.popleft())

    async def _next_batch(self, has_run: bool) -> Batch | None:
        """Waits for the next batch; returns None when this slot is not needed any more."""
        former = self._former
        fresh = has_run
        while not self._is_one_too_many():
            self._intake.expire_overdue()  # or a request could get a slot in the tick of its end
            decision = former.decide(self._parking.now())
            if isinstance(decision, Cut):
                if self._is_full():
                    await self._listen(None)
                    continue
                if fresh:
                    # The callers of the batch that has just ended had no turn yet. They may come
                    # again, and a batch that is not full should take them along.
                    fresh = False
                    if decision.reason is CutReason.FULL:
                        await anyio.lowlevel.checkpoint()
                    else:
                        await self._parking.one_pass()
                    continue
                batch = self._cut(decision)
                if batch is not None:
                    return batch
                continue
            if self._room is not None:
                self._room.rest()
            if former.closed and former.live == 0:
                return None
            former.wake_at = decision.wake_at
            await self._listen(decision.until)
            former.wake_at = 0
            fresh = False
        return None

    async def _listen(self, until: float | None) -> None:
        """Waits for the bell, or for a time on the loop's clock."""
        self._bell = bell = self._parking.new_cell()
        try:
            if until is None:
                await bell
            else:
                scope = self._parking.new_scope()
                scope.deadline = until
                with scope:
                    await bell
        finally:
            self._bell = None

    def _cut(self, cut: Cut) -> Batch | None:
        """Takes a batch from the line; None if some whose turn it was have just left."""
        requests = self._former.take(cut)
        departed = self._parking.departed(requests)
        if departed:
            # They were counted when the cut was decided, so it is decided again without them.
            for request in departed:
                request.state = State.CANCELLED
            self._counters.cancelled += len(departed)
            self._former.put_back(requests)
            self._former.reform()  # their places are free
            return None
        batch = self._begun(requests, cut.reason)
        self._counters.batches[cut.reason] += 1
        self._counters.batch_size.observe(batch.size)
        return batch

    def _begun(self, requests: list[Request], reason: CutReason) -> Batch:
        """Makes a batch of requests that have been taken from the line."""
        self._last_id += 1
        batch = Batch(self._last_id, reason, requests, self._former.load_of(requests))
        for request in requests:
            request.state = RUNNING
            request.batch = batch
        # From here on they are found by their batch, whatever happens.
        self.batches[batch] = now = self._parking.now()
        # In order of arrival the first is the oldest.
        oldest_at = requests[0].arrived_at
        if not self._former.takes_anyone:
            oldest_at = min([request.arrived_at for request in requests])
        self._counters.wait_s.observe(now - oldest_at)
        if self._room is not None and self._count <= len(self.batches):
            self.resize()
        return batch

    def _tell_idle(self) -> None:
        if self._room is not None:
            idle = self._room.free
        else:
            slots = min(self._count, self._former.options.max_concurrent_batches)
            idle = max(0, slots - len(self.batches))
        if self._former.reform(idle_slots=idle, open_room=self._open_room()):
            self.ring()

    def _open_room(self) -> float:
        """Returns how much more the batches take that are open."""
        return 0

    def _is_full(self) -> bool:
        """Says whether the handler can take no batch now, though a slot is free."""
        return self._room is not None and self._room.is_full()

    def _is_one_too_many(self) -> bool:
        """Says whether there are more slots than there should be."""
        return self._room is None and self._count > self._wanted

    @property
    def _wanted(self) -> int:
        """How many slots there should be.

        Where a room says how many batches may run, one that waits beside those is enough.
        """
        if self._room is not None:
            return len(self.batches) + 1
        return self._former.options.max_concurrent_batches
