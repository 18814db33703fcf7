"""Jobs: calls of plain code that run in a thread while a task waits for them."""

from __future__ import annotations

import inspect
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shoal.errors import WrongResultType

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batching.handlers.handler import Handler
    from shoal.loops.parking import Parking

# The value that `PlainSteps.next` returns when the generator has ended.
DONE: Final[Any] = object()

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


def plain_results(handler: Handler, items: list[Any]) -> Any:
    """Calls a plain function of a backend on a batch, in this thread."""
    args, kwargs = handler.binding.columns(items)
    # In a context of its own: the thread may run the next call in the same one.
    results = copy_context().run(handler.function, *args, **kwargs)
    if inspect.isawaitable(results):
        if inspect.iscoroutine(results):
            results.close()
        raise WrongResultType(
            f"{handler.name} is a plain function but returned an awaitable; "
            "make it an async function"
        )
    return [results] if handler.is_of_one else results


class PlainSteps:
    """The steps of a plain generator function, all in one context. The first step starts it."""

    def __init__(self, handler: Handler, items: list[Any]) -> None:
        self.is_open = False
        self._handler = handler
        self._items = items
        self._generator: Any = None
        self._context: Context | None = None

    def next(self) -> Any:
        if self._context is None:
            self._context = copy_context()
        step = self._context.run(self._step)
        return [step] if self._handler.is_of_one and step is not DONE else step

    def close(self) -> None:
        if self.is_open and self._context is not None:
            self.is_open = False
            self._context.run(self._generator.close)

    def _step(self) -> Any:
        if self._generator is None:
            args, kwargs = self._handler.binding.columns(self._items)
            self._generator = self._handler.function(*args, **kwargs)
        self.is_open = False  # unless it yields another step
        step = next(self._generator, DONE)
        self.is_open = step is not DONE
        return step
