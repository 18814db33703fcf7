"""One run of a handler that returns one result for each request."""

from __future__ import annotations

from types import CoroutineType
from typing import TYPE_CHECKING, Any

from shoal.batching.failures.exceptions import own_copy
from shoal.batching.handlers.batch_results import check_results
from shoal.batching.running.run import RUNNING, Run, kinds_of, still_running
from shoal.errors import WrongBatchSize, WrongResultType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.core.batch import Batch
    from shoal.core.request import Request


class UnaryRun(Run):
    """Runs a handler that returns a list."""

    __slots__ = ()

    async def _attempt(self, batch: Batch, requests: Sequence[Request]) -> None:
        items = self._items(requests)
        width = len(items)  # the handler may change the list
        results = await self.handler.results(items)
        values = self._one_each(width, results)
        if width > len(requests):
            values = values[: len(requests)]  # the results of padding are dropped
        for kind in kinds_of(values):
            if issubclass(kind, BaseException):
                self._fail_slots(requests, values)
            elif kind is CoroutineType and self.handler.threaded:
                raise self._not_awaited(values)
        running = requests
        if batch.active < batch.size or len(requests) < batch.size:
            values = [v for r, v in zip(requests, values, strict=True) if r.state is RUNNING]
            running = still_running(requests)
        batch.active -= len(running)
        self.counters.finished += len(running)
        (batch.group or self.parking).answer_all(running, values)

    def _one_each(self, wanted: int, results: Any) -> Sequence[Any]:
        if results.__class__ is list and len(results) == wanted:
            return list(results)  # the usual case; the handler may change its list
        check_results(self.handler.name, wanted, results)
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

    def _not_awaited(self, values: Sequence[Any]) -> WrongResultType:
        """Returns the error for results that a plain handler could not await."""
        coroutines: list[Any] = [value for value in values if type(value) is CoroutineType]
        for each in coroutines:
            each.close()  # or Python warns that nothing has awaited it
        return WrongResultType(
            f"the handler of {self.name} gave back a coroutine, which it can't await in its "
            "thread; it gets the result of a batched function f by f.from_thread(item), and that "
            "of another async function by anyio.from_thread.run"
        )

    def _fail_slots(self, requests: Sequence[Request], values: Sequence[Any]) -> None:
        """Fails the requests whose result is an exception instance."""
        for request, value in zip(requests, values, strict=True):
            if issubclass(type(value), BaseException) and request.state is RUNNING:
                self._fail(request, own_copy(value))
