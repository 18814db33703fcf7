"""Calls whose caller may leave otherwise than by being cancelled, such as the client of a server.

A caller that leaves ends its call: a queued request is removed before the handler gets it, the
result of a request in the handler is discarded, and a stream frees its slot.

A `Departure` tells that the caller has left, in one of two ways. The better one is a callback: the
caller's task waits for its result as any caller does, and the callback ends its request. A server
that offers no callback is asked by awaiting a function that returns when the caller has left. For a
call with one result the caller's own task awaits that, in a cancel scope which the request's waiter
cancels when the result is there. A second task that watches while the first one waits was measured
at 63 microseconds a request on trio, against 18 for the scope. A stream waits many times for each
time that it is set up, so it has a watching task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.batching.calls.intake import Intake
    from shoal.core.request import Request, RequestOptions

    Enter = Callable[[Any, RequestOptions | None, Any], Request]
    """Makes a request with a waiter, or with one of its own for None; see `Intake.enter`."""

T = TypeVar("T")
FINISHED = State.FINISHED
_ALIVE: Final = (State.QUEUED, State.PARKED, State.RUNNING)


class CallerLeft(Exception):
    """The caller has left before its call had ended; the call was cancelled."""


@dataclass(slots=True)
class Departure:
    """How to learn that a caller has left.

    Attributes:
        wait: Returns when the caller has left. It is cancelled when the call has ended.
        watch: Sets the function that is called once when the caller leaves, at once if it has left
            already; None for none. None if the caller's server does not offer that.
    """

    wait: Callable[[], Awaitable[None]]
    watch: Callable[[Callable[[], object] | None], object] | None = None


class _ScopeWaiter:
    """A request's waiter that cancels a scope, to wake a task which awaits something else."""

    __slots__ = ("_scope",)

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope = scope

    def wake(self) -> None:
        """Wakes the caller, once the request has ended."""
        self._scope.cancel()

    def done(self) -> bool:
        """Returns False: a caller that leaves abandons its request itself."""
        return False


async def call_unless_left(
    intake: Intake, enter: Enter, item: Any, options: RequestOptions | None, departure: Departure
) -> Any:
    """Makes a call with one result, and cancels it if its caller leaves first.

    Args:
        intake: The queue.
        enter: Makes the request.
        item: The handler's item.
        options: The options of the request; None if it needs none.
        departure: How to learn that the caller has left.

    Returns:
        The result.

    Raises:
        CallerLeft: The caller left.
        Exception: As for any call.

    Cancellation: The call is cancelled.
    """
    watch = departure.watch
    if watch is None:
        request = await _finished_in_scope(intake, enter, item, options, departure)
    else:
        request = enter(item, options, None)
        is_waiting = False

        def leave() -> None:
            intake.abandon(request)
            if is_waiting:
                intake.parking.wake(request.waiter)

        watch(leave)  # calls it at once if the caller has left already
        try:
            if request.state in _ALIVE:
                is_waiting = True
                await intake.park(request)
        except BaseException:
            intake.abandon(request)
            raise
        finally:
            watch(None)
            if request.options is not None:
                intake.former.overdue.forget(request)
    return _result_of(request, intake)


def _result_of(request: Request, intake: Intake) -> Any:
    """Returns the result of a request, or raises its error; `CallerLeft` if it has neither."""
    if request.state is FINISHED:
        return request.value
    if request.error is None:
        intake.abandon(request)
        raise CallerLeft("the caller left before its call was answered")
    try:
        raise request.error
    finally:  # the error's traceback refers to this frame; this breaks the cycle
        request.error = None


async def _finished_in_scope(
    intake: Intake, enter: Enter, item: Any, options: RequestOptions | None, departure: Departure
) -> Request:
    """Makes a request, and returns it when it has ended or its caller has left."""
    if not intake.parking.seems_here():
        raise intake.refusals.elsewhere()
    scope = anyio.CancelScope()
    waiter = _ScopeWaiter(scope)
    request = enter(item, options, waiter)
    if request.state not in _ALIVE:
        waiter.wake()
    try:
        with scope:
            await departure.wait()
    except BaseException:
        intake.abandon(request)
        raise
    finally:
        intake.former.overdue.forget(request)
    return request


async def run_unless_left(departure: Departure, run: Callable[[], Awaitable[T]]) -> T:
    """Runs a function, and cancels it if its caller leaves first.

    Args:
        departure: How to learn that the caller has left.
        run: The function.

    Returns:
        What `run` returned.

    Raises:
        CallerLeft: The caller left, and `run` was cancelled.
        Exception: What `run` raised, not in a group.
    """
    if departure.watch is not None:
        with anyio.CancelScope() as scope:
            departure.watch(scope.cancel)
            try:
                return await run()
            finally:
                departure.watch(None)
        raise CallerLeft("the caller left before its call had ended")
    return await _run_watched(departure, run)


async def _run_watched(departure: Departure, run: Callable[[], Awaitable[T]]) -> T:
    """Runs a function beside a task that watches whether the caller leaves."""
    results: list[T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            await departure.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            results.append(await run())
        except Exception as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        try:
            raise failure
        finally:  # as above
            failure = None
    if not results:
        raise CallerLeft("the caller left before its call had ended")
    return results[0]
