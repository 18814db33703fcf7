"""One run of a generator handler: one slot for each request in every step.

The handler is held back, between its steps, while some reader's buffer is full. A reader that holds
it back for longer than ``slow_reader_timeout_s`` in all, without having caught up once, fails
alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from shoal.batching.failures import own_copy
from shoal.batching.run import RUNNING, Run
from shoal.batching.stream import END, SKIP
from shoal.core.request import State
from shoal.errors import SlowReader, WrongBatchSize

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from shoal.batching.buffer import StreamBuffer
    from shoal.core.batch import Batch
    from shoal.core.request import Request


class StreamRun(Run):
    """Runs a generator handler."""

    __slots__ = ()

    async def _attempt(self, batch: Batch, requests: Sequence[Request]) -> None:
        steps = self.handler.steps([request.item for request in requests])
        try:
            await self._pump(batch, steps)
        finally:
            # A generator that is left between steps has clean-up of its own to do, and gets the
            # time that closing a batcher gets.
            with anyio.move_on_after(self.options.graceful_shutdown_timeout_s, shield=True):
                await steps.aclose()
        for request in requests:
            if request.state is RUNNING:
                self._finish(request)

    async def _pump(self, batch: Batch, steps: AsyncGenerator[Any, None]) -> None:
        async for step in steps:
            full = self._hand_out(batch, step)
            if full:
                await self._wait_for_readers(full)
            elif not self.handler.threaded and (batch.active or self._goes_on_alone(batch)):
                # An async generator may come to its next step without a pause, and then the readers
                # would get no turn. A step in a thread is a pause, and they read beside it.
                await anyio.lowlevel.checkpoint()
            if batch.active == 0 and not self._goes_on_alone(batch):
                return

    def _hand_out(self, batch: Batch, step: Any) -> list[Request]:
        """Puts each slot of a step into its stream; returns the requests whose buffer is full."""
        got = self._counted(step, batch.size)
        slots: list[Any] = self._listed(step, got)
        if got != batch.size or len(slots) != batch.size:
            raise WrongBatchSize(
                f"the handler of {self.name} has {batch.size} requests and yielded {got} slots; "
                "each step must have one for each, shoal.END for a stream that is over",
                expected=batch.size,
                got=got,
            )
        full: list[Request] = []
        for request, slot in zip(batch.requests, slots, strict=True):
            if request.state is not RUNNING or slot is SKIP:
                continue
            if slot is END or slot is StopIteration or slot is StopAsyncIteration:
                self._finish(request)
            elif isinstance(slot, BaseException):
                self._fail(request, own_copy(slot))
            else:
                buffer = request.cell
                buffer.items.append(slot)
                if buffer.reader is not None:
                    buffer.wake()
                if len(buffer.items) >= buffer.capacity:
                    full.append(request)
        return full

    def _finish(self, request: Request) -> None:
        self._end(request, State.FINISHED)
        self.counters.finished += 1
        request.cell.wake()

    def _goes_on_alone(self, batch: Batch) -> bool:
        return not self.options.cancel_abandoned and any(
            request.state is State.CANCELLED for request in batch.requests
        )

    async def _wait_for_readers(self, full: list[Request]) -> None:
        """Waits until no buffer is full, but no longer than its readers may hold the batch back."""
        limit_s = self.options.slow_reader_timeout_s
        while full:
            now = self.parking.now()
            hold = self.parking.new_cell()
            for request in full:
                request.cell.begin_hold(hold, now)
            scope = self.parking.new_scope()
            due: dict[Request, float] = {}
            if limit_s is not None:
                due = {request: now + limit_s - request.cell.held_s for request in full}
                scope.deadline = min(due.values())
            with scope:
                await hold
            now = self.parking.now()
            for request in full:
                request.cell.end_hold(now)
            full = [r for r in full if r.state is RUNNING and self._is_full(r)]
            if limit_s is not None:
                for request in full:
                    if now >= due[request]:
                        self._fail(request, self._too_slow(request.cell, limit_s))
                full = [request for request in full if request.state is RUNNING]

    def _is_full(self, request: Request) -> bool:
        buffer: StreamBuffer = request.cell
        return len(buffer.items) >= buffer.capacity

    def _too_slow(self, buffer: StreamBuffer, limit_s: float) -> SlowReader:
        return SlowReader(
            f"a stream of {self.name} held its batch back for {limit_s} s: "
            f"its reader left {buffer.capacity} items waiting"
        )
