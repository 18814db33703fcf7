"""The steps of a plain generator, which run in a replica's threads, and what is done meanwhile.

To pass on the items of a step may take longer than to make them, so the next step runs meanwhile.
If the event loop would ask for that step in any case, its thread does not wait to be asked, and
goes on by itself while the loop hands out the last step.

A step that computes in Python would hold up each of the items in turn, since Python runs one thread
at a time. So both are done only beside steps that wait for a device or another program.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable


class Stepping:
    """The steps of one run of a plain generator."""

    __slots__ = ("_wants_more", "began", "has_room", "waits")

    def __init__(
        self,
        began: Callable[[], object] = lambda: None,
        wants_more: Callable[[list[Any]], bool] = lambda _: False,
    ) -> None:
        # Called in the event loop once the next step was given to its thread, or has begun.
        self.began = began
        # Whether the last step waited for more than half of its time, for a device or a program.
        self.waits = False
        # Whether each reader has room for two more steps. The event loop sets it after each step;
        # it permits one step to begin before the one in front of it was handed out.
        self.has_room = False
        self._wants_more = wants_more

    def take(self, step: Callable[[], Any]) -> tuple[Any, bool]:
        """Runs a step in its thread; returns its value, and whether the next may begin early."""
        # Nothing here keeps that, since a thread of a killed replica may still run a step while the
        # batch runs again on another replica.
        since, used = time.perf_counter(), time.thread_time()
        try:
            slots = step()
        finally:
            self.waits = 2 * (time.thread_time() - used) < time.perf_counter() - since
        may_go_on = False
        if self.waits and self.has_room:
            self.has_room = False
            if type(slots) in (list, tuple):
                slots = list(slots)  # the generator may change its own in the next step
                may_go_on = self._wants_more(slots)
        return slots, may_go_on


running_steps: Final[ContextVar[Stepping]] = ContextVar("shoal.running_steps")
"""What takes the steps of the run in this context, if a replica in this process runs them."""
