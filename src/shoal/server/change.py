"""A condition that any number of tasks wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.server.shared import Shared


class Change:
    """Wakes tasks; each task then checks for itself whether its condition holds."""

    __slots__ = ("_shared", "_waiters")

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._waiters: list[Any] = []

    def signal(self) -> None:
        for waiter in self._waiters:
            self._shared.wake(waiter)

    async def wait(self) -> None:
        waiter = self._shared.new_waiter()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)
