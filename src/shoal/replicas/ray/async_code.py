"""Async code for threads: what a thread of an actor asks for, how it is cancelled, what it raises.

Cancel scopes belong to the event loop. So whether work was cancelled is a flag that any thread may
set, and the loop looks at it when it has made the scope, and whenever it is told to look again.

What the code raises must not end the loop, and a task group ends with whatever is no `Exception`:
so nothing else comes out of it (`as_exceptions`).
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio

from shoal.batching.failures.exceptions import ends_the_program, own_copy
from shoal.batching.failures.holding import holding
from shoal.replicas.code.jobs import DONE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AbstractContextManager

    from anyio.from_thread import BlockingPortal

    from shoal.batching.handlers.handler import Handler


class CodeEnded(Exception):
    """The code has raised what ends a process, which is the cause."""


def as_exceptions() -> AbstractContextManager[None]:
    """Code runs in this block of a task; what it raises comes as an `Exception`.

    Raises:
        CodeEnded: It raised what ends a process.
        HandlerFailed: It raised what is no `Exception`.
        Exception: What it raised.

    Cancellation: goes on.
    """
    return holding(_told)


def _told(error: BaseException) -> Exception:
    return CodeEnded() if ends_the_program(error) else own_copy(error)


class AsyncActorWork:
    """A call of the code, which may be async.

    Attributes:
        is_left: Whether it was cancelled.
    """

    def __init__(self) -> None:
        self.is_left = False
        self._scope: anyio.CancelScope | None = None

    def new_scope(self) -> anyio.CancelScope:
        """Makes the cancel scope that async code is to run in."""
        self._scope = anyio.CancelScope()
        self.cancel_if_left()
        return self._scope

    def cancel_if_left(self) -> None:
        """Cancels async code, if that is what runs."""
        if self._scope is not None and self.is_left:
            self._scope.cancel()

    async def results(self, handler: Handler, items: list[Any]) -> Any:
        """Runs a unary method; gives back None if it was cancelled."""
        with self.new_scope(), as_exceptions():
            return await handler.results(items)


class AsyncSteps:
    """The steps of an async generator, for a thread that asks for one at a time.

    All of them run in one task, since a generator may hold cancel scopes between its steps.
    """

    def __init__(
        self, portal: BlockingPortal, handler: Handler, items: list[Any], work: AsyncActorWork
    ) -> None:
        self._portal = portal
        self._answer: Future[Any] | None = None
        self._asked = portal.call(anyio.Event)
        self._is_over = False
        self._ended: Future[None] = portal.start_task_soon(self._serve, handler, items, work)

    def next(self) -> Any:
        """Returns the next step, or `DONE`."""
        answer: Future[Any] = Future()
        self._portal.call(self._ask, answer)
        return answer.result()

    def close(self) -> None:
        """Closes the generator, and waits until it is closed."""
        self._portal.call(self._ask, None)
        self._ended.result()

    def _ask(self, answer: Future[Any] | None) -> None:
        self._answer = answer
        self._asked.set()
        if self._is_over:
            self._settle(DONE)

    def _settle(self, step: Any, error: Exception | None = None) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if error is None:
            answer.set_result(step)
        else:
            answer.set_exception(error)

    async def _serve(self, handler: Handler, items: list[Any], work: AsyncActorWork) -> None:
        try:
            with work.new_scope(), as_exceptions():
                async with aclosing(handler.steps(items)) as steps:
                    await self._give(steps)
        finally:
            self._is_over = True
            self._settle(DONE)

    async def _give(self, steps: AsyncGenerator[Any, None]) -> None:
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            if self._answer is None:
                return  # it is to be closed
            try:
                with as_exceptions():
                    step = await anext(steps, DONE)
            except Exception as error:
                self._settle(None, error)
            else:
                self._settle(step)
