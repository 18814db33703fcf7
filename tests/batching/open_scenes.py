"""Scenes of batches that take requests while their handler runs, for both ways of answering."""

from collections.abc import Awaitable
from typing import Any

import anyio
from anyio.abc import TaskGroup

import shoal
from batching.callers import Caller, launch, line_up

# How often a scene is played whose tasks run in one tick: trio runs them in a random order.
ORDERS = 30


async def the_one(stream: shoal.ResultStream[Any]) -> Any:
    """Reads a stream of one item."""
    async with stream:
        (item,) = [item async for item in stream]
    return item


class Kind:
    """Whether calls are answered by one result, or by a stream; then by one of one item."""

    def __init__(self, *, streams: bool) -> None:
        self.streams = streams

    def ask(self, call: Any, item: Any) -> Awaitable[Any]:
        return the_one(call(item)) if self.streams else call(item)

    async def line_up(self, tasks: TaskGroup, call: Any, *items: Any) -> list[Caller]:
        """Starts a caller for each item; they are queued in this order."""
        return await line_up(tasks, *[self.ask(call, item) for item in items])

    async def launch(self, tasks: TaskGroup, call: Any, *items: Any) -> list[Caller]:
        """Starts a caller for each item, and lets every task run until it waits."""
        return await launch(tasks, *[self.ask(call, item) for item in items])

    async def answer(self, request: Any, value: Any) -> None:
        if not self.streams:
            request.finish(value)
            return
        await request.send(value)
        if not request.ended:
            request.finish()


class Taker:
    """A handler of open batches that answers all of a batch once it is closed and the gate open."""

    def __init__(self, kind: Kind) -> None:
        self.batches: list[list[Any]] = []
        self.started: list[float] = []
        self.closed: list[float] = []
        self.reasons: list[shoal.DispatchReason] = []
        self.cancelled = 0
        self.gate = anyio.Event()
        self.gate.set()
        self._kind = kind

    def hold(self) -> None:
        self.gate = anyio.Event()

    async def __call__(self, batch: shoal.OpenBatch[Any, Any]) -> None:
        items: list[Any] = []
        requests = []
        self.batches.append(items)
        self.started.append(round(anyio.current_time(), 6))
        try:
            async for request in batch:
                items.append(request.item)
                requests.append(request)
            self.closed.append(round(anyio.current_time(), 6))
            self.reasons.append(batch.reason)
            await self.gate.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        for request in requests:
            await self._kind.answer(request, request.item)


class Server:
    """A handler of continuous batches that serves each request in a task of its own."""

    def __init__(self, kind: Kind) -> None:
        self.given: list[Any] = []
        self.active: list[Any] = []
        self.most = 0  # at once
        self.starts = 0
        self.ended = 0  # by itself
        self._kind = kind
        self._gates: dict[Any, anyio.Event] = {}

    def let_go(self, *items: Any) -> None:
        """Lets requests be answered."""
        for item in items:
            self._gate(item).set()

    async def __call__(self, batch: shoal.OpenBatch[Any, Any]) -> None:
        self.starts += 1
        async with anyio.create_task_group() as tasks:
            async for request in batch:
                tasks.start_soon(self._serve, request)
        self.ended += 1

    async def _serve(self, request: Any) -> None:
        item = request.item
        self.given.append(item)
        self.active.append(item)
        self.most = max(self.most, len(self.active))
        try:
            await self._gate(item).wait()
            if isinstance(item, Exception):
                raise item
            await self._kind.answer(request, item)
        finally:
            self.active.remove(item)

    def _gate(self, item: Any) -> anyio.Event:
        return self._gates.setdefault(item, anyio.Event())


class Stepper:
    """A handler of continuous batches that works in steps of one second.

    An item is a number of steps after which its request is answered; a negative one is failed.
    """

    def __init__(self, kind: Kind) -> None:
        # The items that were active in each step, and those that joined before it.
        self.steps: list[list[Any]] = []
        self.joined: list[list[Any]] = []
        self.ended = 0
        self._kind = kind

    async def __call__(self, batch: shoal.OpenBatch[Any, Any]) -> None:
        left: dict[Any, int] = {}
        async for joined in batch.steps():
            self.joined.append([request.item for request in joined])
            left |= {request: abs(request.item[1]) for request in joined}
            self.steps.append([request.item[0] for request in batch.active])
            await anyio.sleep(1)
            for request in batch.active:
                left[request] -= 1
                if left[request]:
                    continue
                del left[request]
                if request.item[1] < 0:
                    request.fail(ValueError(request.item[0]))
                else:
                    await self._kind.answer(request, request.item[0])
        self.ended += 1
