"""Calls that may hang, such as those of a driver: in a thread that nothing waits for long.

The worker threads of an event loop won't do: a program waits for these when it exits, and they are
few. So each call has a daemon thread of its own.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from shoal.replicas.threads import loop_of_caller

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class BoundedCall(Generic[T]):
    """A call in a thread of its own; the constructor starts it.

    Args:
        function: What is called.
        name: The thread's name.

    Attributes:
        done: Set when it has ended.
        result: What it returned, once it is done.
        error: What it raised, once it is done; None if nothing.
    """

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self.done = anyio.Event()
        self.result: T | None = None
        self.error: Exception | None = None
        self._function = function
        self._soon = loop_of_caller()[1]
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def wait(self, limit_s: float) -> bool:
        """Waits for its end, no longer than so many seconds; returns whether it has ended."""
        with anyio.move_on_after(limit_s):
            await self.done.wait()
        return self.done.is_set()

    def _run(self) -> None:
        try:
            self.result = self._function()
        except Exception as error:
            self.error = error
        self._soon(self.done.set)
