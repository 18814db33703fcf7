"""Waiting and waking of tasks in an event loop.

The problem: a caller waits once, for one result, and is woken by a task that has many callers to
wake. `anyio.Event` and memory channels do that, but each costs more than all the rest of a call (a
channel per request was measured at four times a bare wait). So callers wait on the loop's own
primitive: on trio with `trio.lowlevel.wait_task_rescheduled`, on asyncio on a future.

A waiter is such a one-shot wait: created by the task that will wait, awaited once, woken at most
once. It carries no value; the result is stored on the request before the waiter is woken. On
asyncio the waiter is the future itself, since any wrapper in Python costs more than the future.
Each event loop has its implementation in a module of its own; `this_loop` returns the one in use.

The loop does not report a cancelled wait. The caller's own ``except`` does that when it runs next;
code that takes requests before then checks `Parking.departed`. On trio the abort function forgets
the task: a task that is rescheduled twice, by a wake after a cancellation in the same tick, crashes
the whole run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    import trio

    from shoal.core.request import Request


Scope: TypeAlias = "anyio.CancelScope | trio.CancelScope"
"""A cancel scope of anyio or trio; both have the same interface."""


class Parked(Protocol):
    """Waits for a request, or for the next item in the buffer of a stream."""

    waiter: Any


class Parking(ABC):
    """Waiting and waking of the tasks of one event loop."""

    # anyio's name of the event loop: "trio" or "asyncio".
    name: Literal["trio", "asyncio"]
    # The event loop's clock, in seconds.
    now: Callable[[], float]
    # Whether that clock counts milliseconds, as uvloop's does.
    is_coarse = False
    # Creates a waiter for the task that calls it.
    new_waiter: Callable[[], Awaitable[Any]]
    # Creates a cancel scope; the loop's own if anyio's would only wrap it.
    new_scope: Callable[[], Scope]
    # Lets other tasks run, and checks for cancellation.
    checkpoint: Callable[[], Awaitable[None]]

    @abstractmethod
    def park(self, parked: Parked) -> Awaitable[Any]:
        """Sets the waiter of the calling task; returns an awaitable to be awaited at once."""
        # Equivalent to awaiting `new_waiter`. On trio that costs 0.1 microseconds more, 5% of a
        # call, since an object that is not a coroutine is awaited with two more calls.

    def task_here(self) -> Any:
        """Returns the calling task of this loop if it can be cancelled without a scope, or None."""
        return None

    @abstractmethod
    def wake(self, waiter: Any) -> None:
        """Wakes the task of a waiter; does nothing if it was woken or its wait cancelled."""

    @abstractmethod
    def wake_all(self, parked: Iterable[Parked]) -> None: ...

    @abstractmethod
    def answer_all(self, requests: Sequence[Request], values: Sequence[Any]) -> None:
        """Ends running requests with their results, and wakes their callers."""
        # Two loops, one for both event loops, would take 3% longer for a call on trio.

    @abstractmethod
    def is_spent(self, waiter: Any) -> bool: ...

    @abstractmethod
    def departed(self, requests: Iterable[Request]) -> list[Request]:
        """Returns the requests with callers that were cancelled but have not run since."""

    @abstractmethod
    def seems_here(self) -> bool:
        """Returns whether the caller seems to run in this event loop."""
        # Also True in a loop that a task of this one runs. A fifth of the cost of
        # `EventLoop.is_here`.

    @abstractmethod
    def is_waited_for_by(self, coroutines: Collection[object]) -> bool:
        """Returns whether a task with one of these coroutines certainly waits for the caller."""
        # That is certain for the task itself and for tasks in its nurseries; on asyncio, which has
        # tasks outside of nurseries, also for a task that it awaits or gathers now.

    @abstractmethod
    def is_in_task(self) -> bool:
        """Returns whether the caller runs in a task, not in a coroutine that is being discarded."""

    def is_cancelled(self) -> bool:
        return anyio.current_effective_deadline() == -math.inf

    @abstractmethod
    def uncancel(self) -> None:
        """Undoes a cancellation of the task that did not come from a cancel scope."""

    @abstractmethod
    def innermost_scope(self) -> Callable[[], object]:
        """Returns an identity of the calling task's innermost scope, to be compared."""

    @abstractmethod
    def leave_scopes_in(self, scope: Scope) -> bool:
        """Leaves the scopes that user code has entered inside of `scope` and not left."""
        # Returns whether there were any that the loop itself does not report when `scope` is left.

    async def one_pass(self) -> None:
        """Lets each task that is ready run once; a checkpoint."""
        await self.checkpoint()
        await self.rest_of_pass()

    @abstractmethod
    async def rest_of_pass(self) -> bool:
        """Lets tasks run that were ready before the last checkpoint; returns if any are left."""
        # It may return True although none are left.

    @abstractmethod
    def call_when_readable(
        self, fd: int, report: Callable[[], object]
    ) -> Callable[[], object] | None:
        """Makes the loop call a function, in no task, whenever a file descriptor is readable."""
        # For a descriptor that is read often this is cheaper than a waiting task: it is registered
        # once, and the function may wake the task that needs the data. The returned function ends
        # this; call it before closing the descriptor. None if only tasks can wait for descriptors
        # in this loop.

    @abstractmethod
    async def watch_readable(self, fd: int, report: Callable[[], object]) -> None: ...


class Bell:
    """Wakes one task that waits often, and any others that wait for the next change."""

    __slots__ = ("_others", "_parking", "rings", "waiter")

    def __init__(self, parking: Parking) -> None:
        self._parking = parking
        # The waiter of the last wait; after that wait, waking it does nothing.
        self.waiter: Any = None
        self._others: dict[Any, None] = {}  # the waiters of `change`
        self.rings = 0  # how often it has rung

    def ring(self) -> None:
        self.rings += 1
        if self.waiter is not None:
            self._parking.wake(self.waiter)
        for waiter in self._others:
            self._parking.wake(waiter)

    def wait(self, until: float) -> Awaitable[Any]:
        """Returns an awaitable for `ring` or a time (infinity for no limit); one task at a time."""
        return self._parking.park(self) if until == math.inf else self._wait_until(until)

    async def _wait_until(self, until: float) -> None:
        scope = self._parking.new_scope()
        scope.deadline = until
        with scope:
            await self._parking.park(self)

    async def change(self) -> None:
        """Waits for `ring`, in any number of tasks."""
        waiter: Any = self._parking.new_waiter()
        self._others[waiter] = None
        try:
            await waiter
        finally:
            del self._others[waiter]
