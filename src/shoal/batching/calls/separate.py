"""Several calls of one caller that succeed, fail and end independently of each other."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint

from shoal.batching.calls.groups import GroupWaiter, Outcome, all_results, clear_errors, outcome_of
from shoal.core.request import UNDER_WAY, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.batching.calls.intake import Intake
    from shoal.core.request import RequestOptions


class SeparateCalls:
    # `enter` adds the request of one call, like `Intake.enter`.

    def __init__(self, intake: Intake, enter: Callable[..., Request]) -> None:
        intake.check_loop()
        self._intake = intake
        self._enter = enter
        # Counted in `outcomes`; the caller does not wait before.
        self._waiter = GroupWaiter(intake.parking, sys.maxsize)
        # A call that can't be made has its error here.
        self._made: list[Request | Exception] = []

    def enter(self, item: Any, options_of: Callable[[Any], RequestOptions | None]) -> bool:
        try:
            self._made.append(self._enter(item, options_of(item), self._waiter))
        except Exception as error:
            self._made.append(error)
            return False
        return True

    def leave(self, place: int) -> None:
        """Ends the call at a place, which gets None as its result."""
        request = self._made[place]
        if isinstance(request, Request) and request.state in UNDER_WAY:
            self._intake.abandon(request)
            request.value = None
            self._waiter.wake()

    async def outcomes(
        self,
        begun: Callable[[Callable[[int], None]], object] | None = None,
        *,
        return_exceptions: bool = True,
    ) -> list[Any]:
        """Waits for all calls; raises the first error, or returns it in its place."""
        # `begun` is called once the calls are made, with the function that ends one: `leave`.
        made = self._made
        requests = [one for one in made if isinstance(one, Request)]
        try:
            if not return_exceptions and len(requests) < len(made):
                self._drop(requests)
                await checkpoint()
                raise next(one for one in made if isinstance(one, Exception))
            try:
                if begun is not None:
                    begun(self.leave)
                self._waiter.left = sum([request.state in UNDER_WAY for request in requests])
                await (self._waiter if self._waiter.left else checkpoint())
            except BaseException:
                self._drop(requests)
                raise
            outcomes: list[Outcome] = [
                (None, one) if isinstance(one, Exception) else outcome_of([one], None)
                for one in made
            ]
            return all_results(outcomes, return_exceptions=return_exceptions)
        finally:
            made.clear()  # the traceback of an error holds this frame
            clear_errors(requests)
            for request in requests:
                self._intake.former.overdue.forget(request)

    def _drop(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._intake.abandon(request)
