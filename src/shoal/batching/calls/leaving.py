"""Calls with a caller that may leave without being cancelled, such as the client of a server.

A caller that leaves ends its call: a queued request is removed before the handler gets it, the
result of a request in the handler is discarded, and a stream frees its slot.

The server of the caller reports its leaving with a callback. So the caller's task waits for its
result as any caller does, and the callback ends its request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.batching.calls.intake import Intake
    from shoal.core.request import Request

    WhenLeft = Callable[[Callable[[], object] | None], object]
    """Sets the function that is called once when the caller leaves, at once if it has left already;
    None for none."""

T = TypeVar("T")


class CallerLeft(Exception):
    """The caller left before its call ended; the call was cancelled."""


def leave(intake: Intake, request: Request) -> None:
    """Ends a request that its caller has left, and wakes the caller's task if it waits."""
    intake.abandon(request)
    if request.waiter is not None:
        intake.parking.wake(request.waiter)


async def run_unless_left(when_left: WhenLeft, run: Callable[[], Awaitable[T]]) -> T:
    """Runs a function; cancels it and raises `CallerLeft` if its caller leaves first."""
    with anyio.CancelScope() as scope:
        when_left(scope.cancel)
        try:
            return await run()
        finally:
            when_left(None)
    raise CallerLeft("the caller left before its call had ended")
