"""One run of a handler that gives back one result for each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.batching.current import running_batch
from shoal.batching.failures import own_copy
from shoal.batching.run import RUNNING, Run
from shoal.core.batch import Batch
from shoal.core.request import State
from shoal.errors import WrongBatchSize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.batching.parking import Scope
    from shoal.core.request import Request

FINISHED = State.FINISHED


class UnaryRun(Run):
    """Runs a handler that returns a list."""

    __slots__ = ()

    async def _attempt(self, batch: Batch, requests: Sequence[Request]) -> None:
        items = self._items(requests)
        results = await self.handler.results(items)
        values = self._one_each(len(items), results)[: len(requests)]
        for kind in set(map(type, values)):
            if issubclass(kind, BaseException):
                self._fail_slots(requests, values)
        running = requests
        if batch.active < batch.size or len(requests) < batch.size:
            values = [v for r, v in zip(requests, values, strict=True) if r.state is RUNNING]
            running = _still_running(requests)
        for request, value in zip(running, values, strict=True):
            request.value = value
            request.state = FINISHED
            request.batch = None
        batch.active -= len(running)
        self.counters.finished += len(running)
        self.parking.wake_all(running)

    async def _failed(
        self, batch: Batch, requests: Sequence[Request], scope: Scope, failure: Exception
    ) -> None:
        if not self.options.isolate_errors or len(requests) < 2:
            await Run._failed(self, batch, requests, scope, failure)
            return
        # One that is left alone is run again too: another, whose caller has left, may be to blame.
        waiting = _still_running(requests)
        middle = len(waiting) // 2
        for half in (waiting[:middle], waiting[middle:]):
            part = _still_running(half)
            if part:
                token = running_batch.set(Batch(batch.id, batch.reason, part))
                try:
                    with self.parking.new_scope() as part_scope:
                        await self._run_requests(batch, part, part_scope)
                    if part_scope.cancel_called:
                        self._fail_all(part, self._timed_out)
                finally:
                    running_batch.reset(token)

    def _one_each(self, wanted: int, results: Any) -> Sequence[Any]:
        got = self._counted(results, wanted)
        values: list[Any] = self._listed(results, got)
        if got != wanted or len(values) != wanted:
            raise WrongBatchSize(
                f"the handler of {self.name} was given {wanted} items and gave back {got} results; "
                "it must give back one for each, in their order",
                expected=wanted,
                got=got,
            )
        return values

    def _fail_slots(self, requests: Sequence[Request], values: Sequence[Any]) -> None:
        """Fails the requests whose slot holds an exception instance."""
        for request, value in zip(requests, values, strict=True):
            if isinstance(value, BaseException) and request.state is RUNNING:
                self._fail(request, own_copy(value))


def _still_running(requests: Sequence[Request]) -> list[Request]:
    return [request for request in requests if request.state is RUNNING]
