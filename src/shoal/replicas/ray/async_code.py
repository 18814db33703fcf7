"""Async code that is called from the threads of an actor: calls, cancellation and errors.

Cancel scopes belong to the event loop, so cancellation is a flag that any thread may set. The loop
checks it after it has created the scope, and whenever a thread asks it to check again.

Errors of the code must not end the event loop, and a task group ends with any error that is not an
`Exception`. `as_exceptions` converts these.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio

from shoal.failures.exceptions import ends_the_program, own_copy
from shoal.failures.held import holding
from shoal.replicas.code.jobs import DONE
from shoal.replicas.threads import InnerCalls

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AbstractContextManager

    from anyio.from_thread import BlockingPortal

    from shoal.batching.handlers.handler import Handler


class CodeEnded(Exception):
    """The code raised an error that ends a process; that error is the cause."""


def as_exceptions() -> AbstractContextManager[None]:
    """Converts errors of code in this block of a task to `Exception`s."""
    return holding(_convert_error)


def _convert_error(error: BaseException) -> Exception:
    return CodeEnded() if ends_the_program(error) else own_copy(error)


class AsyncActorWork:
    """A call of the code, which may be async; `inner` are the blocking calls it makes."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self.inner = InnerCalls()
        self._scope: anyio.CancelScope | None = None

    def cancel(self) -> None:
        """Cancels the work; called in the event loop."""
        self.is_cancelled = True
        self.inner.cancel()
        self.cancel_scope_if_cancelled()

    def new_scope(self) -> anyio.CancelScope:
        self._scope = anyio.CancelScope()
        self.cancel_scope_if_cancelled()
        return self._scope

    def cancel_scope_if_cancelled(self) -> None:
        if self._scope is not None and self.is_cancelled:
            self._scope.cancel()

    async def results(self, handler: Handler, items: list[Any]) -> Any:
        """Runs a unary method; returns None if it was cancelled."""
        with self.new_scope(), as_exceptions():
            return await handler.results(items)


class AsyncSteps:
    """The steps of an async generator, for a thread that takes one at a time."""

    def __init__(
        self, portal: BlockingPortal, handler: Handler, items: list[Any], work: AsyncActorWork
    ) -> None:
        self._portal = portal
        self._answer: Future[Any] | None = None
        self._asked = portal.call(anyio.Event)
        self._is_over = False
        # All steps run in one task, since a generator may keep cancel scopes open between its
        # steps.
        self._ended: Future[None] = portal.start_task_soon(self._serve, handler, items, work)

    def next(self) -> Any:
        answer: Future[Any] = Future()
        self._portal.call(self._ask, answer)
        return answer.result()

    def close(self) -> None:
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
                return  # closed
            try:
                with as_exceptions():
                    step = await anext(steps, DONE)
            except Exception as error:
                self._settle(None, error)
            else:
                self._settle(step)
