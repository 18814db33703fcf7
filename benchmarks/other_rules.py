"""Two other rules that form batches, to compare with Shoal's.

Both are minimal implementations for trio, so that a comparison differs only in the rule. They do
not handle cancellation and errors.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler = Callable[[list[Any]], Awaitable[list[Any]]]
    Call = Callable[[Any], Awaitable[Any]]


class _Waiting:
    """A call that waits for its result."""

    def __init__(self, item: Any) -> None:
        self.item = item
        self.done = trio.Event()
        self.result: Any = None


class _Rule:
    """The common part of both rules: a queue, and a window that closes a batch."""

    def __init__(self, handler: Handler, max_batch_size: int, batch_wait_timeout_s: float) -> None:
        self._handler = handler
        self._size = max_batch_size
        self._wait_s = batch_wait_timeout_s
        self._into, self._queue = trio.open_memory_channel[_Waiting](1_000_000)

    async def call(self, item: Any) -> Any:
        waiting = _Waiting(item)
        self._into.send_nowait(waiting)
        await waiting.done.wait()
        return waiting.result

    async def _next_batch(self) -> list[_Waiting]:
        """Waits for a first request, then for others until the batch is full or the time ends."""
        batch = [await self._queue.receive()]
        with trio.move_on_after(self._wait_s):
            while len(batch) < self._size:
                batch.append(await self._queue.receive())
        return batch

    async def _handle(self, batch: list[_Waiting]) -> None:
        results = await self._handler([waiting.item for waiting in batch])
        for waiting, result in zip(batch, results, strict=True):
            waiting.result = result
            waiting.done.set()


class TimerCloses(_Rule):
    """Ray Serve's current rule.

    The timer closes batches whether the handler is free or not. Closed batches queue for the
    handler, and no longer grow.
    """

    async def run(self) -> None:
        handler_is_free = trio.StrictFIFOLock()

        async def handle(batch: list[_Waiting], *, task_status: trio.TaskStatus) -> None:
            task_status.started()
            async with handler_is_free:
                await self._handle(batch)

        async with trio.open_nursery() as nursery:
            while True:
                # Started one by one, so that they get the handler in order.
                await nursery.start(handle, await self._next_batch())


class WaitRestarts(_Rule):
    """The rule of Ray Serve's first releases.

    One loop gathers a batch and then runs the handler, so no batch is closed too early. But the
    wait begins when the handler is free, even for requests that have waited for it already.
    """

    async def run(self) -> None:
        while True:
            await self._handle(await self._next_batch())


@asynccontextmanager
async def opened(
    rule: type[TimerCloses | WaitRestarts],
    handler: Handler,
    max_batch_size: int,
    batch_wait_timeout_s: float,
) -> AsyncIterator[Call]:
    """Runs a rule until the end of the block."""
    running = rule(handler, max_batch_size, batch_wait_timeout_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.run)
        yield running.call
        nursery.cancel_scope.cancel()
