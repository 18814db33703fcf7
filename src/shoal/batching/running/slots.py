"""The worker slots: the tasks that take batches from the queue and run the handler on them.

Each slot is a task. The task itself is the permit to run a batch, so permits can't be lost. A slot
loops: wait for its turn at the queue, take the next batch, run the handler. Only the slot that has
the turn waits for a batch to fill. A slot that has just run a batch may also take a full one
without the turn. With ``max_concurrent_batches=1`` a request involves only its caller's task and
the slot's.

Slots are created on demand: a slot that has taken a batch creates the next one, if none waits for
the turn and the limit allows it. So opening creates one slot, even without a limit. Of the idle
slots, `IDLE_SLOTS_KEPT` wait for the next burst behind the one that has the turn; the others end.

The alternative, one task that forms batches and starts another task for each, costs a task and a
task switch per batch, and has permits to manage.

The slot that has the turn registers how many requests it waits for. The arrival that reaches this
number wakes it, so filling a batch wakes the slot at most twice, and an idle slot is never woken.

A handler that forwards batches to replicas has a `Capacity` in place of a number of slots. A batch
is formed only when a replica can take it. Until then its requests stay in the queue, where others
join them, and callers that leave cost nothing.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import Counter, deque
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

import anyio

from shoal.batching.current import calls_from_thread
from shoal.batching.running.run import Run
from shoal.core.events import BatchRecord
from shoal.core.policies.sizing import load_of
from shoal.core.request import Batch, DispatchReason, Request, State
from shoal.errors import RetryLater
from shoal.failures.exceptions import is_cancellation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from anyio.abc import TaskGroup

    from shoal.batching.calls.intake import Intake
    from shoal.core.forming.limiter import Limiter
    from shoal.core.options.options import BatchOptions
    from shoal.core.replicas.members import Members
    from shoal.loops.parking import Scope


class Capacity(Protocol):
    """The free capacity of a handler, which a batcher checks before it forms a batch."""

    # The handler must take up capacity for its batch before its first wait.

    @property
    def members(self) -> Members[Any]: ...

    @property
    def limiter(self) -> Limiter:
        """When batches may start, for all batchers of the handler."""
        ...

    @property
    def slots(self) -> float: ...  # how many batches the handler can run at once now

    @property
    def free(self) -> float:
        """How many more batches the handler can take now; infinity for no limit."""
        ...

    def is_full(self) -> bool:
        """Returns whether a due batch must wait; if so, adds the batcher to a wait queue."""
        # It stays in the wait queue until the handler has its batch, or until `rest`.
        ...

    def rest(self) -> None:
        """Leaves the wait queue, because no batch is due any more."""
        ...

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Calls a function whenever the capacity changes, until the returned function is called."""
        ...


logger: Final = logging.getLogger("shoal")

RUNNING = State.RUNNING

RunT = TypeVar("RunT", bound=Run)
LEFT_OPEN: Final = "a handler has left a cancel scope open"
"""The log message for such a handler; which batch it was is not known."""

IDLE_SLOTS_KEPT: Final = 8
"""How many idle slots wait for their turn at the queue."""


class Slots(ABC, Generic[RunT]):
    """The worker slots of one open batcher; subclasses define what a slot does."""

    # The turn at the queue passes from slot to slot, in the order in which they ask for it.
    # Invariant: while calls are accepted and one more slot is allowed, one slot has the turn at the
    # queue, or waits for it, or has been created or woken and has not run yet.

    _batches_are_open: ClassVar = False

    def __init__(
        self,
        intake: Intake,
        run: RunT,
        on_death: Callable[[BaseException], None],
        capacity: Capacity | None,
    ) -> None:
        self.intake = intake
        self.former = intake.former
        self.batches = self.former.batches
        self.bell = intake.bell
        self.parking = intake.parking
        self.counters = intake.counters
        self._turn_is_taken = False
        self._waiting: deque[Any] = deque()  # the waiters of the slots that wait for the turn
        # Replaced when the options change.
        self.run = run
        self._on_death = on_death
        self._capacity = capacity
        self._most: float = 1
        self._most = self._allowed()
        self._tasks: TaskGroup | None = None
        self._count = 0
        self._last_id = 0
        self._new_ids = self.counters.observers.batch_ids[intake.name]
        # Set when the batcher drains or begins to close; handlers can check it.
        self.draining = anyio.Event()
        # The coroutines of the slots' tasks, by the slots' scopes. Cancelling a scope does not
        # cancel the task that waits for the slots.
        self.coroutines: dict[Any, object] = {}
        self._are_cancelled = False
        # Set when the last slot has ended.
        self.ended = anyio.Event()
        # Called whenever the batcher may have become idle.
        self.on_change: Callable[[], None] | None = None
        self._prepare()
        self._report_idle()

    def _prepare(self) -> None:
        """Completes the constructor."""

    def start(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._context = copy_context()
        self._start_slot()
        self._report_idle()

    def cancel(self) -> None:
        """Cancels the handlers; a handler that still returns results answers its callers."""
        self._are_cancelled = True
        for batch in self.batches:
            batch.set_overdue()
        for scope in tuple(self.coroutines):
            scope.cancel()

    def flush(self) -> None:
        self.former.flush()
        self.bell.ring()

    @abstractmethod
    def configure(self, options: BatchOptions) -> None: ...

    def _resize(self) -> None:
        """Applies a changed number of slots; surplus slots end after their batch."""
        self._most = self._allowed()
        if self.ended.is_set():
            return
        if self._tasks is not None and not self._turn_is_taken:
            self.pass_turn()
        self.capacity_changed()

    @property
    def is_gathering(self) -> bool:
        """Whether a batch is filling, with the options with which it began."""
        return self.former.is_gathering

    def capacity_changed(self) -> None:
        if self._capacity is not None and self._capacity.slots > self._most:
            self._resize()
            return
        self._report_idle()
        self.bell.ring()

    def report_change(self) -> None:
        if self.on_change is not None:
            self.on_change()

    @property
    def are_at_rest(self) -> bool:
        return not (self.former.live or self.former.parked or self._are_at_work())

    def _are_at_work(self) -> bool:
        return bool(self.batches)

    def is_blocked_by(self, batch: Batch) -> bool:
        """Returns whether a call of a batch's handler to its own batcher would wait forever."""
        # That is certain if its batch has the only slot, and the call is made by the handler's
        # thread, its task, or a task that this one waits for. Other tasks may outlive the handler.
        if not self.batches or self._most > 1 or self._capacity is not None:  # which may grow
            return False
        if self.run.handler.fill != "closed":
            return False
        if calls_from_thread.get():
            return self.run.handler.threaded and self.is_running(batch)
        return self.parking.is_waited_for_by(self.coroutines.values())

    def is_running(self, batch: Batch) -> bool:
        return batch in self.batches or any(r.batch in self.batches for r in batch.members)

    def running(self) -> Iterator[Request]:
        for batch in self.batches:
            yield from [request for request in batch.members if request.state is RUNNING]

    async def _slot(self) -> None:
        begun = self._last_id
        # What was raised inside of a slot's scope; another error may leave it (`_is_unusable`).
        failure: BaseException | None = None
        slot_scope = self.parking.new_scope()
        self.coroutines[slot_scope] = anyio.get_current_task().coro
        try:
            # A scope can be cancelled only once. Entering one per batch would cost more than the
            # rest of the slot's work, so it is replaced only after a handler was interrupted.
            with slot_scope:
                is_needed = not self._are_cancelled
                while is_needed:
                    with self.parking.new_scope() as scope:
                        try:
                            is_needed = await self._serve(scope)
                        except BaseException as error:
                            failure = error
                            raise
                        finally:
                            if self.parking.leave_scopes_in(scope):
                                logger.warning(LEFT_OPEN)
        except BaseException as error:
            if begun == self._last_id or not self._is_unusable(error, failure):
                self._on_death(failure or error)
                raise
            logger.warning(LEFT_OPEN, exc_info=error)
            self._start_slot()
        finally:
            del failure  # its traceback holds this frame
            del self.coroutines[slot_scope]
            self._count -= 1
            if self._count == 0:
                self.ended.set()

    def _is_unusable(self, error: BaseException, failure: BaseException | None) -> bool:
        """Returns whether a slot's task can't continue because a handler has left scopes open."""
        # `error` left the slot's own scope; `failure` was raised inside of it.
        if failure is None:
            return True  # the scope could not be left
        if not is_cancellation(failure):
            return False
        return error is not failure or not self.parking.is_cancelled()

    async def _run(self, batch: Batch, scope: Scope) -> float | None:
        """Runs a batch; returns when it ended, in seconds, or None if `scope` was cancelled."""
        # The caller calls `_report_idle` before and after it, but need not between batches that a
        # slot runs in a row. If this raises, it has called it.
        run = self.run  # with the options with which the batch was filled
        if self.former.awaits_change:
            self.intake.adopt()
        try:
            await run.run(batch, scope)
        except BaseException as error:
            if is_cancellation(error):
                self.intake.stop([r for r in batch.members if r.state is RUNNING])
            elif batch.active:  # the remaining requests are found through their batch
                self._on_death(error)
            self._end(batch, scope)
            self._report_idle()
            raise
        return self._end(batch, scope)

    def _end(self, batch: Batch, scope: Scope) -> float | None:
        """Ends a batch after its requests; returns the result of `_run`."""
        former = self.former
        started = self.batches.pop(batch)
        now = self.parking.now()
        run_s = now - started
        if not batch.is_continuous:
            self.counters.run_s.gather((run_s,))
        interrupted = scope.cancel_called
        failure = batch.failure
        # A service that refuses a batch does so sooner than it would have run it.
        if failure is None or not issubclass(type(failure), RetryLater):
            former.ended(batch, run_s, now, interrupted=interrupted)
        observers = self.counters.observers
        if observers.all or (batch.failure is not None and observers.of_failures):
            self._notify_ended(batch, started, now)
        batch.members = []  # not cleared, since it may be iterated just now
        batch.failure = None  # its traceback may keep the batch
        return None if interrupted else now

    def _notify_ended(self, batch: Batch, began_at: float, now: float) -> None:
        outcomes = self._outcomes(batch)
        ended = outcomes[State.FINISHED] + outcomes[State.FAILED] + outcomes[State.DECLINED]
        retried = 0 if self._batches_are_open else batch.size - len(batch.members)
        record = BatchRecord(
            batcher=self.intake.name,
            id=batch.id,
            reason=batch.reason,
            is_open=self._batches_are_open,
            size=batch.size,
            limit=self.former.limit.cost,
            load=batch.load,
            arrived_at=batch.arrived_at,
            began_at=began_at,
            ended_at=now,
            finished=outcomes[State.FINISHED],
            failed=outcomes[State.FAILED],
            declined=outcomes[State.DECLINED],
            cancelled=batch.size - retried - ended,
            error=batch.failure,
            trace=batch.trace,
            retried=retried,
        )
        requests = batch.requests
        self.counters.observers.notify(
            lambda each: each.batch_ended(record, requests), has_failed=record.error is not None
        )

    def _outcomes(self, batch: Batch) -> Counter[State]:
        return Counter([request.state for request in batch.members])

    async def _wait_for_turn(self) -> None:
        """Waits until the turn at the queue, which another slot has, is free."""
        is_free = False
        while not is_free:
            waiter = self.parking.new_waiter()
            self._waiting.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                elif not self._turn_is_taken:
                    self.pass_turn()  # this one had been woken for it
                raise
            is_free = not self._turn_is_taken

    def pass_turn(self) -> None:
        """Wakes the slot that waits longest for the turn, or adds one if none waits."""
        self._turn_is_taken = False
        former = self.former
        if self._waiting:
            self.parking.wake(self._waiting.popleft())
        elif self._count < self._most and (former.live or not former.closed):
            self._start_slot()  # it will ask for the turn

    def _start_slot(self) -> None:
        assert self._tasks is not None
        self._count += 1
        # In the batcher's context, whichever task needs another slot.
        self._context.run(partial(self._tasks.start_soon, self._slot, name="shoal slot"))

    def _listen(self, until: float | None) -> Awaitable[Any]:
        """Waits for the queue to change, or until a time on the loop's clock."""
        if self.on_change is not None:
            self.on_change()
        return self.bell.wait(math.inf if until is None else until)

    def _begun(self, requests: list[Request], reason: DispatchReason, free_at: float) -> Batch:
        self._last_id = next(self._new_ids)
        former, options = self.former, self.former.options
        load: float | None = None
        if options.allowed_batch_sizes is not None or options.batch_size_fn is not None:
            load = load_of(requests, options)
            self.counters.note_load(requests, load)
        batch = Batch(self._last_id, reason, requests, load, self.draining)
        now = self.parking.now()
        waits: list[float] = []
        for request in requests:
            request.state = RUNNING
            request.batch = batch
            waits.append(now - request.arrived_at)
        # From here on the requests are found through their batch.
        self.batches[batch] = now
        batch.arrived_at = (
            requests[0].arrived_at  # they are in order
            if former.takes_anyone
            else min([request.arrived_at for request in requests])
        )
        batch.free_at = free_at
        self.counters.wait_s.gather(waits)
        batch.is_continuous = self.run.handler.fill == "continuous"
        if self.counters.observers.all:
            name = self.intake.name
            self.counters.observers.notify(lambda each: each.batch_began(name, batch, now))
        return batch

    def _report_idle(self) -> None:
        capacity = self._capacity
        idle = self._most - len(self.batches) if capacity is None else capacity.free
        if idle < 0:  # fewer are allowed than run
            idle = 0
        self.former.idle_slots = idle
        if self.former.parked and self.former.reform():
            self.bell.ring()
        if self.on_change is not None:
            self.on_change()

    def gets_no_more(self, batch: Batch) -> bool:
        """Returns whether no request will join an open batch: the queue ends, or its slot does."""
        if self.former.closed and not self.former.live:
            return True
        return self._count > self._most and batch not in list(self.batches)[: int(self._most)]

    @abstractmethod
    async def _serve(self, scope: Scope) -> bool:
        """Runs batches until the scope is used up; returns False when the slot is not needed."""

    def _allowed(self) -> float:
        """Returns the maximum number of slots; for a `Capacity`, the most that it has had."""
        if self._capacity is None:
            return self.former.options.slots
        return max(self._most, self._capacity.slots)
