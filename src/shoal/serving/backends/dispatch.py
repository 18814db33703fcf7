"""Runs a batch on a replica, and on another one if that dies and ``retries`` allows it.

This is the handler of a backend's batchers. It takes its replica before it first waits, as `Room`
requires. A request runs again only if no part of its answer has reached the caller. In a batch that
streams, the requests without an item run again, and the others fail.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.calls.stream import END, SKIP
from shoal.batching.current import running_batch
from shoal.batching.handlers.binding import Binding
from shoal.batching.handlers.handler import Handler
from shoal.errors import ReplicaDied
from shoal.failures.exceptions import own_copy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from shoal.batching.handlers.handler import Fill
    from shoal.batching.open.batch import OpenBatch
    from shoal.replicas.code.description import Method
    from shoal.serving.replica_set.pool import Member, Pool

logger: Final = logging.getLogger("shoal.serving")


class BatchDispatcher:
    def __init__(self, name: str, method: Method, pool: Pool, retries: Callable[[], int]) -> None:
        self._name = name
        self._method = method.name
        self._pool = pool
        self._retries = retries  # read at each death: it may change
        binding = Binding.of_items(method.signature, "items")
        self.handler = Handler(self._steps if method.streams else self._run, binding=binding)
        self.handler.name = name

    async def _run(self, items: list[Any]) -> Any:
        tries = 0
        size = running_batch.get().size  # with padding there are more items
        while True:
            member = self._pool.choose(size) or await self._pool.wait(size)
            self._pool.begin(member, size)
            try:
                # Each run has a list of its own, which the code may change.
                return await member.replica.run(self._method, list(items))
            except ReplicaDied as death:
                if not self._runs_again(member, death, tries):
                    raise
            finally:
                self._pool.end(member, size)
            tries += 1

    async def _steps(self, items: list[Any]) -> AsyncGenerator[Any, None]:
        left = list(range(len(items)))
        tries = 0
        while left:
            size = min(len(left), running_batch.get().size)
            member = self._pool.choose(size) or await self._pool.wait(size)
            # Recording each step costs time, so a batch that can't run again skips it.
            attempt = _Attempt(left, len(items)) if tries or self._retries() else None
            self._pool.begin(member, size)
            try:
                steps = member.replica.run_stream(self._method, [items[i] for i in left])
                async with aclosing(steps):
                    async for step in steps:
                        yield step if attempt is None else attempt.spread(step)
                return
            except ReplicaDied as death:
                if attempt is None:
                    self._note(member, death)
                    raise
                if not self._runs_again(member, death, tries):
                    raise
                if attempt.begun:
                    yield attempt.failed(death)
            finally:
                self._pool.end(member, size)
            left = attempt.untouched()
            tries += 1

    def _note(self, member: Member, death: ReplicaDied) -> bool:
        """Withdraws a replica that died; returns whether it was the one that died."""
        if death.replica not in ("", member.replica.tag):
            return False
        self._pool.withdraw(member)
        return True

    def _runs_again(self, member: Member, death: ReplicaDied, tries: int) -> bool:
        # The replica that died may be another one, which the code has called.
        is_own = self._note(member, death)
        if not is_own or tries >= self._retries():
            return False
        logger.warning("%s: a batch runs again, since %s", self._name, death)
        return True


def open_handler(pool: Pool, method: str, fill: Fill, streams: bool, binding: Binding) -> Handler:
    """Makes the handler of batches that take requests while they run, in this event loop."""

    async def run(batch: OpenBatch[Any, Any]) -> None:
        member = pool.choose(1) or await pool.wait(1)
        running = running_batch.get()
        member.on_withdrawn.append(batch.leave)
        member.open.append(running)  # so that it counts by its requests
        pool.begin(member, 1)
        try:
            await member.replica.run_open(method, batch)
        finally:
            member.open.remove(running)
            member.on_withdrawn.remove(batch.leave)
            pool.end(member, 1)

    return Handler(run, fill=fill, streams=streams, binding=binding)


class _Attempt:
    """One run of a streaming batch: the requests in it, and the progress of each."""

    def __init__(self, positions: list[int], width: int) -> None:
        self._positions = positions
        self._width = width
        self._is_whole = len(positions) == width
        self._sent: set[int] = set()
        self._over: set[int] = set()

    @property
    def begun(self) -> bool:
        return bool(self._sent - self._over)

    def spread(self, step: Any) -> Any:
        """Records a step, and moves its values to their requests' places in the batch."""
        try:
            slots = list(step)
        except TypeError:
            return step
        if len(slots) != len(self._positions):
            return step
        for position, slot in zip(self._positions, slots, strict=True):
            if (
                slot is END
                or slot is StopIteration
                or slot is StopAsyncIteration
                or issubclass(type(slot), BaseException)
            ):
                self._over.add(position)
            elif slot is not SKIP:
                self._sent.add(position)
        return step if self._is_whole else self._at(dict(zip(self._positions, slots, strict=True)))

    def failed(self, death: ReplicaDied) -> list[Any]:
        """Returns a step that fails the requests that can't run again."""
        return self._at({position: own_copy(death) for position in self._sent - self._over})

    def untouched(self) -> list[int]:
        """Returns the positions of the requests without any result."""
        return [p for p in self._positions if p not in self._sent and p not in self._over]

    def _at(self, slots: dict[int, Any]) -> list[Any]:
        return [slots.get(position, SKIP) for position in range(self._width)]
