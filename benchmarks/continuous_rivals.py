"""The ways to batch the texts of a model that works in steps: Shoal's, and their rivals.

* *continuous*: Shoal's continuous batches. A text joins before the first step with a free place.
* *bare loop*: the same idea in a few lines of trio, without Shoal: the floor. The idea is the
  iteration-level scheduling of Orca (Yu and others, OSDI 2022), which vLLM (Kwon and others, SOSP
  2023) made common as continuous batching.
* *closed*: Shoal's closed batches. A text that is done leaves at once, and no other takes its place
  until all are done. A batch starts when the model is free, and waits for callers who are about to
  come back, if that is worth it (`regather`, which is Shoal's default).
* *closed, by length*: the same, but texts of about the same length share a batch: those of one
  bucket (`bucket_by`), or the oldest text and those nearest to it (`NearestLengths`). It needs to
  know the length of each text before it is written.
* *closed, held*: the classic static batch. All texts are answered when the longest is done.

A call returns a stream that must be entered. Its items are numbers of tokens.
"""

from __future__ import annotations

from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import trio

import shoal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from benchmarks.gpu_model import StepModel

    Call: TypeAlias = Callable[[int], Any]

CONTINUOUS: Final = "continuous"
BARE: Final = "bare loop"
CLOSED: Final = "closed"
BY_LENGTH: Final = "closed, by length"
HELD: Final = "closed, held"

PASSES: Final = 3


class _Text:
    """A text of the bare loop, with the channel to its reader."""

    def __init__(self, length: int) -> None:
        self.left = length
        self.into, self.reader = trio.open_memory_channel[int](length)

    def write(self) -> bool:
        """Sends a token; returns whether more are to come."""
        self.left -= 1
        try:
            self.into.send_nowait(1)
        except trio.BrokenResourceError:  # the reader has left
            return False
        if not self.left:
            self.into.close()
        return self.left > 0


class BareLoop:
    """A continuous batch in a few lines, which has no bounds, deadlines, priorities or statistics.

    A reader that leaves frees its place after the next step.
    """

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self._waiting: deque[_Text] = deque()
        self._has_come = trio.Event()

    def call(self, length: int) -> trio.MemoryReceiveChannel[int]:
        """Requests a text."""
        text = _Text(length)
        self._waiting.append(text)
        self._has_come.set()
        return text.reader

    async def run(self) -> None:
        """Writes texts for ever."""
        active: list[_Text] = []
        while True:
            joining = 0
            while self._waiting and len(active) < self._model.capacity:
                active.append(self._waiting.popleft())
                joining += 1
            if not active:
                self._has_come = trio.Event()
                await self._has_come.wait()
                continue
            await self._model.step(len(active), joining)
            active = [text for text in active if text.write()]
            # The number of passes until a reader sees its text's end, leaves, and sends one more:
            # else its place would stay empty for a step where no other text waits.
            for _ in range(PASSES):
                await trio.lowlevel.checkpoint()


class NearestLengths(shoal.policies.WholeQueuePolicy):
    """Batches the oldest text with those whose lengths are nearest to its own, without a wait."""

    def __init__(self, options: shoal.BatchOptions) -> None:
        super().__init__()
        self._size = options.max_batch_size

    def choose(
        self, queue: Sequence[shoal.Request], now: float, pressure: shoal.policies.Pressure | None
    ) -> tuple[Sequence[shoal.Request], shoal.DispatchReason]:
        """Chooses the next batch."""
        first = queue[0].item
        nearest = sorted(queue, key=lambda request: abs(request.item - first))
        return nearest[: self._size], shoal.DispatchReason.TIMER


def _continuous(model: StepModel) -> Any:
    async def write(batch: shoal.OpenBatch[int, int]) -> None:
        left: dict[shoal.OpenRequest[int, int], int] = {}
        async for joined in batch.steps():
            left = {request: tokens for request, tokens in left.items() if not request.ended}
            left |= {request: request.item for request in joined}
            await model.step(len(left), len(joined))
            for request in left:
                await request.send(1)
                left[request] -= 1
                if not left[request] and not request.ended:
                    request.finish()

    return write


def _closed(model: StepModel) -> Any:
    async def write(lengths: list[int]) -> AsyncIterator[list[Any]]:
        requests = shoal.current_batch().requests
        for nth in range(max(lengths)):
            active = [
                nth < length and not request.cancelled
                for length, request in zip(lengths, requests, strict=True)
            ]
            await model.step(sum(active), 0 if nth else len(lengths))
            yield [1 if is_active else shoal.END for is_active in active]

    return write


def _held(model: StepModel) -> Any:
    async def write(lengths: list[int]) -> AsyncIterator[list[int]]:
        for nth in range(max(lengths)):
            # Places of texts that are done are not counted: what they get is thrown away.
            await model.step(sum(nth < length for length in lengths), 0 if nth else len(lengths))
        yield lengths

    return write


@asynccontextmanager
async def opened(way: str, model: StepModel, **options: Any) -> AsyncIterator[Call]:
    """Opens a model behind one of the ways.

    Args:
        way: The way.
        model: The model.
        **options: Options of the closed batches: what makes them batches by length.
    """
    if way == BARE:
        loop = BareLoop(model)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop.run)
            await trio.lowlevel.checkpoint()  # or it may begin before all of the first callers
            yield loop.call
            nursery.cancel_scope.cancel()
        return
    make: Any = shoal.Batcher
    if way == CONTINUOUS:
        batcher = make(
            _continuous(model), fill="continuous", streams=True, max_batch_size=model.capacity
        )
    else:
        write = _held(model) if way == HELD else _closed(model)
        batcher = make(write, max_batch_size=model.capacity, **options)
    async with batcher as call:
        yield call
