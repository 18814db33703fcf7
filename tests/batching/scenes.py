"""Scenes that many tests play: callers that can be watched and made to leave, held handlers."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import anyio

import shoal
from shoal.core.events import BatchObserver, BatchRecord
from shoal.testing import settle as settle

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Sequence,
    )

    from anyio.abc import TaskGroup, TaskStatus

    from shoal.core.request import Request

PENDING: Any = "pending"
LEFT: Any = "left"
Opened: TypeAlias = "tuple[shoal.Batcher[Any], Any, TaskGroup]"


class Caller:
    """A task that makes one call."""

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self._awaitable = awaitable
        self._scope = anyio.CancelScope()
        self.outcome: Any = PENDING
        self.ended_at: float | None = None

    def leave(self) -> None:
        self._scope.cancel()

    async def gone(self) -> None:
        """Leaves, and lets every task run until it waits."""
        self.leave()
        await settle()

    async def leaves(self) -> None:
        """Leaves when the task that this is made has its turn."""
        self.leave()

    async def run(self, *, task_status: TaskStatus[Caller] = anyio.TASK_STATUS_IGNORED) -> None:
        with self._scope:
            task_status.started(self)
            try:
                self.outcome = await self._awaitable
            except Exception as error:
                self.outcome = error
            except BaseException:
                self.outcome = LEFT
                raise
            finally:
                self.ended_at = anyio.current_time()


async def line_up(tasks: TaskGroup, *awaitables: Awaitable[Any]) -> list[Caller]:
    """Starts a caller for each awaitable; each has queued its request before the next one."""
    return [await tasks.start(Caller(awaitable).run) for awaitable in awaitables]


async def launch(tasks: TaskGroup, *awaitables: Awaitable[Any]) -> list[Caller]:
    """Starts callers in order, and lets every task run until it waits."""
    callers = await line_up(tasks, *awaitables)
    await settle()
    return callers


@asynccontextmanager
async def using(batcher: shoal.Batcher[Any]) -> AsyncGenerator[tuple[Any, TaskGroup]]:
    """Opens a batcher, and a task group for its callers."""
    async with batcher as call, anyio.create_task_group() as tasks:
        yield call, tasks


@asynccontextmanager
async def opening(handler: Any, **options: Any) -> AsyncGenerator[Opened]:
    """Opens a batcher, or a handler's with these options, and a task group for its callers."""
    batcher = handler if isinstance(handler, shoal.Batcher) else shoal.Batcher(handler, **options)
    async with batcher as call, anyio.create_task_group() as tasks:
        yield batcher, call, tasks


@asynccontextmanager
async def running(handler: Any, **options: Any) -> AsyncGenerator[Opened]:
    """Runs a batcher in a task, beside those of its callers, until the test closes it."""
    batcher = handler if isinstance(handler, shoal.Batcher) else shoal.Batcher(handler, **options)
    async with anyio.create_task_group() as tasks:
        yield batcher, await tasks.start(batcher.run), tasks


@asynccontextmanager
async def plugged(held: Held, item: Any = "plug", **options: Any) -> AsyncGenerator[Opened]:
    """Opens a batcher whose handler is held at a first call, and lets it go at the end."""
    async with opening(held, **options) as (batcher, call, tasks):
        await launch(tasks, call(item))
        yield batcher, call, tasks
        held.gate.set()


async def outcomes(*awaitables: Awaitable[Any]) -> list[Any]:
    """Awaits all in the same tick, in any order; an exception stands for itself."""
    callers = [Caller(awaitable) for awaitable in awaitables]
    async with anyio.create_task_group() as tasks:
        for caller in callers:
            tasks.start_soon(caller.run)
    return [caller.outcome for caller in callers]


async def outcomes_in_order(*awaitables: Awaitable[Any]) -> list[Any]:
    """Awaits all, in the queue in this order; needs a batcher that waits for batches to fill."""
    async with anyio.create_task_group() as tasks:
        callers = await line_up(tasks, *awaitables)
    return [caller.outcome for caller in callers]


async def outcome(awaitable: Awaitable[Any]) -> Any:
    return (await outcomes(awaitable))[0]


class Recorder:
    """An async handler that answers at once, and notes its batches, when they start and why."""

    def __init__(self, answer: Callable[[Any], Any] = lambda item: item) -> None:
        self.batches: list[list[Any]] = []
        self.started_at: list[float] = []
        self.reasons: list[shoal.DispatchReason] = []
        self.answer = answer

    @property
    def starts(self) -> list[float]:
        return [round(at, 6) for at in self.started_at]

    async def __call__(self, items: list[Any]) -> list[Any]:
        self.note(items)
        return [self.answer(item) for item in items]

    def note(self, items: list[Any]) -> None:
        self.batches.append(list(items))
        self.started_at.append(anyio.current_time())
        self.reasons.append(shoal.current_batch().reason)


class Refusing(Recorder):
    """A handler that raises each of some errors, or runs for a while where there is none."""

    def __init__(self, errors: Iterable[Exception | None] = (), run_s: float = 0.0) -> None:
        super().__init__()
        self.errors = iter(errors)
        self.run_s = run_s

    async def __call__(self, items: list[Any]) -> list[Any]:
        self.note(items)
        error = next(self.errors, None)
        await anyio.sleep(self.run_s)
        if error is not None:
            raise error
        return items


class Held(Recorder):
    """An async handler that answers when its gate is opened."""

    def __init__(self, answer: Callable[[Any], Any] = lambda item: item) -> None:
        super().__init__(answer)
        self.gate = anyio.Event()
        self.cancelled: list[list[Any]] = []
        self.passed: list[list[Any]] = []

    async def __call__(self, items: list[Any]) -> list[Any]:
        self.note(items)
        try:
            await self.gate.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(list(items))
            raise
        self.passed.append(list(items))
        return [self.answer(item) for item in items]

    async def release(self) -> None:
        """Opens the gate, and lets every task run until it waits."""
        self.gate.set()
        await settle()


class Steps:
    """An async generator handler that makes a step whenever it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.requests: list[Any] = []
        self.made = 0
        self.closed = False
        self._send, self._receive = anyio.create_memory_object_stream[Any](100)

    def step(self, *slots: Any) -> None:
        self._send.send_nowait(list(slots))

    def fail(self, error: Exception) -> None:
        self._send.send_nowait(error)

    def end(self) -> None:
        self._send.send_nowait(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._send.close()
        self._receive.close()

    async def handler(self, items: list[Any]) -> AsyncIterator[list[Any]]:
        self.batches.append(list(items))
        self.requests = list(shoal.current_batch().requests)
        try:
            while (slots := await self._receive.receive()) is not None:
                if isinstance(slots, Exception):
                    raise slots
                self.made += 1
                yield slots
        finally:
            self.closed = True


class Reader:
    """A task that reads one stream to its end."""

    def __init__(self, stream: shoal.ResultStream[Any]) -> None:
        self.stream = stream
        self.items: list[Any] = []
        self._scope = anyio.CancelScope()
        self.outcome: Any = PENDING

    def leave(self) -> None:
        self._scope.cancel()

    async def gone(self) -> None:
        """Leaves, and lets every task run until it waits."""
        self.leave()
        await settle()

    async def run(self, *, task_status: TaskStatus[Reader]) -> None:
        try:
            with self._scope:
                async with self.stream as stream:
                    task_status.started(self)
                    async for item in stream:
                        self.items.append(item)
                self.outcome = "end"
            if self._scope.cancelled_caught:
                self.outcome = LEFT
        except Exception as error:
            self.outcome = error


async def read(stream: Any, into: list[Any] | None = None, most: float = math.inf) -> list[Any]:
    """Reads a stream, or so many items of it; its error is the last item."""
    got = [] if into is None else into
    try:
        async with stream:
            async for item in stream:
                got.append(item)
                if len(got) == most:
                    break
    except Exception as error:
        got.append(error)
    return got


async def read_all(tasks: TaskGroup, *streams: shoal.ResultStream[Any]) -> list[Reader]:
    """Starts a reader for each stream; their requests are queued in this order."""
    return [await tasks.start(Reader(stream).run) for stream in streams]


class Records(BatchObserver):
    """Keeps the records of all batches."""

    def __init__(self) -> None:
        self.records: list[BatchRecord] = []

    def batch_ended(self, record: BatchRecord, requests: Sequence[Request]) -> None:
        self.records.append(record)


class UnhashableKind(type):
    """A metaclass whose classes are no keys."""

    __hash__ = None  # type: ignore[assignment]


class OfUnhashableKind(metaclass=UnhashableKind):
    """An object whose type is no key."""


def slots_of(batcher: shoal.Batcher[Any]) -> int:
    """Returns how many tasks of a batcher wait for batches or run them."""
    return len(batcher.stacks())
