"""In the worker: runs code of which any part is async. The main thread runs an event loop.

Calls run concurrently, each in a task of its own with a cancel scope. Plain functions among async
ones run in worker threads of the event loop.
"""

from __future__ import annotations

from collections import deque
from contextlib import aclosing, nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel

from shoal.batching.current import running_replica
from shoal.batching.handlers.handler import DONE, HoldLog, PlainSteps, in_own_context
from shoal.batching.open_batch import OpenBatch
from shoal.failures.exceptions import must_propagate, own_copy
from shoal.loops.event_loop import EventLoop
from shoal.loops.this_loop import parking_of_this_loop
from shoal.loops.unlimited import in_thread
from shoal.replicas.code.instance import is_async
from shoal.replicas.code.jobs import HANDLER
from shoal.replicas.process.child.open_batch import OpenWork
from shoal.replicas.process.wire.connection import AnsweredCall, FrameConnection
from shoal.replicas.process.wire.errors import as_data
from shoal.replicas.process.wire.frames import Frame, FrameKind, FrameReader
from shoal.replicas.process.wire.messages import EMPTY, Message, packed, unpickled
from shoal.replicas.process.wire.open_batch import OpenStart
from shoal.replicas.threads import InnerCalls

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from contextvars import Context

    from anyio.abc import TaskGroup

    from shoal.replicas.process.child.calls import CallAnswers, Work
    from shoal.replicas.process.child.control import Control

_BEGINNINGS: Final = (FrameKind.RUN, FrameKind.STREAM, FrameKind.OPEN, FrameKind.RECONFIGURE)


class ReplicaEnds(BaseException):
    """An error of the code says that its replica can't work any more; the text says how it ends."""


class _Call(AnsweredCall):
    def __init__(self) -> None:
        super().__init__()
        self.inner = InnerCalls()
        # None unless its code takes an open batch.
        self.open: OpenWork | None = None


class AsyncWork:
    def __init__(
        self,
        answers: CallAnswers,
        control: Control,
        sock: socket.socket,
        reader: FrameReader,
        context: Context,
    ) -> None:
        self._answers = answers
        # From before the event loop started: with the loop's context, threads would seem to run it.
        self._context = context
        self._control = control
        self._connection = FrameConnection(sock, reader)
        self._calls: dict[int, _Call] = {}
        self._parking = parking_of_this_loop()
        self._tag = running_replica.get().replica
        self._hold_logs = cache(HoldLog)
        self._soon = EventLoop.here().soon
        self._checks: deque[int] = deque()  # ids of pending health checks
        self._has_checks = anyio.Event()
        self._is_closing = anyio.CancelScope()
        self._tasks: TaskGroup

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._connection.write)
            health = self._answers.instance.hook("health")
            if health is not None and is_async(health):
                tasks.start_soon(self._start_checks, health)
            with self._is_closing:
                await self._connection.read_by_loop(self._handle)
            tasks.cancel_scope.cancel()

    def send(self, kind: FrameKind, id_: int, message: Message) -> None:
        self._connection.send(self._answers.codec.frame(kind, id_, message))

    def check_health(self, id_: int) -> None:
        """Starts a call of the code's ``health()``; runs in the watchdog's thread."""
        health = self._answers.instance.hook("health")
        assert health is not None
        if is_async(health):
            self._checks.append(id_)
            self._soon(lambda: self._has_checks.set())  # looked up when it runs
        else:
            self._control.check_in_thread(id_, health, self._context)

    async def call_hook(self, hook: Callable[..., Any], *args: Any) -> Any:
        if is_async(hook):
            name = getattr(hook, "__name__", "a hook")
            return await in_own_context(hook(*args), self._hold_logs(f"{name}() of {self._tag}"))
        return await in_thread(partial(hook, *args))

    def _handle(self, frame: Frame) -> None:
        self._answers.codec.take_back(frame)
        if frame.kind in _BEGINNINGS:
            self._calls[frame.id] = begun = _Call()
            if frame.kind is FrameKind.OPEN:
                start = OpenStart(*self._answers.codec.opened_here(frame))
                send = partial(self._send_answers, frame.id)
                read = partial(self._connection.read_available, self._handle, 1)
                begun.open = OpenWork(
                    start, self._control.draining, send, read, self._answers.dumps
                )
                self._tasks.start_soon(begun.open.send_gathered)
            self._tasks.start_soon(self._work, frame, begun)
        elif frame.kind is FrameKind.CLOSE:
            self._is_closing.cancel()
        elif (call := self._calls.get(frame.id)) is not None:
            if frame.kind is FrameKind.CREDIT:
                call.add_credit(unpickled(frame.body))
            elif frame.kind is FrameKind.NEWS:
                assert call.open is not None
                call.open.take(*self._answers.codec.parts_here(frame))
            else:
                call.scope.cancel()
                call.inner.cancel()
        else:
            self._answers.codec.drop(frame)  # its call has ended

    def _send_answers(self, id_: int, message: Message) -> None:
        codec = self._answers.codec
        if codec.reserve(message):
            codec.write(message)
        self.send(FrameKind.ANSWERS, id_, message)

    async def _work(self, frame: Frame, call: _Call) -> None:
        kind, message = FrameKind.END, EMPTY
        try:
            with call.scope:
                kind, message = await self._attempt(frame, call)
        finally:
            del self._calls[frame.id]
            if call.open is not None:
                call.open.end()
        # Sent only when nothing refers to the items any more: the frame gives their memory back.
        self.send(kind, frame.id, message)

    async def _attempt(self, frame: Frame, call: _Call) -> tuple[FrameKind, Message]:
        try:
            if frame.kind is FrameKind.RUN:
                return FrameKind.RESULT, await self._call(frame, call)
            if frame.kind is FrameKind.STREAM:
                work = self._answers.opened(frame, anyio.current_time(), call.inner)
                await in_own_context(self._stream(frame, call, work), self._hold_log_of(work))
                return FrameKind.END, EMPTY
            if call.open is not None:
                work = self._answers.opened_batch(call.open, call.inner)
                await in_own_context(self._run_open(work, call.open), self._hold_log_of(work))
                return FrameKind.END, EMPTY
            user_config = self._answers.codec.opened_here(frame)
            await self.call_hook(self._answers.reconfigure_hook(user_config), user_config)
            return FrameKind.RESULT, packed(None)
        except Exception as error:
            explain = self._answers.explain
            if explain is not None and (how := await in_thread(partial(explain, error))):
                raise ReplicaEnds(how) from error
            return FrameKind.ERROR, packed(as_data(error, self._answers.dumps))
        except BaseException as error:
            if must_propagate(error, self._parking):
                raise
            name = "reconfigure()" if frame.kind is FrameKind.RECONFIGURE else HANDLER
            return FrameKind.ERROR, packed(as_data(own_copy(error, name)))

    async def _call(self, frame: Frame, call: _Call) -> Message:
        work = self._answers.opened(frame, anyio.current_time(), call.inner)
        if work.handler.threaded:
            # It sets its batch in the thread: an idle one keeps the context that it was given.
            results = await in_thread(work.plain_results)
        else:
            with work.is_running():
                results = await in_own_context(
                    work.handler.results(work.items), self._hold_log_of(work)
                )
        return self._answers.packed(work, results)

    def _hold_log_of(self, work: Work) -> HoldLog:
        return self._hold_logs(f"the handler {work.handler.name} of {self._tag}")

    async def _run_open(self, work: Work, joins: OpenWork) -> None:
        with work.is_running():
            await work.handler.function(OpenBatch[Any, Any](joins, joins))

    async def _stream(self, frame: Frame, call: _Call, work: Work) -> None:
        with work.is_running() if not work.handler.threaded else nullcontext():
            async with aclosing(self._steps(work)) as steps:
                async for step in steps:
                    self.send(FrameKind.PART, frame.id, self._answers.packed(work, step))
                    await call.sent_step()
                    # An async generator may yield its next step without a checkpoint.
                    await anyio.lowlevel.checkpoint()

    def _steps(self, work: Work) -> AsyncGenerator[Any, None]:
        return self._plain_steps(work) if work.handler.threaded else work.handler.steps(work.items)

    async def _plain_steps(self, work: Work) -> AsyncGenerator[Any, None]:
        steps = PlainSteps(work.handler, work.items)
        try:
            while (step := await in_thread(partial(work.next_of, steps))) is not DONE:
                yield step
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(steps.close)

    async def _start_checks(self, health: Callable[[], Awaitable[object]]) -> None:
        while True:
            await self._has_checks.wait()
            self._has_checks = anyio.Event()
            while self._checks:
                self._tasks.start_soon(self._check, self._checks.popleft(), health)

    async def _check(self, id_: int, health: Callable[[], Awaitable[object]]) -> None:
        try:
            answer = await self.call_hook(health)
        except BaseException as error:
            if must_propagate(error, self._parking):
                raise
            self._control.answer_health(id_, None, error)
        else:
            self._control.answer_health(id_, answer, None)
