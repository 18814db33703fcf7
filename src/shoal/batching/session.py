"""One opening of a batcher: what exists only while it is open, in one event loop.

Ways to end, none of which leaves a caller waiting:

*closing* (`Batcher.aclose`, or leaving the block)
    Intake stops, the line is run without waiting out windows, and what is left after
    ``graceful_shutdown_timeout_s`` fails with `BatcherClosed`.
*cancellation* from outside
    Everything fails with `BatcherClosed` at once.
*breaking*
    A slot dies of anything but cancellation (a bug of ours, a `KeyboardInterrupt`): everything
    fails with `BatcherClosed` whose cause says why, and the error goes on to whoever ran the
    batcher.
"""

from __future__ import annotations

import logging
from threading import get_ident
from typing import TYPE_CHECKING, Final, cast

import anyio
import anyio.lowlevel

from shoal.batching.current import running_batch
from shoal.batching.entry import Entry
from shoal.batching.intake import Intake
from shoal.batching.open_run import OpenRun
from shoal.batching.open_slots import OpenSlots
from shoal.batching.parking import Parking
from shoal.batching.slots import Slots
from shoal.batching.stream_run import StreamRun
from shoal.batching.unary_run import UnaryRun
from shoal.core.counters import ClosingCounts
from shoal.core.terms import Terms

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batching.handlers import Handler
    from shoal.batching.room import Room
    from shoal.batching.run import Run
    from shoal.core.counters import BatcherState, BatcherStatistics, Counters
    from shoal.core.options import BatchOptions

logger: Final = logging.getLogger("shoal")


class Session:
    """The line, the slots and the end of one open batcher.

    Attributes:
        thread: The thread of its event loop.
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
        self.thread = get_ident()
        self.state: BatcherState = "open"
        self.failure: BaseException | None = None
        self._name = name
        self._handler = handler
        self._options = options
        self._counters = counters
        self._room = room
        self._parking = Parking.of_this_loop()
        self._intake = Intake(name, options, self._parking, counters)
        self.entry = Entry(self._intake, handler.binding, options, self._parking.now)
        self.slots = self._new_slots()
        self._stopping = anyio.Event()
        self._closed = anyio.Event()
        self._ended_before: tuple[int, int, int] | None = None
        self._counts = ClosingCounts(0, 0, 0)

    async def run(self, on_open: Callable[[], None]) -> None:
        """Serves calls until it is closed.

        Cancellation: callers that wait fail at once.
        """
        unsubscribe = None if self._room is None else self._room.subscribe(self.slots.room_changed)
        try:
            async with anyio.create_task_group() as tasks:
                self.slots.start(tasks)
                tasks.start_soon(self._watch_deadlines)
                try:
                    on_open()
                    await self._stopping.wait()
                    self.state = "draining"
                    self._intake.close()
                    with anyio.move_on_after(self._options.graceful_shutdown_timeout_s):
                        await self.slots.ended.wait()
                finally:
                    # Before the tasks are waited for: a handler in a thread may take its time.
                    self._end()
                tasks.cancel_scope.cancel()
        finally:
            if unsubscribe is not None:
                unsubscribe()
            self._closed.set()

    async def aclose(self) -> ClosingCounts:
        """Stops intake, and waits until everything has ended.

        Returns:
            What became of the requests that were there.

        Cancellation: closing goes on without the caller.
        """
        self._begin_counting()
        self._stopping.set()
        if running_batch.get(None) in self.slots.batches:  # a handler of ours: not for itself
            await anyio.lowlevel.checkpoint()
        else:
            await self._closed.wait()
        return self._counts

    def flush(self) -> None:
        """Sends what is in line now without waiting for more."""
        self.slots.flush()

    def stop_waiting(self) -> None:
        """Waits out no more windows, from now on."""
        self._intake.former.drain()
        self.slots.ring()

    def configure(self, options: BatchOptions) -> None:
        """Takes in new options, from the next batch on."""
        terms = Terms(self._name, options)
        for request, error in self._intake.former.change(options, terms.renew):
            self._intake.fail_one(request, error)
        self._options = options
        if self._handler.fill == "closed":
            self.slots.run = self._new_run()
        else:
            self.slots.run.options = options  # of the batches that run as well
        self.entry.configure(options)
        self.slots.resize()

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
        )

    def _new_slots(self) -> Slots:
        run = self._new_run()
        parts = (self._intake, self._parking, self._counters, run, self._task_died, self._room)
        if self._handler.fill == "closed":
            return Slots(*parts)
        return OpenSlots(*parts, fill=self._handler.fill)

    def _new_run(self) -> Run:
        kind: type[Run] = StreamRun if self._handler.streams else UnaryRun
        if self._handler.fill != "closed":
            kind = OpenRun
        return kind(self._name, self._handler, self._options, self._parking, self._counters)

    async def _watch_deadlines(self) -> None:
        try:
            await self._intake.deadlines.run()
        except BaseException as error:
            self._task_died(error)
            raise

    def _task_died(self, error: BaseException) -> None:
        """Fails everybody at once with what killed a task of ours, unless that was cancellation."""
        if self.state != "broken" and not _is_cancellation(error):
            self.state = "broken"
            self.failure = error
            logger.error("%s: the batcher broke", self._name, exc_info=error)
        self._end()

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
            logger.info("%s: closed with %s", self._name, self._counts)

    def _begin_counting(self) -> None:
        if self._ended_before is None:
            self._ended_before = self._ended_so_far()

    def _ended_so_far(self) -> tuple[int, int, int]:
        counters = self._counters
        return counters.finished, counters.failed, counters.cancelled + counters.expired


def _is_cancellation(error: BaseException) -> bool:
    """Says whether an error is nothing but the event loop's cancellation."""
    cancelled = anyio.get_cancelled_exc_class()
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.split(cancelled)[1] is None
    return isinstance(error, cancelled)
