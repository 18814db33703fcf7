"""Where a task waits in its event loop.

The problem: a caller waits for one thing, once, and is woken by another task that has many callers
to wake. `anyio.Event` does that, and a memory channel does it too, but each costs more than all the
rest of a call (a channel a request was measured at four times a bare park). So callers park on the
loop's own primitive: on trio by `trio.lowlevel.wait_task_rescheduled`, on asyncio on a future.

A cell is that one-shot wait: made by the task that will wait, awaited once, woken at most once. It
carries no value; the result is on the request by the time the cell is woken. On asyncio the cell is
the future itself, since any wrapper in Python costs more than the future does. Each loop's way is
in a file of its own; `this_loop` has the one that runs.

A cancelled wait is told to nobody by the loop. The caller's own ``except`` does that at its next
turn, and whoever takes requests before that turn asks `Parking.departed`. On trio the abort
function forgets the task: a task that is rescheduled twice, by a wake after a cancellation in the
same tick, takes the whole run down.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    import trio

    from shoal.core.request import Request

Scope: TypeAlias = "anyio.CancelScope | trio.CancelScope"
"""A cancel scope of either making; they have the same face."""


class SharedWaiter(Protocol):
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
        name: What anyio calls the event loop: "trio" or "asyncio".
        now: The event loop's clock: a function that returns the time in seconds.
        new_waiter: Makes a cell for the task that calls it.
        new_scope: Makes a cancel scope; the loop's own where anyio's would only wrap it.
        soon: Has a function called in the event loop, soon; from any thread, and at any time.
            It raises `RuntimeError` once the loop has ended.
    """

    name: Literal["trio", "asyncio"]
    now: Callable[[], float]
    soon: Callable[..., object]
    new_waiter: Callable[[], Awaitable[Any]]
    new_scope: Callable[[], Scope]

    @abstractmethod
    def wake(self, waiter: Any) -> None:
        """Wakes whoever waits on the cell; does nothing if it was woken or its wait cancelled."""

    @abstractmethod
    def wake_all(self, requests: Iterable[Request]) -> None:
        """Wakes the callers of all these requests."""

    @abstractmethod
    def is_spent(self, waiter: Any) -> bool:
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
