"""Where a task waits in its event loop: the one file that loads the libraries of both.

The problem: a caller waits for one thing, once, and is woken by another task that has many callers
to wake. `anyio.Event` does that, and a memory channel does it too, but each costs more than all the
rest of a call (a channel a request was measured at four times a bare park). So callers park on the
loop's own primitive: on trio by `trio.lowlevel.wait_task_rescheduled`, on asyncio on a future.

A cell is that one-shot wait: made by the task that will wait, awaited once, woken at most once. It
carries no value; the result is on the request by the time the cell is woken. On asyncio the cell is
the future itself, since any wrapper in Python costs more than the future does.

A cancelled wait is told to nobody by the loop. The caller's own ``except`` does that at its next
turn, and whoever takes requests before that turn asks `Parking.departed`. On trio the abort
function forgets the task: a task that is rescheduled twice, by a wake after a cancellation in the
same tick, takes the whole run down.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from asyncio import Future
from functools import partial
from importlib import import_module
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import anyio
import anyio.lowlevel
import trio
from trio.lowlevel import current_task, reschedule, wait_task_rescheduled

from shoal.batching.loops.event_loop import are_loaded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Iterator

    from shoal.core.request import Request

are_loaded(trio, asyncio)

Scope: TypeAlias = "anyio.CancelScope | trio.CancelScope"
"""A cancel scope of either making; they have the same face."""


class SharedCell(Protocol):
    """What stands in a request's cell where its caller waits for more than this one request."""

    def wake(self) -> None:
        """Tells the caller that the request has come to an end."""
        ...

    def departed(self) -> bool:
        """Says whether the caller has left and has not yet had the turn to say so."""
        ...


class Parking(ABC):
    """How tasks of one event loop wait and are woken.

    Attributes:
        now: The event loop's clock: a function that returns the time in seconds.
        new_cell: Makes a cell for the task that calls it.
        new_scope: Makes a cancel scope; the loop's own where anyio's would only wrap it.
        soon: Has a function called in the event loop, soon; from any thread, and at any time.
            It raises `RuntimeError` once the loop has ended.
    """

    now: Callable[[], float]
    soon: Callable[..., object]
    new_cell: Callable[[], Awaitable[Any]]
    new_scope: Callable[[], Scope]

    @staticmethod
    def of_this_loop() -> Parking:
        """Returns the parking for the event loop that runs the caller.

        Raises:
            RuntimeError: No event loop runs the caller.
        """
        if trio.lowlevel.in_trio_task():
            return TrioParking()
        return AsyncioParking()

    @abstractmethod
    def wake(self, cell: Any) -> None:
        """Wakes whoever waits on the cell; does nothing if it was woken or its wait cancelled."""

    @abstractmethod
    def wake_all(self, requests: Iterable[Request]) -> None:
        """Wakes the callers of all these requests."""

    @abstractmethod
    def is_spent(self, cell: Any) -> bool:
        """Says whether a cell was woken or its wait cancelled."""

    @abstractmethod
    def departed(self, requests: Iterable[Request]) -> list[Request]:
        """Returns those requests whose callers were cancelled but had no turn since."""

    @abstractmethod
    def seems_here(self) -> bool:
        """Says whether this event loop runs the caller, or a task of it what runs the caller.

        It is no exact answer, and costs a fifth of `EventLoop.is_here`.
        """

    @abstractmethod
    def is_waited_for_by(self, coroutines: Collection[object]) -> bool:
        """Says whether a task with one of these coroutines surely waits for the calling task.

        So it does for itself, and for a task that is in a nursery of its own; on asyncio, which has
        tasks outside of nurseries, also for one that it awaits or gathers now.
        """

    @abstractmethod
    def is_in_task(self) -> bool:
        """Says whether a task runs the caller, and not whoever throws its coroutine away."""

    def is_cancelled(self) -> bool:
        """Says whether a cancel scope around the calling task was cancelled."""
        return anyio.current_effective_deadline() == -math.inf

    @abstractmethod
    def uncancel(self) -> None:
        """Takes back that the task was cancelled by something other than a cancel scope."""

    @abstractmethod
    def is_innermost(self, scope: Scope) -> bool:
        """Says whether user code has left all scopes that it has entered inside of one of ours."""

    @abstractmethod
    def leave_scopes_in(self, scope: Scope) -> bool:
        """Leaves the scopes that user code has entered inside of one of ours, and not left.

        Returns:
            Whether there were any that the loop itself does not tell of when `scope` is left.
        """

    @abstractmethod
    async def one_pass(self) -> None:
        """Lets every task that can run now run once; a checkpoint."""


class TrioCell:
    """A parked trio task.

    Invariant: once it is awaited, `task` is None from when the task has been rescheduled, by us or
    by its cancellation.
    """

    __slots__ = ("task",)

    task: trio.lowlevel.Task | None

    def __await__(self) -> Generator[Any, Any, Any]:
        self.task = current_task()
        return wait_task_rescheduled(self._abort).__await__()

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


class TrioParking(Parking):
    """Waits on trio."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._host = asyncio._get_running_loop()
        self.now = trio.lowlevel.current_clock().current_time
        self.new_cell = TrioCell
        self.new_scope = trio.CancelScope
        self.soon = trio.lowlevel.current_trio_token().run_sync_soon

    def wake(self, cell: Any) -> None:
        task = cell.task
        if task is not None:
            cell.task = None
            reschedule(task)

    def is_spent(self, cell: Any) -> bool:
        return cell.task is None

    def wake_all(self, requests: Iterable[Request]) -> None:
        for request in requests:
            cell = request.cell
            if type(cell) is not TrioCell:
                cell.wake()
            elif cell.task is not None:
                task, cell.task = cell.task, None
                reschedule(task)

    def departed(self, requests: Iterable[Request]) -> list[Request]:
        return [
            request
            for request in requests
            if (cell.task is None if type(cell := request.cell) is TrioCell else cell.departed())
        ]

    def seems_here(self) -> bool:
        # A thread has one run of trio at a time.
        return (
            get_ident() == self._thread
            and asyncio._get_running_loop() is self._host
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
        pass  # only scopes cancel

    def is_innermost(self, scope: Scope) -> bool:
        # Nothing public tells. With a trio that keeps this elsewhere, they are always the same.
        here = getattr(current_task(), "_cancel_status", None)
        return here is getattr(scope, "_cancel_status", None)

    def leave_scopes_in(self, scope: Scope) -> bool:
        return False  # trio leaves them with the outer one, and raises a RuntimeError

    async def one_pass(self) -> None:
        # A tick's tasks run in either order, so the first checkpoint may come before the others.
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()


class AsyncioParking(Parking):
    """Waits on asyncio, and on the loops that stand in for its own."""

    def __init__(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self.now = loop.time
        self.new_cell = partial(Future, loop=loop)
        self.new_scope = anyio.CancelScope
        self.soon = loop.call_soon_threadsafe
        # Nothing public tells which scope of a task is the innermost. With an anyio that keeps this
        # elsewhere, only code that never leaves a scope takes more down than its own batch.
        self._states: Any = getattr(import_module("anyio._backends._asyncio"), "_task_states", {})

    def wake(self, cell: Any) -> None:
        if not cell.done():
            cell.set_result(None)

    def is_spent(self, cell: Any) -> bool:
        return bool(cell.done())

    def wake_all(self, requests: Iterable[Request]) -> None:
        for request in requests:
            cell: Any = request.cell
            if type(cell) is not Future:
                cell.wake()
            elif not cell.done():
                cell.set_result(None)  # pyright: ignore[reportUnknownMemberType]

    def departed(self, requests: Iterable[Request]) -> list[Request]:
        return [
            request
            for request in requests
            if (
                cell.done() or cell._asyncio_future_blocking
                if type(cell := request.cell) is Future
                else cell.departed()
            )
        ]

    def seems_here(self) -> bool:
        if asyncio._get_running_loop() is not self._loop:
            return False
        # In a turn of a guest no task runs. To ask for one of trio's where there is none is dear.
        return asyncio.current_task(self._loop) is not None or not trio.lowlevel.in_trio_task()

    def is_waited_for_by(self, coroutines: Collection[object]) -> bool:
        parents = {info.id: info.parent_id for info in anyio.get_running_tasks()}
        tasks = {id(task): task for task in asyncio.all_tasks(self._loop)}
        seen: set[Any] = set()
        to_see: list[Any] = [asyncio.current_task(self._loop)]
        while to_see:
            task = to_see.pop()
            if task is None or task in seen:
                continue
            if task.get_coro() in coroutines:
                return True
            seen.add(task)
            to_see += [tasks.get(parents.get(id(task)) or 0), *_awaiting(task)]
        return False

    def is_in_task(self) -> bool:
        try:
            return asyncio.current_task() is not None
        except RuntimeError:  # the loop has ended
            return False

    def uncancel(self) -> None:
        task = asyncio.current_task()
        while task is not None and task.uncancel():
            pass

    def is_innermost(self, scope: Scope) -> bool:
        state = self._states.get(asyncio.current_task(self._loop))
        return state is None or state.cancel_scope is scope

    def leave_scopes_in(self, scope: Scope) -> bool:
        # A scope of anyio's that was not left breaks every scope around it, up to the task group's.
        state = self._states.get(asyncio.current_task())
        innermost = outer = getattr(state, "cancel_scope", None)
        if innermost is scope:
            return False
        while outer is not None and outer is not scope:
            outer = getattr(outer, "_parent_scope", None)
        if outer is None:
            return False
        while state.cancel_scope is not scope:
            state.cancel_scope.__exit__(None, None, None)
        return True

    async def one_pass(self) -> None:
        await anyio.lowlevel.checkpoint()


def _awaiting(future: Any) -> Iterator[Any]:
    """Yields the tasks of asyncio that wait for a future, or gather it with others.

    Nothing public tells of them before Python 3.14, so it is told by what the future calls when it
    is done. Where a loop keeps that elsewhere, it seems that nobody waits.
    """
    for callback, *_ in getattr(future, "_callbacks", None) or ():
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, asyncio.Task):
            yield owner
        elif isinstance(owner, asyncio.TaskGroup):
            yield getattr(owner, "_parent_task", None)
        elif getattr(callback, "__module__", "") == "asyncio.tasks":  # of gather(), or of shield()
            for name, cell in zip(
                callback.__code__.co_freevars, callback.__closure__ or (), strict=True
            ):
                if name == "outer":
                    yield from _awaiting(cell.cell_contents)
