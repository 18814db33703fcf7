"""The calls that a thread blocks on.

A thread can't be interrupted, but the calls that it waits for can be cancelled. When its work is
cancelled, the calls that it makes for that work end, and the thread continues with an error.
"""

from __future__ import annotations

import builtins
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from shoal.loops.event_loop import EventLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class WorkCancelled(Exception):
    """The work that made a blocking call was cancelled."""


class InnerCalls:
    """The blocking calls of one piece of work; used from its thread and from the event loop."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self._lock = threading.Lock()
        self._waiting: set[Callable[[], object]] = set()

    @contextmanager
    def waiting(self, give_up: Callable[[], object]) -> Generator[None]:
        """Registers the call that the block waits for; `give_up` cancels it."""
        with self._lock:
            self._waiting.add(give_up)
            is_cancelled = self.is_cancelled
        if is_cancelled:
            give_up()
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(give_up)

    def cancel(self) -> None:
        with self._lock:
            self.is_cancelled = True
            waiting = tuple(self._waiting)
        for give_up in waiting:
            give_up()


# The calls of the work that this thread does; in the event loop, of the work that is started.
inner_calls: Final[ContextVar[InnerCalls]] = ContextVar("shoal.inner_calls")


def check_may_block(instead: str, loop_thread_id: int | None = None) -> None:
    """Raises RuntimeError in a thread that runs an event loop, with the code to write there."""
    is_its_own = threading.get_ident() == loop_thread_id
    if is_its_own or (EventLoop.is_in_thread() and not hasattr(builtins, "get_ipython")):
        raise RuntimeError(
            f"blocking is for threads, and this one runs an event loop; write:\n    {instead}"
        )
