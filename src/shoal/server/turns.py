"""Turns: of the connections that have something to handle at the same moment, few go on at once.

To parse what an HTTP/2 client sends takes a tenth of a millisecond a frame, and each connection has
a task for it. A thousand such tasks that are ready in one pass of the event loop would hold up all
others for a tenth of a second.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskGroup

# In units of what a small message of a WebSocket costs.
_LARGE: Final = 16
_AT_ONCE: Final = 4 * _LARGE
# Turns that are taken with so much time between them are not taken at once.
_APART_S: Final = 0.001


class Turns:
    """Calls functions in the order in which they come: a few at once, others in later passes.

    Args:
        tasks: Where the task runs that calls those that must wait. There is none while none does.
        now: The event loop's clock.
    """

    def __init__(self, tasks: TaskGroup, now: Callable[[], float]) -> None:
        self._tasks = tasks
        self._now = now
        self._waiting: deque[tuple[Callable[[], object], int]] = deque()
        self._taken = 0
        self._since = now()

    def take(self, turn: Callable[[], object], cost: int = _LARGE) -> None:
        """Calls a function, which must not raise: now, or when those before it have had theirs.

        Args:
            turn: The function.
            cost: How much there is to handle: 1 for a small message, at most 16, the default.
        """
        if not self._waiting:
            now = self._now()
            if now - self._since > _APART_S:
                self._since = now
                self._taken = 0
            if self._taken < _AT_ONCE:
                self._taken += cost
                turn()
                return
            self._tasks.start_soon(self._run)
        self._waiting.append((turn, cost))

    async def _run(self) -> None:
        waiting = self._waiting
        while waiting:
            await anyio.lowlevel.checkpoint()
            taken = 0
            # One stays until it was called, so that what it takes waits behind the others.
            for _ in range(len(waiting)):
                turn, cost = waiting[0]
                turn()
                waiting.popleft()
                taken += cost
                if taken >= _AT_ONCE:
                    break
