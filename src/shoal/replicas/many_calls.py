"""Many calls at once, whose results are one list: the `map` of handles and of the HTTP client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence


async def call_each(
    call: Callable[..., Awaitable[Any]],
    arguments: Sequence[tuple[Any, ...]],
    *,
    max_concurrent: int | None = None,
    return_exceptions: bool,
) -> list[Any]:
    """Makes calls at once, and waits until all have ended.

    Args:
        call: Makes one call.
        arguments: The arguments of each.
        max_concurrent: The largest number of calls at a time; None for no limit.
        return_exceptions: Whether errors are returned in the list instead of being raised.

    Returns:
        The results, in the order of the arguments.

    Raises:
        Exception: The first error in the order of the arguments.

    Cancellation: all of the calls are cancelled. Checkpoint: always.
    """
    waiting = iter(enumerate(arguments))
    results: list[Any] = [None] * len(arguments)
    failed: list[int] = []

    async def make_calls() -> None:
        for number, args in waiting:
            try:
                results[number] = await call(*args)
            except Exception as error:
                results[number] = error
                failed.append(number)

    await anyio.lowlevel.checkpoint()
    async with anyio.create_task_group() as tasks:
        for _ in arguments[:max_concurrent]:
            tasks.start_soon(make_calls)
    return all_results(results, failed, return_exceptions=return_exceptions)


def all_results(
    results: list[Any], failed: Collection[int], *, return_exceptions: bool
) -> list[Any]:
    """Returns a copy of the results of many calls, and empties the list.

    Args:
        results: The result or the error of each call.
        failed: The numbers of the calls that failed.
        return_exceptions: Whether errors are returned in the list instead of being raised.

    Raises:
        Exception: The first error in the order of the calls.
    """
    try:
        if failed and not return_exceptions:
            raise results[min(failed)]
        return results.copy()
    finally:
        results.clear()  # the tracebacks of its errors hold the frames that have it
