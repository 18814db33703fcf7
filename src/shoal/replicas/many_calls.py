"""Makes many calls at once and lists their results, for `map` of handles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from shoal.batching.calls.groups import all_results

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
    """Returns the results in the order of the arguments; raises the first error in that order."""
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
