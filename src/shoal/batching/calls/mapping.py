"""Many calls whose caller waits once: those of `map`, and the parts of a large item."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from shoal.batching.calls.groups import let_go_of_errors
from shoal.failures.exceptions import own_copy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.batching.calls.groups import GroupWaiter, Outcome, Part, Splitting
    from shoal.batching.calls.intake import Intake
    from shoal.core.request import Request


def enter_parts(intake: Intake, parts: Sequence[Part]) -> list[Request]:
    """Adds the requests of parts to an intake, with one waiter."""
    return intake.enter_group([part.item for part in parts], [part.options for part in parts])


async def wait_for(intake: Intake, requests: Sequence[Request]) -> None:
    """Waits until all have ended, or one part has failed; drops them if it is cancelled."""
    try:
        await requests[0].waiter
    except BaseException:
        for request in requests:
            intake.abandon(request)
        raise
    finally:
        if requests[0].options is not None:  # all have options, or none has
            for request in requests:
                intake.former.overdue.forget(request)


async def map_alike(intake: Intake, items: list[Any], *, return_exceptions: bool) -> list[Any]:
    if not items:
        await anyio.lowlevel.checkpoint()
        return []
    try:
        requests = intake.enter_group(items, None)
    except Exception as error:
        await anyio.lowlevel.checkpoint()
        if return_exceptions:
            return [own_copy(error) for _ in items]
        raise
    await wait_for(intake, requests)
    waiter: GroupWaiter = requests[0].waiter
    if waiter.answered < len(requests):  # some may have failed
        try:
            if return_exceptions:
                return [r.value if r.error is None else r.error for r in requests]
            for request in requests:
                if request.error is not None:
                    raise request.error
        finally:
            let_go_of_errors(requests)
    return [request.value for request in requests]


async def map_calls(
    intake: Intake,
    splitting: Splitting,
    calls: list[list[Part] | Exception],
    *,
    return_exceptions: bool,
) -> list[Any]:
    """Makes calls with one or more parts each; empties `calls`."""
    # A call that can't be made has its error in place of its parts.
    parts = [part for one in calls if isinstance(one, list) for part in one]
    try:
        if not parts:
            await anyio.lowlevel.checkpoint()
            return calls.copy()
        try:
            requests = enter_parts(intake, parts)
        except Exception as error:
            await anyio.lowlevel.checkpoint()
            if return_exceptions:
                return [own_copy(error) if isinstance(one, list) else one for one in calls]
            raise
        await wait_for(intake, requests)
        rest = iter(requests)
        outcomes = [
            splitting.outcome(list(islice(rest, len(one))))
            if isinstance(one, list)
            else (None, one)
            for one in calls
        ]
    finally:
        calls.clear()  # the frame that made it is held by the tracebacks of its errors
    return all_results(outcomes, return_exceptions=return_exceptions)


def all_results(outcomes: list[Outcome], *, return_exceptions: bool) -> list[Any]:
    """Returns results or raises the first error, and empties the list of outcomes."""
    first = next((error for _, error in outcomes if error is not None), None)
    try:
        if first is not None and not return_exceptions:
            raise first
        return [result if error is None else error for result, error in outcomes]
    finally:
        outcomes.clear()  # the tracebacks of errors hold the frames that have it
        del first
