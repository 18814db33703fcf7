"""Several calls of one caller that succeed, fail and end independently of each other."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint

from shoal.batching.calls.groups import GroupWaiter, Outcome, all_results, clear_errors, outcome_of
from shoal.core.request import UNDER_WAY, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.batching.calls.intake import Intake


async def call_apart(
    intake: Intake,
    makers: Iterable[Callable[[GroupWaiter], Request]],
    begun: Callable[[Callable[[int], None]], object],
    *,
    return_exceptions: bool,
) -> list[Any]:
    """Makes calls and waits for all; raises the first error, or returns it in its place."""
    # Each maker makes the request of one call. `begun` is called once the calls are made, with the
    # function that ends one.
    intake.check_loop()
    # Its requests are counted below; the caller does not wait before.
    waiter = GroupWaiter(intake.parking, sys.maxsize)
    # A call that can't be made has its error here.
    made: list[Request | Exception] = []
    requests: list[Request] = []

    def drop_all() -> None:
        for request in requests:
            intake.abandon(request)

    def leave(place: int) -> None:
        """Ends the call at a place, which gets None as its result."""
        request = made[place]
        if isinstance(request, Request) and request.state in UNDER_WAY:
            intake.abandon(request)
            request.value = None
            waiter.wake()

    try:
        try:
            for make in makers:
                try:
                    requests.append(make(waiter))
                    made.append(requests[-1])
                except Exception as error:
                    made.append(error)
                    if not return_exceptions:
                        break
            if not return_exceptions and len(requests) < len(made):
                drop_all()  # before others run
                await checkpoint()
                raise next(one for one in made if isinstance(one, Exception))
            begun(leave)
            waiter.left = sum([request.state in UNDER_WAY for request in requests])
            await (waiter if waiter.left else checkpoint())
        except BaseException:
            drop_all()
            raise
        outcomes: list[Outcome] = [
            (None, one) if isinstance(one, Exception) else outcome_of([one], None) for one in made
        ]
        return all_results(outcomes, return_exceptions=return_exceptions)
    finally:
        made.clear()  # the traceback of an error holds this frame
        clear_errors(requests)
        for request in requests:
            intake.overdue.forget(request.options)
