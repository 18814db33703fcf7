"""Runs tasks beside a replica that end with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Beside:
    """Runs functions, each in the caller's task, until `end` is called."""

    def __init__(self) -> None:
        # Each task ends through a scope of its own, not with an error: on asyncio, anyio keeps the
        # frames of a cancelled task alive through its error, and these would keep a dead replica
        # alive.
        self._scopes: list[anyio.CancelScope] = []
        self._is_over = False

    async def run(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        with anyio.CancelScope() as scope:
            self._scopes.append(scope)
            if not self._is_over:
                await function(*args)

    def end(self) -> None:
        """Cancels all functions, also before they begin."""
        self._is_over = True
        for scope in self._scopes:
            scope.cancel()
