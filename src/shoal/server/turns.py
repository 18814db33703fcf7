"""Turns: if many connections have input at the same moment, only a few handle it at once.

Parsing a frame of HTTP/2 takes a tenth of a millisecond, and each connection has a task for it. A
thousand such tasks that are ready in one pass of the event loop would hold up all other tasks for a
tenth of a second.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskGroup

# In units of the cost of a small WebSocket message.
_LARGE: Final = 16
_AT_ONCE: Final = 4 * _LARGE
# Turns with more time than this between them do not count as taken at once.
_APART_S: Final = 0.001


class Turns:
    """Calls functions in order: a few at once, the others in later passes of the event loop."""

    def __init__(self, tasks: TaskGroup, now: Callable[[], float]) -> None:
        self._tasks = tasks
        self._now = now
        self._waiting: deque[tuple[Callable[[], object], int]] = deque()
        self._taken = 0
        self._since = now()

    def take(self, turn: Callable[[], object], cost: int = _LARGE) -> None:
        """Calls a function, which must not raise, now or in a later pass; cost: 1 to 16."""
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
            # A turn stays in the queue until it was called, so that turns that it takes wait
            # behind the others.
            for _ in range(len(waiting)):
                turn, cost = waiting[0]
                turn()
                waiting.popleft()
                taken += cost
                if taken >= _AT_ONCE:
                    break
