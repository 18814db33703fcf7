"""Tasks that run beside a replica and end with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Beside:
    """Runs functions, each in a task of the caller's, until `end` is called.

    On asyncio, anyio keeps the frames of a cancelled task alive through its error, and these would
    keep a dead replica alive. So each task ends by a scope of its own, without an error.
    """

    def __init__(self) -> None:
        self._scopes: list[anyio.CancelScope] = []
        self._is_over = False

    async def run(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Calls a function, and cancels it at the end."""
        with anyio.CancelScope() as scope:
            self._scopes.append(scope)
            if not self._is_over:
                await function(*args)

    def end(self) -> None:
        """Cancels all functions, including those that have not begun."""
        self._is_over = True
        for scope in self._scopes:
            scope.cancel()
