"""One opening of a batcher: what exists only while it is open, in one event loop.

Ways to end, none of which leaves a caller waiting:

*closing* (`Batcher.aclose`, or leaving the block)
    Intake stops, and the line is run without waiting out windows, or fails at once where
    ``drop_queued_on_shutdown`` or whoever closes says so.
    After ``graceful_shutdown_timeout_s`` what is in line fails with `BatcherClosed`, and handlers
    are cancelled. One that can't be, in a thread or under a shield, still answers its callers if it
    ends within `LAST_ANSWERS_S` more; then they fail as well, so that nobody hangs on a thread that
    never ends.
*cancellation* from outside
    Everything fails with `BatcherClosed` at once.
*breaking*
    A slot dies of anything but cancellation (a bug of ours, a `KeyboardInterrupt`): everything
    fails with `BatcherClosed` whose cause says why, and the error goes on to whoever ran the
    batcher.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel

from shoal.batching.calls.entry import Entry
from shoal.batching.calls.intake import Intake
from shoal.batching.current import running_batch
from shoal.batching.failures.exceptions import ends_the_program, is_cancellation, own_copy
from shoal.batching.loops.this_loop import parking_of_this_loop
from shoal.batching.open.run import OpenRun
from shoal.batching.open.slots import OpenSlots
from shoal.batching.running.closed_slots import ClosedSlots
from shoal.batching.running.stream import StreamRun
from shoal.batching.running.time_limits import TimeLimits
from shoal.batching.running.unary import UnaryRun
from shoal.core.counters import ClosingCounts
from shoal.core.forming.call_options import RequestOptionsFactory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from shoal.batching.handlers.handler import Handler
    from shoal.batching.running.capacity import Room
    from shoal.batching.running.run import Run
    from shoal.core.counters import BatcherState, BatcherStatistics, Counters
    from shoal.core.options.options import BatchOptions

logger: Final = logging.getLogger("shoal")

LAST_ANSWERS_S: Final = 10.0
"""How long a handler that was cancelled when its batcher closed may go on and still answer."""

_AT_ONCE: Final = (
    "max_concurrent_batches",
    "max_queued_requests",
    "overload",
    "refuse_late",
    "request_timeout_s",
    "stream_buffer",
    "graceful_shutdown_timeout_s",
    "drop_queued_on_shutdown",
)


class Session:
    """The line, the slots and the end of one open batcher.

    Attributes:
        thread: The thread of its event loop; whether it is that loop, too, is asked where a call is
            awaited.
        loop: That event loop.
        process: The process of both.
        entry: Where calls enter.
        slots: The tasks that run batches.
        state: How far its life has come.
        failure: What broke it; None if nothing did.
    """

    def __init__(
        self,
        name: str,
        handler: Handler,
        options: BatchOptions,
        counters: Counters,
        room: Room | None = None,
    ) -> None:
        self.state: BatcherState = "open"
        self.failure: BaseException | None = None
        self._name = name
        self._handler = handler
        self._options = self._in_force = options
        self._counters = counters
        self._room = room
        self._parking = parking_of_this_loop()
        self._intake = Intake(name, options, self._parking, counters)
        self.loop = self._intake.home.loop
        self.process = self._intake.home.process
        self.thread = self._intake.home.thread
        self.entry = Entry(self._intake, handler.binding, options, self._parking.now)
        self._limits = TimeLimits(self._parking)
        self.slots = self._new_slots()
        self._stopping = anyio.Event()
        self._others_at_rest: Callable[[], Awaitable[None]] | None = None
        self._closed = anyio.Event()
        self._drop_asked: bool | None = None
        self._ended_before: tuple[int, int, int] | None = None
        self._counts = ClosingCounts(0, 0, 0)

    async def run(self, on_open: Callable[[], None]) -> None:
        """Serves calls until it is closed.

        Cancellation: callers that wait fail at once.
        """
        self._task = anyio.get_current_task()
        unsubscribe = None if self._room is None else self._room.subscribe(self.slots.room_changed)
        try:
            async with anyio.create_task_group() as tasks:
                self.slots.start(tasks)
                tasks.start_soon(self._watch, self._intake.deadlines.run)
                tasks.start_soon(self._watch, self._limits.run)
                try:
                    on_open()
                    await self._stopping.wait()
                    self.state = "draining"
                    self.slots.draining.set()
                    with anyio.move_on_after(self._options.graceful_shutdown_timeout_s):
                        if self._drops_queue:
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
                    # Before the tasks are waited for: a handler in a thread may take its time.
                    self._end()
                tasks.cancel_scope.cancel()
        finally:
            if unsubscribe is not None:
                unsubscribe()
            self._closed.set()

    async def aclose(self, *, drop_queued: bool | None = None) -> ClosingCounts:
        """Stops intake, and waits until everything has ended.

        Args:
            drop_queued: Whether what is in line fails at once; None for what the options say.

        Returns:
            What became of the requests that were there.

        Cancellation: closing goes on without the caller.
        """
        if drop_queued or self._drop_asked is None:
            self._drop_asked = drop_queued
        if drop_queued:
            self._begin_counting()
            if self.state == "draining":
                self._fail_queue()
        self.stop()
        if running_batch.get(None) in self.slots.batches:  # a handler of ours: not for itself
            await anyio.lowlevel.checkpoint()
        else:
            await self._closed.wait()
        return self._counts

    def stop(
        self,
        others_at_rest: Callable[[], Awaitable[None]] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """Has it close, as `aclose` does, without waiting for that.

        Args:
            others_at_rest: Waits until those have no more work whose handlers may make calls of
                this one; so long calls are taken. None to take no more.
            on_change: Called whenever this one may have come to rest.
        """
        self._begin_counting()
        self._others_at_rest = others_at_rest
        if on_change is not None:  # else others may still wait for this one
            self.slots.on_change = on_change
        self._stopping.set()

    @property
    def is_stopping(self) -> bool:
        """Whether it has been told to close, or has ended."""
        return self.state != "open" or self._stopping.is_set()

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is in line, and no handler is at work."""
        return self.state in ("closed", "broken") or self.slots.are_at_rest

    def check_loop(self) -> None:
        """See `Endings.check_loop`."""
        self._intake.check_loop()

    def flush(self) -> None:
        """Sends what is in line now without waiting for more."""
        self.slots.flush()

    def drain(self) -> None:
        """Waits out no more windows, and drops what is in line where the options say so."""
        if self._drops_queue:
            self._intake.drop_queue()
        self.stop_waiting()

    def stop_waiting(self) -> None:
        """Waits out no more windows, from now on."""
        self._intake.former.drain()
        self.slots.draining.set()
        self.slots.ring()

    def configure(self, options: BatchOptions) -> None:
        """Takes in new options, from the next batch on.

        A batch that gathers, which is one that has its first request and a slot that waits with it,
        keeps the options with which it began; those come into force as soon as it has left, or
        nobody is left in it. What says who is let in, and how many batches there may be, is in
        force at once.
        """
        self._options = options
        now = options
        if self.slots.is_gathering:
            now = _with_what_holds_at_once(self._in_force, options)
        is_pending = now != options
        self._intake.adopt = self._adopt if is_pending else None
        self._intake.former.awaits_change = is_pending
        if now != self._in_force or not is_pending:
            self._take_in(now)
        else:
            self._intake.former.reform()

    def _adopt(self) -> None:
        if not self.slots.is_gathering:
            self.configure(self._options)

    def _take_in(self, options: BatchOptions) -> None:
        options_factory = RequestOptionsFactory(self._name, options)
        ending: BaseException | None = None
        for request, error in self._intake.former.change(options, options_factory.renew):
            if ending is None and ends_the_program(error):
                ending = error
            told = error if isinstance(error, Exception) else own_copy(error)
            self._intake.fail_one(request, told)
        self._in_force = options
        if self._handler.fill == "closed":
            self.slots.run = self._new_run()
        else:
            self.slots.run.options = options  # of the batches that run as well
        self.entry.configure(options)
        self.slots.resize()
        if ending is not None:
            raise ending

    def statistics(self) -> BatcherStatistics:
        """Returns the counts together with what is known of the line and the slots now."""
        former = self._intake.former
        limit = None if former.adaptive is None else former.adaptive.limit(former.size)
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
        )

    @property
    def _drops_queue(self) -> bool:
        if self._drop_asked is not None:
            return self._drop_asked
        return self._options.drop_queued_on_shutdown

    @property
    def scheduling_capacity(self) -> float:
        """How much more would start at once."""
        return self._intake.former.scheduling_capacity

    def _new_slots(self) -> ClosedSlots | OpenSlots:
        run = self._new_run()
        parts = (self._intake, self._parking, self._counters, run, self._task_died, self._room)
        if self._handler.fill == "closed":
            return ClosedSlots(*parts)
        return OpenSlots(*parts, fill=self._handler.fill)

    def _new_run(self) -> Run:
        kind: type[Run] = StreamRun if self._handler.streams else UnaryRun
        if self._handler.fill != "closed":
            kind = OpenRun
        return kind(
            self._name, self._handler, self._in_force, self._parking, self._counters, self._limits
        )

    async def _watch(self, watch: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await watch()
        except BaseException as error:
            self._task_died(error)
            raise

    def _task_died(self, error: BaseException) -> None:
        """Fails everybody at once with what killed a task of ours, unless that was cancellation."""
        is_cancelled = is_cancellation(error) and (
            self._parking.is_cancelled()
            or self._task.has_pending_cancellation()  # asyncio ends, and cancels each task apart
        )
        if self.state != "broken" and not is_cancelled:
            self.state = "broken"
            self.failure = error
            logger.error("%s: the batcher broke", self._name, exc_info=error)
        self._end()

    def _fail_queue(self) -> None:
        """Fails what is in line; no call is taken any more."""
        self._intake.close()
        self._intake.fail(self._intake.former.clear(), None)
        self.slots.ring()

    def _end(self) -> None:
        """Fails whatever has not come to an end."""
        if self.state == "closed":
            return
        self._begin_counting()
        try:
            self._intake.close()
        finally:  # a user's rule may raise even here
            left = [*self.slots.running(), *self._intake.former.clear()]
            self._intake.fail(left, self.failure)
        assert self._ended_before is not None
        ended = zip(self._ended_so_far(), self._ended_before, strict=True)
        self._counts = ClosingCounts(*(now - before for now, before in ended))
        if self.state != "broken":
            self.state = "closed"
            logger.info(
                "%s: closed, having served %d requests in its life (%d failed, %d cancelled or out "
                "of time); of these while closing: %d finished, %d failed, %d cancelled",
                self._name,
                *self._ended_so_far(),
                *astuple(self._counts),
            )
        if self.slots.on_change is not None:
            self.slots.on_change()

    def _begin_counting(self) -> None:
        if self._ended_before is None:
            self._ended_before = self._ended_so_far()

    def _ended_so_far(self) -> tuple[int, int, int]:
        counters = self._counters
        return counters.finished, counters.failed, counters.cancelled + counters.expired


def _with_what_holds_at_once(in_force: BatchOptions, wanted: BatchOptions) -> BatchOptions:
    """Returns options with those of others that no batch which gathers depends on."""
    for names in (_AT_ONCE, _AT_ONCE[:2]):
        with suppress(ValueError):  # not every mix of two sets of options goes together
            return in_force.changed({name: getattr(wanted, name) for name in names})
    return in_force
