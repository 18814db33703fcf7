"""The steps of a plain generator, which run in a replica's threads, and what is done meanwhile."""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Stepping:
    """The steps of one run of a plain generator.

    To pass on the items of a step may take longer than to make them, and the next step need not
    wait for that. But a step that computes in Python would hold up each of the items in turn, since
    Python runs one thread at a time. So it is done beside steps that wait, if it is worth that.

    Args:
        began: Called in the event loop once the next step was given to its thread.

    Attributes:
        began: As above.
        waits: Whether the last step has waited, for a device or for another program, for more than
            half of its time.
    """

    __slots__ = ("began", "waits")

    def __init__(self, began: Callable[[], object]) -> None:
        self.began = began
        self.waits = False

    def take(self, step: Callable[[], T]) -> T:
        """Runs a step in its thread, which calls this."""
        since, used = time.perf_counter(), time.thread_time()
        try:
            return step()
        finally:
            self.waits = 2 * (time.thread_time() - used) < time.perf_counter() - since


running_steps: Final[ContextVar[Stepping]] = ContextVar("shoal.running_steps")
"""What takes the steps of the run in this context, if a replica in this process runs them."""
