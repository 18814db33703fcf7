"""One run of a handler that gives back one result for each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.batching.failures import own_copy
from shoal.batching.run import RUNNING, Run
from shoal.core.batch import Batch
from shoal.core.request import State
from shoal.errors import WrongBatchSize

if TYPE_CHECKING:
    from collections.abc import Sequence

FINISHED = State.FINISHED


class UnaryRun(Run):
    """Runs a handler that returns a list."""

    __slots__ = ()

    async def _attempt(self, batch: Batch) -> None:
        results = await self.handler.results([request.item for request in batch.requests])
        values = self._one_each(batch, results)
        if any(issubclass(kind, BaseException) for kind in set(map(type, values))):
            self._fail_slots(batch, values)
        running = batch.active
        for request, value in zip(batch.requests, values, strict=True):
            if request.state is RUNNING:
                request.value = value
                request.state = FINISHED
                request.batch = None
        batch.active = 0
        self.counters.finished += running
        self.parking.wake_all(batch.requests)

    async def _failed(self, batch: Batch, failure: Exception) -> None:
        waiting = [request for request in batch.requests if request.state is RUNNING]
        if not self.options.isolate_errors or len(waiting) < 2:
            await Run._failed(self, batch, failure)
            return
        middle = len(waiting) // 2
        for half in (waiting[:middle], waiting[middle:]):
            requests = [request for request in half if request.state is RUNNING]
            if requests:
                part = Batch(batch.id, batch.reason, requests)
                for request in requests:
                    request.batch = part
                await self._run(part)

    def _one_each(self, batch: Batch, results: Any) -> Sequence[Any]:
        wanted = batch.size
        got = self._counted(results, wanted)
        values = results if type(results) is list else list(results)
        if got != wanted or len(values) != wanted:
            raise WrongBatchSize(
                f"the handler of {self.name} was given {wanted} items and gave back {got} results; "
                "it must give back one for each, in their order",
                expected=wanted,
                got=got,
            )
        return values

    def _fail_slots(self, batch: Batch, values: Sequence[Any]) -> None:
        """Fails the requests whose slot holds an exception instance."""
        seen: set[int] = set()
        for request, value in zip(batch.requests, values, strict=True):
            if isinstance(value, BaseException) and request.state is RUNNING:
                self._fail(request, own_copy(value) if id(value) in seen else value)
                seen.add(id(value))
