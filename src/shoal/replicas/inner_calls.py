"""The calls that plain code in a thread waits for while it does somebody's work.

A thread can't be interrupted, but what it waits for can be given up; so when nobody wants its work
any more, the calls that it makes for that work end, and the thread goes on with an error.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class InnerCalls:
    """The calls that one piece of work waits for; used from its thread and from the event loop.

    Attributes:
        is_cancelled: Whether the work is not wanted any more.
    """

    def __init__(self) -> None:
        self.is_cancelled = False
        self._lock = Lock()
        self._waiting: set[Callable[[], object]] = set()

    @contextmanager
    def waiting(self, give_up: Callable[[], object]) -> Generator[None]:
        """Notes how the call is given up that is waited for in the block."""
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
        """Gives them up, and those that are begun from now on."""
        with self._lock:
            self.is_cancelled = True
            waiting = tuple(self._waiting)
        for give_up in waiting:
            give_up()


inner_calls: Final[ContextVar[InnerCalls]] = ContextVar("shoal.inner_calls")
"""Those of the work that this thread does."""


@contextmanager
def waited_for(calls: InnerCalls | None = None) -> Generator[InnerCalls]:
    """Notes the calls that plain code makes which is begun in the block."""
    calls = InnerCalls() if calls is None else calls
    token = inner_calls.set(calls)
    try:
        yield calls
    finally:
        inner_calls.reset(token)
