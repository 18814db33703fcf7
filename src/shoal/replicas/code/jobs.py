"""Plain code as jobs: calls that run in some thread while a task waits for them."""

from __future__ import annotations

import inspect
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.errors import WrongResultType

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from shoal.batching.handlers.handler import Handler

DONE: Final[Any] = object()
"""What `PlainSteps.next` gives back when the generator has ended."""


HANDLER: Final = "the handler"
"""What user code is called in errors that is no hook."""


class Job:
    """One call of plain code, and the task that waits for it.

    Args:
        function: The call.
        name: What to call the code in words.
        undo: What another job must do after the call, if this one was given up meanwhile.

    Attributes:
        name: As it was given.
        undo: As it was given.
        is_given_up: Whether the task has got its answer before the call had ended.
    """

    def __init__(
        self,
        function: Callable[[], Any],
        name: str = HANDLER,
        undo: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.undo = undo
        self.is_given_up = False
        self._function = function
        self._answered = anyio.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> tuple[Any, BaseException | None]:
        """Makes the call, in its thread; returns its result or error, and raises nothing.

        A job that was given up before its turn came is not begun.
        """
        if self.is_given_up:
            return None, None
        try:
            return self._function(), None
        except BaseException as error:
            return None, error

    def answer(self, value: Any, error: BaseException | None) -> bool:
        """Says, in the event loop, what came of the call.

        Returns:
            Whether somebody wants to know; if not, `undo` is due.
        """
        if self.is_given_up:
            return False
        self._value, self._error = value, error
        self._answered.set()
        return True

    def give_up(self, error: Exception) -> None:
        """Has the task go on with an error, while the call goes on as well."""
        if not self._answered.is_set():
            self.is_given_up = True
            self._error = error
            self._answered.set()

    async def wait(self) -> None:
        """Waits until there is an answer."""
        await self._answered.wait()

    async def result(self) -> Any:
        """Waits for the answer, and returns or raises it."""
        await self._answered.wait()
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            raise error
        finally:
            del error  # its traceback holds this frame


class PlainMethod:
    """A plain function or generator function of a backend, for calls that are made in a thread.

    Args:
        handler: The method.
        batched: Whether it takes lists.
    """

    def __init__(self, handler: Handler, *, batched: bool) -> None:
        self._handler = handler
        self._batched = batched

    def results(self, items: list[Any]) -> Any:
        """Calls it.

        Raises:
            WrongResultType: It returned an awaitable.
            Exception: What it raised.
        """
        args, kwargs = self._handler.binding.columns(items)
        results = self._handler.function(*args, **kwargs)
        if inspect.isawaitable(results):
            if inspect.iscoroutine(results):
                results.close()
            raise WrongResultType(
                f"{self._handler.name} is a plain function but returned an awaitable; "
                "make it an async function"
            )
        return results if self._batched else [results]

    def steps(self, items: list[Any]) -> PlainSteps:
        """Returns its steps; nothing of it has run yet."""
        return PlainSteps(self._handler, items, batched=self._batched)


class PlainSteps:
    """The steps of a plain generator, in one context for all of them, as in one thread.

    Attributes:
        is_open: Whether it has begun and not ended.
    """

    def __init__(self, handler: Handler, items: list[Any], *, batched: bool) -> None:
        self.is_open = False
        self._handler = handler
        self._items = items
        self._batched = batched
        self._generator: Any = None
        self._context: Context | None = None

    def next(self) -> Any:
        """Returns the next step, or `DONE`."""
        if self._context is None:
            self._context = copy_context()
        step = self._context.run(self._step)
        return step if step is DONE or self._batched else [step]

    def close(self) -> None:
        """Closes the generator, between two steps."""
        if self.is_open and self._context is not None:
            self.is_open = False
            self._context.run(self._generator.close)

    def _step(self) -> Any:
        if self._generator is None:
            args, kwargs = self._handler.binding.columns(self._items)
            self._generator = self._handler.function(*args, **kwargs)
        self.is_open = False  # unless it comes to another step
        step = next(self._generator, DONE)
        self.is_open = step is not DONE
        return step
