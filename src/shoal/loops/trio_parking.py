"""Waiting and waking of trio tasks."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import trio
from outcome import Outcome
from trio.lowlevel import current_task, reschedule, wait_task_rescheduled

from shoal.core.request import State
from shoal.loops import private
from shoal.loops.event_loop import mark_what_holds_ctrl_c, running_asyncio_loop
from shoal.loops.parking import Parking

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Collection,
        Generator,
        Iterable,
        Sequence,
    )

    from shoal.core.request import Request
    from shoal.loops.parking import Parked, Scope

FINISHED = State.FINISHED

mark_what_holds_ctrl_c(trio.lowlevel.enable_ki_protection)


class _Woken(Outcome[None]):
    # One is enough for all tasks. An `outcome.Value`, which trio would make for each, may be used
    # only once, and making it is 6% of a call.

    def unwrap(self) -> None:
        pass

    def send(self, gen: Generator[Any, None, Any]) -> Any:
        return gen.send(None)

    async def asend(self, agen: AsyncGenerator[Any, None]) -> Any:
        return await agen.asend(None)


WOKEN: Final = _Woken()


class TrioWaiter:
    """A waiting trio task; also the abort function of its wait, which saves an object."""

    # Invariant: once awaited, `task` is None as soon as the task has been rescheduled, by `wake` or
    # by its cancellation.

    __slots__ = ("task",)

    task: trio.lowlevel.Task | None

    def __await__(self) -> Generator[Any, Any, Any]:
        self.task = current_task()
        return wait_task_rescheduled(self).__await__()

    def __call__(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


class TrioParking(Parking):
    name = "trio"

    def __init__(self) -> None:
        self._thread = get_ident()
        self._host = running_asyncio_loop()
        self.now = trio.lowlevel.current_clock().current_time
        self.new_waiter = TrioWaiter
        self.new_scope = trio.CancelScope
        self.checkpoint = trio.lowlevel.checkpoint

    def park(self, parked: Parked) -> Awaitable[Any]:
        parked.waiter = waiter = TrioWaiter()
        waiter.task = current_task()
        return wait_task_rescheduled(waiter)

    def wake(self, waiter: Any) -> None:
        task = waiter.task
        if task is not None:
            waiter.task = None
            reschedule(task, WOKEN)

    def is_spent(self, waiter: Any) -> bool:
        return waiter.task is None

    def wake_all(self, parked: Iterable[Parked]) -> None:
        for each in parked:
            waiter = each.waiter
            if type(waiter) is not TrioWaiter:
                waiter.wake()
            elif waiter.task is not None:
                task, waiter.task = waiter.task, None
                reschedule(task, WOKEN)

    def answer_all(self, requests: Sequence[Request], values: Sequence[Any]) -> None:
        for request, value in zip(requests, values, strict=True):
            request.value = value
            request.state = FINISHED
            request.batch = None
            waiter = request.waiter
            if type(waiter) is not TrioWaiter:
                waiter.wake()
            elif waiter.task is not None:
                task, waiter.task = waiter.task, None
                reschedule(task, WOKEN)

    def departed(self, requests: Iterable[Request]) -> list[Request]:
        return [
            request
            for request in requests
            if (
                waiter.task is None
                if type(waiter := request.waiter) is TrioWaiter
                else waiter.done()
            )
        ]

    def seems_here(self) -> bool:
        # A thread has one trio run at a time.
        return (
            get_ident() == self._thread
            and running_asyncio_loop() is self._host
            and trio.lowlevel.in_trio_task()
        )

    def is_waited_for_by(self, coroutines: Collection[object]) -> bool:
        task: trio.lowlevel.Task | None = current_task()
        while task is not None and task.coro not in coroutines:
            task = None if task.parent_nursery is None else task.parent_nursery.parent_task
        return task is not None

    def is_in_task(self) -> bool:
        return trio.lowlevel.in_trio_task()

    def uncancel(self) -> None:
        pass  # on trio only scopes cancel

    def innermost_scope(self) -> Callable[[], object]:
        return private.scope_of_trio_task(current_task())

    def leave_scopes_in(self, scope: Scope) -> bool:
        return False  # trio leaves them with the outer one, and raises a RuntimeError

    async def rest_of_pass(self) -> bool:
        # trio shuffles the tasks of a tick, so this one may have run first after the checkpoint.
        await trio.lowlevel.checkpoint()
        return True

    def call_when_readable(self, fd: int, report: Callable[[], object]) -> None:
        return None

    async def watch_readable(self, fd: int, report: Callable[[], object]) -> None:
        while True:
            await trio.lowlevel.wait_readable(fd)
            report()
