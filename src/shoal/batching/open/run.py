"""One run of a handler that answers each request of an open batch separately."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import anyio.lowlevel

from shoal.batching.calls.stream import Mark
from shoal.batching.failures.exceptions import own_copy
from shoal.batching.open.batch import OpenBatch
from shoal.batching.running.run import RUNNING, Run
from shoal.batching.stream_buffer import is_full, too_slow, wait_for_readers
from shoal.core.request import State
from shoal.errors import Unfinished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.batching.loops.parking import Scope
    from shoal.batching.open.joining import Joining
    from shoal.core.batch import Batch
    from shoal.core.request import Request


@dataclass(slots=True)
class OpenRun(Run):
    """Runs a handler on batches that take requests meanwhile.

    Attributes:
        opened: The `Joining` of each running batch.
    """

    opened: dict[Batch, Joining] = field(default_factory=dict["Batch", "Joining"])

    async def send(self, request: Request, chunk: Any) -> None:
        """Puts an item into a request's stream, once there is room."""
        if isinstance(chunk, (Mark, BaseException)):
            raise TypeError(
                f"an item of a stream can't be {chunk!r}: finish() ends the stream, fail(error) "
                "fails it, and where there is nothing to send, send nothing"
            )
        if not self.handler.streams:
            raise TypeError(
                f"a call to {self.name} is answered once, by finish(result); "
                "for a stream of items write fill=..., streams=True"
            )
        await anyio.lowlevel.checkpoint()
        while request.state is RUNNING and is_full(request):
            if request.waiter.hold is not None:
                raise RuntimeError("another task is sending to this request already")
            limit_s = self.options.slow_reader_timeout_s
            await wait_for_readers([request], limit_s, self.parking, self._fail_slow_reader)
        if request.state is RUNNING:
            request.waiter.items.append(chunk)
            request.waiter.wake()

    def finish(self, request: Request, value: Any) -> None:
        """Ends a request with its result, or a stream with its end."""
        if self.handler.streams and value is not None:
            raise TypeError(
                f"a stream of {self.name} has no result but its items; send(item), then finish()"
            )
        if isinstance(value, BaseException):
            raise TypeError(f"a result can't be {value!r}: fail(error) fails the request")
        if request.state is not RUNNING:
            return
        if self.handler.streams:
            self._finish_stream(request)
            return
        request.value = value
        self._end(request, State.FINISHED)
        self.counters.finished += 1
        self.parking.wake_all((request,))

    def fail(self, request: Request, error: BaseException) -> None:
        """Ends a request with an error."""
        if not isinstance(error, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"fail() takes an exception, not {error!r}; write request.fail(ValueError(...))"
            )
        if request.state is RUNNING:
            self._fail(request, own_copy(error))

    @property
    def _wants_to_know(self) -> bool:
        return True

    def _left(self, batch: Batch, scope: Scope, request: Request | None) -> None:
        joining = self.opened[batch]
        if request is not None:
            joining.ended(request)
        if joining.is_abandoned and self.options.cancel_abandoned:
            scope.cancel()

    def _end(self, request: Request, state: State) -> None:
        batch = request.batch
        Run._end(self, request, state)
        self.opened[cast("Batch", batch)].ended(request)

    async def _attempt(self, batch: Batch, requests: Sequence[Request]) -> None:
        joining = self.opened[batch]
        try:
            await self.handler.function(OpenBatch[Any, Any](joining, self))
        finally:
            joining.has_ended = True
        self._fail_all(requests, self._unfinished)

    def _time_is_up(self, batch: Batch, requests: Sequence[Request], scope: Scope) -> None:
        self.opened[batch].has_ended = True  # so that no more requests join
        Run._time_is_up(self, batch, requests, scope)

    def _fail_slow_reader(self, request: Request) -> None:
        self._fail(request, too_slow(self.name, request, self.options.slow_reader_timeout_s))

    def _unfinished(self) -> Unfinished:
        return Unfinished(f"the handler of {self.name} ended and left this request unanswered")
