"""Callers of a batcher that can be watched and made to leave, and readers of its streams."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import anyio

from shoal.testing import settle

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from anyio.abc import TaskGroup, TaskStatus

    import shoal

PENDING: Any = "pending"
LEFT: Any = "left"


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
