"""Async code that is called from the threads of an actor: calls, cancellation and errors.

Cancel scopes belong to the event loop, so cancellation is a flag that any thread may set. The loop
checks it after it has created the scope, and whenever a thread asks it to check again.

Errors of the code must not end the event loop, and a task group ends with any error that is not an
`Exception`. `as_exceptions` converts these.

Open batches have a task each in the event loop. `OpenBatches` is no part of the actor's class: Ray
would run all calls of a class with async methods in an event loop of its own.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from contextlib import aclosing
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from shoal.batching.open_batch import OpenBatch
from shoal.failures.exceptions import ends_the_program, own_copy
from shoal.failures.held import holding
from shoal.replicas.code.jobs import DONE
from shoal.replicas.process.child.open_batch import OpenWork
from shoal.replicas.process.wire.frames import FrameKind
from shoal.replicas.process.wire.messages import EMPTY, packed, unpickled
from shoal.replicas.process.wire.open_batch import OpenStart
from shoal.replicas.threads import InnerCalls

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractContextManager
    from contextvars import Context

    from anyio.abc import TaskGroup
    from anyio.from_thread import BlockingPortal

    from shoal.batching.handlers.handler import Handler
    from shoal.core.request import Batch, Draining
    from shoal.replicas.process.wire.errors import ErrorAsData
    from shoal.replicas.process.wire.frames import Frame
    from shoal.replicas.process.wire.messages import Dumps, Message


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


# The kinds of the frames about open batches that a replica sends.
ABOUT_OPEN: Final = frozenset({FrameKind.OPEN, FrameKind.NEWS, FrameKind.CANCEL})


@dataclass
class OpenBatches:
    # Of the actor's event loop.
    tasks: TaskGroup
    # Finds the code for a batch, and what it runs in.
    code: Callable[[OpenWork], Callable[..., Any]]
    context: Callable[[Batch, AsyncActorWork], AbstractContextManager[None]]
    # Converts an error of the code, and may block; None if the error ends the replica.
    convert_error: Callable[[BaseException], ErrorAsData | None]
    # Sends a frame to the replica.
    send: Callable[[FrameKind, int, Message], object]
    draining: Draining
    # Pickles results.
    dumps: Dumps
    _frames: deque[Frame] = field(default_factory=deque["Frame"])
    # That of a task of the event loop, without which anyio knows no loop.
    _context: Context = field(default_factory=copy_context)
    _calls: dict[int, tuple[OpenWork, AsyncActorWork]] = field(
        default_factory=dict[int, "tuple[OpenWork, AsyncActorWork]"]
    )

    def put(self, frame: Frame) -> None:
        """Adds a frame about an open batch, which `take` takes; from any thread."""
        self._frames.append(frame)

    def take(self) -> None:
        """Takes the frames that were added; the event loop also calls this outside of tasks."""
        while self._frames:
            self._context.run(self._handle, self._frames.popleft())

    def _handle(self, frame: Frame) -> None:
        if frame.kind is FrameKind.OPEN:
            start = OpenStart(*unpickled(frame.body))
            send = partial(self.send, FrameKind.ANSWERS, frame.id)
            opened = OpenWork(start, self.draining, send, self.dumps, read=self.take)
            work = AsyncActorWork()
            self._calls[frame.id] = opened, work
            self.tasks.start_soon(opened.send_gathered)
            self.tasks.start_soon(self._run, frame.id, opened, work)
        elif frame.id in self._calls:
            opened, work = self._calls[frame.id]
            if frame.kind is FrameKind.NEWS:
                opened.take(frame.body, frame.buffers)
            else:
                work.cancel()

    async def _run(self, id_: int, opened: OpenWork, work: AsyncActorWork) -> None:
        raised: Exception | None = None
        try:
            with self.context(opened.batch, work):
                code = self.code(opened)
                with work.new_scope(), as_exceptions():
                    await code(OpenBatch[Any, Any](opened, opened))
        except Exception as error:
            raised = error
        del self._calls[id_]
        opened.end()
        if raised is None:
            self.send(FrameKind.END, id_, EMPTY)
            return
        data = await anyio.to_thread.run_sync(self.convert_error, raised)
        raised = None  # its traceback holds this frame
        if data is not None:  # otherwise the end of the replica ends the call
            self.send(FrameKind.ERROR, id_, packed(data))
