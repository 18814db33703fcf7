"""Scenes that many tests play: handlers that are held or noted, and batchers that are open."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import anyio

import shoal
from batching.callers import launch
from shoal.core.events import BatchObserver, BatchRecord
from shoal.testing import settle as settle

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence

    from anyio.abc import TaskGroup

    from shoal.core.request import Request

    Opened = tuple[shoal.Batcher[Any], Any, TaskGroup]


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
    """A handler that runs for a while, and raises each of some errors, or answers without one."""

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

    def pair(self, **options: Any) -> shoal.Batcher[Any]:
        """Makes a batcher whose batches are of two requests."""
        return shoal.Batcher(self.handler, batch_wait_timeout_s=1, max_batch_size=2, **options)

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
