"""The calls that plain code in a thread blocks on, and their cancellation.

A thread can't be interrupted, but the calls that it waits for can be cancelled. So when its work is
cancelled, the calls that it makes for that work end, and the thread continues with an error.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class InnerCalls:
    """The calls that one piece of work waits for. Used from its thread and from the event loop.

    Attributes:
        is_cancelled: Whether the work was cancelled.
    """

    def __init__(self) -> None:
        self.is_cancelled = False
        self._lock = Lock()
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
        """Cancels the calls that are waited for, and all later ones."""
        with self._lock:
            self.is_cancelled = True
            waiting = tuple(self._waiting)
        for give_up in waiting:
            give_up()


inner_calls: Final[ContextVar[InnerCalls]] = ContextVar("shoal.inner_calls")
"""The calls of the work that this thread does."""


@contextmanager
def waited_for(calls: InnerCalls | None = None) -> Generator[InnerCalls]:
    """Collects the calls of the plain code that is started in the block."""
    calls = InnerCalls() if calls is None else calls
    token = inner_calls.set(calls)
    try:
        yield calls
    finally:
        inner_calls.reset(token)
