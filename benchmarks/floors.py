"""The floors: the minimum cost of batching on each event loop, as a baseline for the engine.

Each floor is only a deque and a parked task: no bounds, counters, contexts, errors or kinds of
handlers, and a request is two words. It keeps the contract of a call: ``await call(item)`` returns
the item's own result, the handler is a coroutine function that is awaited with a list, and a caller
can be cancelled. For cancellation, a parked task must be forgotten when its wait is cancelled:
rescheduling a trio task twice crashes the whole run, so a floor without that would be unusable.

The streaming floors run in lockstep: each step wakes all readers of the batch, and each reader
parks again for its next item. There is no buffer, so a reader must not wait for anything else in
between.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio
from outcome import Value
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

from shoal.loops.trio_parking import WOKEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    Handler = Callable[[list[Any]], Awaitable[list[Any]]]
    Steps = Callable[[list[Any]], AsyncIterator[list[Any]]]

END: Final = object()


class UnaryFloor(NamedTuple):
    """The function to call, and the task that must run meanwhile."""

    call: Callable[[Any], Awaitable[Any]]
    run: Callable[[], Coroutine[Any, Any, None]]


class StreamFloor(NamedTuple):
    """The function that returns streams, and the task that must run meanwhile."""

    call: Callable[[Any], AsyncIterator[Any]]
    run: Callable[[], Coroutine[Any, Any, None]]


def _aborted(_: object) -> Abort:
    """Allows the task that forms batches to be cancelled; no calls are made after that."""
    return Abort.SUCCEEDED


class _TrioCall:
    """A caller on trio, parked for its result; it is the abort function of its wait itself."""

    __slots__ = ("item", "task")

    item: Any
    task: Task | None

    def __call__(self, _: object) -> Abort:
        self.task = None
        return Abort.SUCCEEDED


def on_trio(handler: Handler, max_batch_size: int) -> UnaryFloor:
    """Makes the floor of a unary call on trio."""
    queue: deque[_TrioCall] = deque()
    idle: Task | None = None

    async def call(item: Any) -> Any:
        nonlocal idle
        made = _TrioCall()
        made.task = current_task()
        made.item = item
        queue.append(made)
        if idle is not None:
            task, idle = idle, None
            reschedule(task)
        return await wait_task_rescheduled(made)

    async def run() -> None:
        nonlocal idle
        while True:
            while not queue:
                idle = current_task()
                await wait_task_rescheduled(_aborted)
            batch = [queue.popleft() for _ in range(min(max_batch_size, len(queue)))]
            results = await handler([made.item for made in batch])
            for made, result in zip(batch, results, strict=True):
                if made.task is not None:
                    reschedule(made.task, Value(result))

    return UnaryFloor(call, run)


class _TrioCallOfShared(_TrioCall):
    """A caller who is woken with the shared outcome, and whose result is stored here."""

    __slots__ = ("result",)

    result: Any


def on_trio_with_one_outcome(handler: Handler, max_batch_size: int) -> UnaryFloor:
    """Makes a floor that wakes all callers with one outcome, the engine's.

    trio makes an `outcome.Value` for each task that is woken, and it is no small part of `on_trio`.
    """
    queue: deque[_TrioCallOfShared] = deque()
    idle: Task | None = None

    async def call(item: Any) -> Any:
        nonlocal idle
        made = _TrioCallOfShared()
        made.task = current_task()
        made.item = item
        queue.append(made)
        if idle is not None:
            task, idle = idle, None
            reschedule(task)
        await wait_task_rescheduled(made)
        return made.result

    async def run() -> None:
        nonlocal idle
        while True:
            while not queue:
                idle = current_task()
                await wait_task_rescheduled(_aborted)
            batch = [queue.popleft() for _ in range(min(max_batch_size, len(queue)))]
            results = await handler([made.item for made in batch])
            for made, result in zip(batch, results, strict=True):
                if made.task is not None:
                    made.result = result
                    reschedule(made.task, WOKEN)

    return UnaryFloor(call, run)


def on_asyncio(handler: Handler, max_batch_size: int) -> UnaryFloor:
    """Makes the floor of a unary call on asyncio."""
    queue: deque[tuple[asyncio.Future[Any], Any]] = deque()
    idle: asyncio.Future[None] | None = None
    loop = asyncio.get_running_loop()

    async def call(item: Any) -> Any:
        nonlocal idle
        future: asyncio.Future[Any] = Future(loop=loop)  # less than `loop.create_future`
        queue.append((future, item))
        if idle is not None:
            woken, idle = idle, None
            woken.set_result(None)
        return await future

    async def run() -> None:
        nonlocal idle
        while True:
            while not queue:
                idle = loop.create_future()
                await idle
            batch = [queue.popleft() for _ in range(min(max_batch_size, len(queue)))]
            results = await handler([item for _, item in batch])
            for (future, _), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)

    return UnaryFloor(call, run)


class _TrioStream:
    """A reader on trio, parked for its next item."""

    __slots__ = ("item", "task")

    def __init__(self, item: Any) -> None:
        self.item = item
        self.task: Task | None = None

    def __aiter__(self) -> _TrioStream:
        return self

    async def __anext__(self) -> Any:
        self.task = current_task()
        item = await wait_task_rescheduled(self)
        if item is END:
            raise StopAsyncIteration
        return item

    def __call__(self, _: object) -> Abort:
        self.task = None
        return Abort.SUCCEEDED


def streams_on_trio(steps: Steps, max_batch_size: int) -> StreamFloor:
    """Makes the floor of a streamed item on trio."""
    queue: deque[_TrioStream] = deque()
    idle: Task | None = None

    def call(item: Any) -> _TrioStream:
        nonlocal idle
        stream = _TrioStream(item)
        queue.append(stream)
        if idle is not None:
            task, idle = idle, None
            reschedule(task)
        return stream

    async def run() -> None:
        nonlocal idle
        while True:
            while not queue:
                idle = current_task()
                await wait_task_rescheduled(_aborted)
            batch = [queue.popleft() for _ in range(min(max_batch_size, len(queue)))]
            async for slots in steps([stream.item for stream in batch]):
                for stream, slot in zip(batch, slots, strict=True):
                    if stream.task is not None:
                        reschedule(stream.task, Value(slot))
                # Twice, because the tasks of one tick run in any order. After that all are parked.
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
            for stream in batch:
                if stream.task is not None:
                    reschedule(stream.task, Value(END))

    return StreamFloor(call, run)


class _AsyncioStream:
    """A reader on asyncio, waiting on a future for its next item."""

    __slots__ = ("future", "item", "loop")

    def __init__(self, item: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.item = item
        self.loop = loop
        self.future: asyncio.Future[Any]

    def __aiter__(self) -> _AsyncioStream:
        return self

    async def __anext__(self) -> Any:
        self.future = Future(loop=self.loop)
        item = await self.future
        if item is END:
            raise StopAsyncIteration
        return item


def streams_on_asyncio(steps: Steps, max_batch_size: int) -> StreamFloor:
    """Makes the floor of a streamed item on asyncio."""
    queue: deque[_AsyncioStream] = deque()
    idle: asyncio.Future[None] | None = None
    loop = asyncio.get_running_loop()

    def call(item: Any) -> _AsyncioStream:
        nonlocal idle
        stream = _AsyncioStream(item, loop)
        queue.append(stream)
        if idle is not None:
            woken, idle = idle, None
            woken.set_result(None)
        return stream

    async def run() -> None:
        nonlocal idle
        while True:
            while not queue:
                idle = loop.create_future()
                await idle
            batch = [queue.popleft() for _ in range(min(max_batch_size, len(queue)))]
            async for slots in steps([stream.item for stream in batch]):
                for stream, slot in zip(batch, slots, strict=True):
                    if not stream.future.done():
                        stream.future.set_result(slot)
                await asyncio.sleep(0)
            for stream in batch:
                if not stream.future.done():
                    stream.future.set_result(END)

    return StreamFloor(call, run)
