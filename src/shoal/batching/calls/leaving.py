"""Calls whose caller may leave otherwise than by being cancelled, such as the client of a server.

A caller that leaves ends its call: a queued request is removed before the handler gets it, the
result of a request in the handler is discarded, and a stream frees its slot.

The server of the caller tells by a callback that it has left. So the caller's task waits for its
result as any caller does, and the callback ends its request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.batching.calls.intake import Intake
    from shoal.core.request import Request, RequestOptions

    Enter = Callable[[Any, RequestOptions | None, Any], Request]
    """Makes a request with a waiter, or with one of its own for None; see `Intake.enter`."""
    WhenLeft = Callable[[Callable[[], object] | None], object]
    """Sets the function that is called once when the caller leaves, at once if it has left already;
    None for none."""

T = TypeVar("T")
FINISHED = State.FINISHED
_ALIVE: Final = (State.QUEUED, State.PARKED, State.RUNNING)


class CallerLeft(Exception):
    """The caller has left before its call had ended; the call was cancelled."""


async def call_unless_left(
    intake: Intake, enter: Enter, item: Any, options: RequestOptions | None, when_left: WhenLeft
) -> Any:
    """Makes a call with one result, and cancels it if its caller leaves first.

    Args:
        intake: The queue.
        enter: Makes the request.
        item: The handler's item.
        options: The options of the request; None if it needs none.
        when_left: How to learn that the caller has left.

    Returns:
        The result.

    Raises:
        CallerLeft: The caller left.
        Exception: As for any call.

    Cancellation: The call is cancelled.
    """
    request = enter(item, options, None)
    is_waiting = False

    def leave() -> None:
        intake.abandon(request)
        if is_waiting:
            intake.parking.wake(request.waiter)

    when_left(leave)  # calls it at once if the caller has left already
    try:
        if request.state in _ALIVE:
            is_waiting = True
            await intake.park(request)
    except BaseException:
        intake.abandon(request)
        raise
    finally:
        when_left(None)
        if request.options is not None:
            intake.former.overdue.forget(request)
    if request.state is FINISHED:
        return request.value
    if request.error is None:
        intake.abandon(request)
        raise CallerLeft("the caller left before its call was answered")
    try:
        raise request.error
    finally:  # the error's traceback refers to this frame; this breaks the cycle
        request.error = None


async def run_unless_left(when_left: WhenLeft, run: Callable[[], Awaitable[T]]) -> T:
    """Runs a function, and cancels it if its caller leaves first.

    Args:
        when_left: How to learn that the caller has left.
        run: The function.

    Returns:
        What `run` returned.

    Raises:
        CallerLeft: The caller left, and `run` was cancelled.
        Exception: What `run` raised.
    """
    with anyio.CancelScope() as scope:
        when_left(scope.cancel)
        try:
            return await run()
        finally:
            when_left(None)
    raise CallerLeft("the caller left before its call had ended")
