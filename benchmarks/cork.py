"""BentoML's rule that forms batches, to compare with Shoal's adaptive rule.

It is a minimal implementation for trio, so that a comparison differs only in the rule. It does not
handle cancellation and errors.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler = Callable[[list[Any]], Awaitable[list[Any]]]
    Call = Callable[[Any], Awaitable[Any]]


class Shed(Exception):
    """BentoML's rule shed the request."""


@dataclass
class _Waiting:
    item: Any
    since: float
    done: trio.Event = field(default_factory=trio.Event)
    result: Any = None
    is_shed: bool = False


class Cork:
    """BentoML's rule, for one batch at a time.

    Run times are fitted by least squares over the last 50 batches, at most every 5 s. The rule
    decides every 1 ms. It sheds the first request in the queue as soon as that would be late
    according to the fit. A free handler waits on while the summed wait of all requests, if one more
    arrived, would be below 0.95 times the average wait of the first request of a batch.
    """

    _TICK_S = 0.001

    def __init__(self, handler: Handler, max_batch_size: int, max_latency_s: float) -> None:
        self._handler = handler
        self._size = max_batch_size
        self._max_s = max_latency_s
        self._queue: deque[_Waiting] = deque()
        self._arrived = trio.Event()
        self._is_busy = False
        self._seen: deque[tuple[int, float, float]] = deque(maxlen=50)
        self._count = 0
        self._fitted_at = -math.inf
        self._a, self._b = min(2.0, max_latency_s * 2 / 30), min(1.0, max_latency_s / 30)
        self._wait_s = 0.0

    async def call(self, item: Any) -> Any:
        waiting = _Waiting(item, trio.current_time())
        self._queue.append(waiting)
        self._arrived.set()
        await waiting.done.wait()
        if waiting.is_shed:
            raise Shed
        return waiting.result

    async def run(self, nursery: trio.Nursery) -> None:
        for kept, batches, size in ((2, 8, 1), (6, 1, 1), (5, 1, 2), (3, 1, 3)):
            await self._train(nursery, kept, batches, size)
        while True:
            await self._wait_for_one()
            n, now = len(self._queue), trio.current_time()
            first_s = now - self._queue[0].since
            last_s = now - self._queue[-1].since
            if n > 1 and first_s + self._a * n + self._b >= self._max_s:
                self._shed_first()
            elif self._is_busy:
                if n == 1 and first_s >= self._max_s:
                    self._shed_first()
                else:
                    await trio.sleep(self._TICK_S)
            elif n < self._size and n * (last_s + self._TICK_S + self._a) <= self._wait_s * 0.95:
                await trio.sleep(self._TICK_S)
            else:
                self._start(nursery, is_training=False)

    async def _train(self, nursery: trio.Nursery, kept: int, batches: int, size: int) -> None:
        wait_s = min(self._max_s * 0.95, (2 * size + 1) * self._a + self._b)
        done = 0
        while done < batches:
            await self._wait_for_one()
            n, first_s = len(self._queue), trio.current_time() - self._queue[0].since
            if n > kept - done and first_s >= self._max_s:
                self._shed_first()
            elif self._is_busy or (n < size and size * self._a + self._b + first_s <= wait_s):
                await trio.sleep(self._TICK_S)
            else:
                done += 1
                self._start(nursery, is_training=True)
        self._fit()

    async def _wait_for_one(self) -> None:
        while not self._queue:
            self._arrived = trio.Event()
            await self._arrived.wait()

    def _shed_first(self) -> None:
        waiting = self._queue.popleft()
        waiting.is_shed = True
        waiting.done.set()

    def _start(self, nursery: trio.Nursery, *, is_training: bool) -> None:
        self._is_busy = True
        batch = [self._queue.popleft() for _ in range(min(self._size, len(self._queue)))]
        nursery.start_soon(self._handle, batch, is_training)

    async def _handle(self, batch: list[_Waiting], is_training: bool) -> None:
        began = trio.current_time()
        results = await self._handler([waiting.item for waiting in batch])
        for waiting, result in zip(batch, results, strict=True):
            waiting.result = result
            waiting.done.set()
        self._is_busy = False
        self._count += 1
        if self._count > 2:
            now = trio.current_time()
            waited_s = 0.0 if is_training else began - batch[0].since
            self._seen.append((len(batch), now - began, waited_s))
            if now - self._fitted_at >= 5:
                self._fitted_at = now
                self._fit()

    def _fit(self) -> None:
        if self._seen:
            sizes = [(size, 1) for size, _, _ in self._seen]
            a, b = np.linalg.lstsq(sizes, [run_s for _, run_s, _ in self._seen], rcond=None)[0]
            self._a, self._b = max(1e-6, float(a)), max(0.0, float(b))
            self._wait_s = mean(waited_s for _, _, waited_s in self._seen)


@asynccontextmanager
async def opened(
    handler: Handler, max_batch_size: int, max_latency_s: float
) -> AsyncIterator[Call]:
    """Runs the rule until the end of the block."""
    cork = Cork(handler, max_batch_size, max_latency_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cork.run, nursery)
        yield cork.call
        nursery.cancel_scope.cancel()
