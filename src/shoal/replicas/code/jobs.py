"""Jobs: calls of plain code that run in a thread while a task waits for them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.loops.parking import Parking

# The name in errors of user code that is not a hook.
HANDLER: Final = "the handler"


class Job:
    """One call of plain code, and the task that waits for it."""

    def __init__(
        self,
        function: Callable[[], Any],
        name: str = HANDLER,
        undo: Callable[[], None] | None = None,
        repeats: Callable[[], bool] | None = None,
    ) -> None:
        self.name = name
        # Called in a thread if the job was given up; perhaps twice.
        self.undo = undo
        # Whether a thread runs it, or will.
        self.has_begun = False
        # Whether the task stopped waiting before the outcome.
        self.is_given_up = False
        # Whether there is an outcome, or the job was given up.
        self.has_ended = False
        # The job that its thread started by itself; set before the outcome of this one is
        # delivered.
        self.following: Job | None = None
        self._function = function
        # Called in the thread; returns whether to make the call again at once.
        self._repeats = repeats
        self._end: Callable[[], object] | None = None  # wakes the task that waits
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> tuple[Any, BaseException | None]:
        """Makes the call, in its thread, and returns errors. A job that was given up is undone."""
        try:
            value = None if self.is_given_up else self._function()
            if self.is_given_up and self.undo is not None:
                self.undo()
        except BaseException as error:
            return None, error
        return value, None

    def next_job(self) -> Job | None:
        """Returns the job that its idle thread runs next by itself; None for none."""
        if self._repeats is not None and not self.is_given_up and self._repeats():
            self.following = Job(self._function, self.name, self.undo, self._repeats)
            self.following.has_begun = True
        return self.following

    def answer(self, value: Any, error: BaseException | None) -> bool:
        """Delivers the outcome, in the event loop. If it returns False, `undo` must be called."""
        if self.is_given_up:
            return False
        self._value, self._error = value, error
        self._end_wait()
        return True

    def give_up(self, error: Exception) -> None:
        """Makes the task continue with an error, while the call keeps running."""
        if not self.has_ended:
            self.is_given_up = True
            self._error = error
            self._end_wait()

    def _end_wait(self) -> None:
        self.has_ended = True
        if self._end is not None:
            self._end()

    async def wait(self, parking: Parking) -> None:
        """Waits until there is an outcome; one task at a time."""
        while not self.has_ended:
            waiter = parking.new_waiter()
            self._end = partial(parking.wake, waiter)
            await waiter

    async def result(self, parking: Parking) -> Any:
        """Returns or raises the outcome. Checkpoint: always."""
        if self.has_ended:
            await parking.checkpoint()
        await self.wait(parking)
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            raise error
        finally:
            del error  # its traceback holds this frame
