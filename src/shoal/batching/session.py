"""The state of an open batcher: what exists only while it is open, in one event loop.

A session ends in one of these ways. None of them leaves a caller waiting:

*closing* (`Batcher.aclose`, or leaving the block)
    Intake stops. The queued requests run without waiting for batching windows, or fail at once with
    ``drop_queued_on_shutdown``.
    After ``graceful_shutdown_timeout_s`` queued requests fail with `BatcherClosed`, and handlers
    are cancelled. A handler that can't be cancelled, in a thread or under a shield, can still
    answer its callers for another `LAST_ANSWERS_S`. Then they fail too, so that no caller hangs on
    a thread that never ends.
*cancellation* from outside
    All requests fail with `BatcherClosed` at once.
*breaking*
    A slot fails with anything but cancellation (a bug in Shoal, a `KeyboardInterrupt`). All
    requests fail with `BatcherClosed` with that error as cause, and the error propagates to the
    code that ran the batcher.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import astuple
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from shoal.batching.calls.entry import Entry
from shoal.batching.calls.intake import Intake
from shoal.batching.current import waiting_batches
from shoal.batching.handlers.handler import HoldLog
from shoal.batching.open_batch import OpenRun
from shoal.batching.open_slots import OpenSlots
from shoal.batching.options import manager_of, refuse_change
from shoal.batching.running.closed_slots import ClosedSlots
from shoal.batching.running.run import UnaryRun
from shoal.batching.running.stream import StreamRun
from shoal.core.counters import NO_LEVELS, ClosingCounts
from shoal.core.forming.call_options import RequestOptionsFactory
from shoal.core.forming.former import Former
from shoal.core.options.options import OPTIONS
from shoal.failures.exceptions import ends_the_program, is_cancellation, own_copy
from shoal.failures.hints import with_hint
from shoal.loops.this_loop import parking_of_this_loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from shoal.batching.handlers.handler import Handler
    from shoal.batching.running.slots import Capacity
    from shoal.core.counters import BatcherState, BatcherStatistics, Counters
    from shoal.core.options.options import BatchOptions

logger: Final = logging.getLogger("shoal")

_MOST_COUNTED: Final = 10_000  # waiting requests; their levels are counted one by one

LAST_ANSWERS_S: Final = 10.0
"""How long a handler may still answer after closing has cancelled it, in seconds."""

_AT_ONCE: Final = [name for name, option in OPTIONS.items() if option.at_once]
_BOUNDS: Final = ["max_concurrent_batches", "max_queued_requests"]
"""What fits beside any options, and changes alone if the others don't fit beside the old ones."""


class Session:
    def __init__(
        self,
        name: str,
        handler: Handler,
        options: BatchOptions,
        counters: Counters,
        capacity: Capacity | None = None,
    ) -> None:
        self.state: BatcherState = "open"
        self._name = name
        self._handler = handler
        self._options = options
        self._counters = counters
        self._capacity = capacity
        self._parking = parking_of_this_loop()
        if capacity is None:
            self._former = Former(options)
        else:
            self._former = Former(options, capacity.members, capacity.limiter)
        self._intake = Intake(
            name,
            self._former,
            self._parking,
            counters,
            is_blocked_by=lambda batch: self.slots.is_blocked_by(batch),
            adopt=self._adopt,
        )
        self.home = self._intake.home
        self.entry = Entry(self._intake, handler.binding, options, counters)
        self.slots = self._new_slots()
        self._stopping = anyio.Event()
        self._others_at_rest: Callable[[], Awaitable[None]] | None = None
        self._closed = anyio.Event()
        self._ended_before: tuple[int, int, int, int] | None = None
        self._counts = ClosingCounts(0, 0, 0)

    async def run(self, on_open: Callable[[], object]) -> None:
        """Serves calls until it is closed. Cancellation: waiting callers fail at once."""
        self._task = anyio.get_current_task()
        with ExitStack() as at_end:
            at_end.callback(self._closed.set)
            if self._capacity is not None:
                at_end.callback(self._capacity.subscribe(self.slots.capacity_changed))
            async with self._opened(), anyio.create_task_group() as tasks:
                self.slots.start(tasks)
                tasks.start_soon(self._watch_timers)
                try:
                    on_open()
                    await self._stopping.wait()
                    self.state = "draining"
                    self.slots.draining.set()
                    with anyio.move_on_after(self._options.graceful_shutdown_timeout_s):
                        if self._options.drop_queued_on_shutdown:
                            self._intake.drop_queue()
                        if self._others_at_rest is not None:
                            self.stop_waiting()
                            await self._others_at_rest()
                        self._intake.close()
                        await self.slots.ended.wait()
                    if not self.slots.ended.is_set():
                        self._fail_queue()
                        self.slots.cancel()
                        with anyio.move_on_after(LAST_ANSWERS_S):
                            await self.slots.ended.wait()
                finally:
                    # Before the tasks are awaited: a handler in a thread may run for long.
                    self._end()
                tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[None]:
        """Enters the context manager of the option ``open``; calls wait, or fail with its error."""
        opens = self._options.open
        if opens is None:
            yield
            return
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(manager_of(opens))
            except BaseException as error:
                hinted = with_hint(error)
                self._task_died(hinted)
                raise hinted  # noqa: B904 - it has its cause
            yield

    async def aclose(self) -> ClosingCounts:
        """Stops intake, and waits until everything has ended."""
        # The counts are those of requests in the batcher when closing began. If the caller is
        # cancelled, closing continues without it.
        self.stop()
        if any(map(self.slots.is_running, waiting_batches())):  # a handler must not await itself
            await anyio.lowlevel.checkpoint()
        else:
            await self._closed.wait()
        return self._counts

    def stop(
        self,
        others_at_rest: Callable[[], Awaitable[None]] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """Starts closing without waiting; accepts calls until `others_at_rest` returns."""
        # `others_at_rest` waits until the batchers with handlers that may call this one are idle.
        # `on_change` is called whenever this batcher may have become idle.
        self._begin_counting()
        self._others_at_rest = others_at_rest
        if on_change is not None:  # if None, others may still wait for this one
            self.slots.on_change = on_change
        self._stopping.set()

    @property
    def is_stopping(self) -> bool:
        return self.state != "open" or self._stopping.is_set()

    @property
    def is_at_rest(self) -> bool:
        return self.state in ("closed", "broken") or self.slots.are_at_rest

    def drain(self) -> None:
        """Stops waiting for batches to fill; drops the queue if the options say so."""
        if self._options.drop_queued_on_shutdown:
            self._intake.drop_queue()
        self.stop_waiting()

    def stop_waiting(self) -> None:
        self._former.drain()
        self.slots.draining.set()
        self._intake.ring()

    def configure(self, options: BatchOptions) -> None:
        """Applies new options from the next batch on; raises `ValueError` for another ``open``."""
        # A batch that is filling (it has its first request, and a slot waits with it) keeps its
        # options. The new ones are applied as soon as it is dispatched or empty. Options of
        # admission control and of the number of batches are applied at once.
        refuse_change(self._options.open, options.open)
        self._options = options
        applied = options
        if self.slots.is_gathering:
            applied = _with_what_holds_at_once(self._former.options, options)
        is_pending = applied != options
        self._former.await_change(is_pending=is_pending)
        if applied != self._former.options or not is_pending:
            self._take_in(applied)

    def _adopt(self) -> None:
        if not self.slots.is_gathering:
            self.configure(self._options)

    def _take_in(self, options: BatchOptions) -> None:
        options_factory = RequestOptionsFactory(self._name, options)
        ending: BaseException | None = None
        for request, error in self._former.change(options, options_factory.renew):
            if ending is None and ends_the_program(error):
                ending = error
            failure = error if isinstance(error, Exception) else own_copy(error)
            self._intake.fail_one(request, failure)
        self._intake.options_factory = options_factory
        self.entry.configure(options)
        self.slots.configure(options)
        try:
            if ending is not None:
                raise ending
        finally:
            del ending  # its traceback holds this frame

    def statistics(self) -> BatcherStatistics:
        former = self._former
        limit = None if former.adaptive is None else former.adaptive.limit(former.cost)
        return self._counters.statistics(
            self._name,
            self.state,
            self._options,
            former.live,
            former.parked,
            list(self.slots.batches),
            former.model.snapshot(),
            limit,
            former.scheduling_capacity,
            self._parking.now(),
            self._queued_by_level(),
        )

    def _queued_by_level(self) -> Mapping[int, int]:
        former = self._former
        if self._options.priority_levels == 1 or former.live + former.parked > _MOST_COUNTED:
            return NO_LEVELS
        return Counter([request.priority for request in former.parked_and_queued()])

    def _new_slots(self) -> ClosedSlots | OpenSlots:
        intake, handler = self._intake, self._handler
        made_of = (intake, handler, self._options, HoldLog(f"the handler {self._name}"))
        if handler.fill != "closed":
            return OpenSlots(intake, OpenRun(*made_of), self._task_died, self._capacity)
        run = StreamRun(*made_of) if handler.streams else UnaryRun(*made_of)
        return ClosedSlots(intake, run, self._task_died, self._capacity)

    async def _watch_timers(self) -> None:
        try:
            await self._intake.timers.run()
        except BaseException as error:
            self._task_died(error)
            raise

    def _task_died(self, error: BaseException) -> None:
        """Fails all requests with the error that ended a task, unless that was cancellation."""
        is_cancelled = is_cancellation(error) and (
            self._parking.is_cancelled()
            or self._task.has_pending_cancellation()  # asyncio ends by cancelling each task
        )
        if self.state != "broken" and not is_cancelled:
            self.state = "broken"
            self._intake.failure = error
            logger.error("%s: the batcher broke", self._name, exc_info=error)
        self._end()

    def _fail_queue(self) -> None:
        self._intake.close()
        self._intake.fail(self._former.clear())
        self._intake.ring()

    def _end(self) -> None:
        if self.state == "closed":
            return
        self._begin_counting()
        try:
            self._intake.close()
        finally:  # a user's policy may raise even here
            left = [*self.slots.running(), *self._former.clear()]
            self._intake.fail(left)
        assert self._ended_before is not None
        ended = zip(self._ended_so_far(), self._ended_before, strict=True)
        self._counts = ClosingCounts(*(now - before for now, before in ended))
        if self.state != "broken":
            self.state = "closed"
            closing = astuple(self._counts)
            of_these = "; of these while closing: %d finished, %d failed, %d cancelled, %d declined"
            logger.info(
                "%s: closed; requests in its life: %d (%d failed, %d cancelled or out "
                f"of time, %d declined){of_these if any(closing) else ''}",
                *(self._name, *self._ended_so_far(), *(closing if any(closing) else ())),
            )
        self.slots.report_change()

    def _begin_counting(self) -> None:
        if self._ended_before is None:
            self._ended_before = self._ended_so_far()

    def _ended_so_far(self) -> tuple[int, int, int, int]:
        counters = self._counters
        left = counters.cancelled + counters.expired
        return counters.finished, counters.failed, left, counters.declined


def _with_what_holds_at_once(in_force: BatchOptions, wanted: BatchOptions) -> BatchOptions:
    """Returns `in_force` with the wanted options that do not affect a batch being filled."""
    for names in (_AT_ONCE, _BOUNDS):
        with suppress(ValueError):  # not every mix of two sets of options is valid
            return in_force.changed({name: getattr(wanted, name) for name in names})
    return in_force
