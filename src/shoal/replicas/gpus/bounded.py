"""Calls that may hang, such as a driver's, each in a daemon thread of its own.

The worker threads of an event loop are unsuitable: a program waits for them when it exits, and
their number is limited.
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
    """A call in a thread of its own; the constructor starts it."""

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self.done = anyio.Event()
        # These are valid when the call is done.
        self.result: T | None = None
        self.error: Exception | None = None
        self._function = function
        self._soon = loop_of_caller()[1]
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def wait(self, limit_s: float) -> bool:
        """Returns whether the call ended within the limit."""
        with anyio.move_on_after(limit_s):
            await self.done.wait()
        return self.done.is_set()

    def _run(self) -> None:
        try:
            self.result = self._function()
        except Exception as error:
            self.error = error
        self._soon(self.done.set)
