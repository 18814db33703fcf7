"""Cancel scopes of replicas: tasks that end with a replica, and the wait for cancelled work.

Cancelled work that runs elsewhere can't be interrupted. A caller that disconnects never ends a
process, since loading a model costs more than the caller's work. The wait has no limit until the
operator's time limit for the batch has passed.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio

from shoal.batching.current import running_batch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator


class Beside:
    """Runs functions, each in the caller's task, until `end` is called."""

    def __init__(self) -> None:
        # Each task ends through a scope of its own, not with an error, even when its caller is
        # cancelled: on asyncio, anyio keeps the frames of a cancelled task alive through its error,
        # and these would keep a dead replica alive.
        self._scopes: list[anyio.CancelScope] = []
        self._is_over = False

    async def run(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        with anyio.CancelScope(shield=True) as scope:
            self._scopes.append(scope)
            if not self._is_over:
                await function(*args)

    def end(self) -> None:
        """Cancels all functions, also before they begin."""
        self._is_over = True
        for scope in self._scopes:
            scope.cancel()


@contextmanager
def until_overdue(grace_s: float) -> Generator[anyio.CancelScope]:
    """Shields the block until the running batch has been overdue for the grace period."""
    waiting = anyio.CancelScope(shield=True)

    def limit() -> None:
        waiting.deadline = anyio.current_time() + grace_s

    batch = running_batch.get(None)
    if batch is not None:
        batch.on_overdue = limit
        if batch.is_overdue:
            limit()
    try:
        with waiting:
            yield waiting
    finally:
        if batch is not None:
            batch.on_overdue = None
