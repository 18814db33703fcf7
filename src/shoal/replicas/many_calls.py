"""Many calls at once, whose results are one list: the `map` of handles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from shoal.batching.calls.mapping import all_results

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from shoal.batching.calls.groups import Outcome


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
    outcomes: list[Outcome] = [(None, None)] * len(arguments)

    async def make_calls() -> None:
        for number, args in waiting:
            try:
                outcomes[number] = await call(*args), None
            except Exception as error:
                outcomes[number] = None, error

    await anyio.lowlevel.checkpoint()
    async with anyio.create_task_group() as tasks:
        for _ in arguments[:max_concurrent]:
            tasks.start_soon(make_calls)
    return all_results(outcomes, return_exceptions=return_exceptions)
