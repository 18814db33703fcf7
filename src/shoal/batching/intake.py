"""How a call enters the line, waits, and leaves: the callers' half of a batcher.

This is the memory channel between callers and slots. Its buffer is the line itself, so that a
caller that leaves takes its request out of the buffer at once, which no general channel allows; its
receiving end is the doorbell of the slot that waits. What a caller gets back comes over its
request's own cell.

`call` is the hot path. It is one coroutine, does nothing twice, and allocates the request, its cell
and a copy of the caller's context, and no more.
"""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import anyio.lowlevel

from shoal.batching.group import GroupCell
from shoal.batching.stream import ResultStream, StreamBuffer
from shoal.core.forming import Former
from shoal.core.request import CallOptions, Request, State
from shoal.errors import BatcherClosed, DeadlineExceeded, Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from shoal.batching.parking import Parking
    from shoal.batching.signature import Binding
    from shoal.core.counters import Counters
    from shoal.core.options import BatchOptions

Extras: TypeAlias = "tuple[float | None, Mapping[str, Any] | None]"
"""What one call asks for beside its item: its deadline in seconds from its start, its metadata."""

QUEUED = State.QUEUED
PARKED = State.PARKED
RUNNING = State.RUNNING


class Intake:
    """The line of one open batcher, from its callers' side.

    Attributes:
        name: The batcher's name, for messages.
        former: The line and the rule that cuts batches from it.
        ring: Wakes the slot that waits for requests; the slots set it.
    """

    def __init__(
        self,
        name: str,
        binding: Binding,
        options: BatchOptions,
        parking: Parking,
        counters: Counters,
    ) -> None:
        self.name = name
        self.former = Former(options)
        self.ring: Callable[[], None] = _nobody_listens
        self._binding = binding
        self._parking = parking
        self._counters = counters
        self._now = parking.now
        self._new_cell = parking.new_cell
        self._closed = False
        # Whether a call of one positional argument needs neither binding nor a deadline.
        self.takes_bare_items = False
        self.configure(options)
        self._failure: BaseException | None = None

    def configure(self, options: BatchOptions) -> None:
        """Takes in new options, for the calls that are made from now on."""
        self.former.reform(options)
        self.takes_bare_items = self._binding.single and options.request_timeout_s is None

    def begin(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], extras: Extras | None
    ) -> Coroutine[Any, Any, Any]:
        """Binds a call and returns the coroutine that makes it.

        Raises:
            TypeError: The arguments don't fit the handler's parameters.
        """
        item = self._binding.item(args, kwargs)
        if extras is None and self.former.options.request_timeout_s is None:
            return self.call(item, None)
        options = self._call_options(extras)
        return (
            self.call(item, options) if options.deadline is None else self.call_until(item, options)
        )

    def begin_map(
        self, columns: tuple[Iterable[Any], ...], extras: Extras | None, *, return_exceptions: bool
    ) -> Coroutine[Any, Any, list[Any]]:
        """Binds many calls, one for each element of the columns, and returns their coroutine.

        Raises:
            TypeError: The columns don't fit the handler's parameters.
            ValueError: The columns have different lengths.
        """
        if self._binding.single and len(columns) == 1:
            items = list(columns[0])
        else:
            items = [self._binding.item(args, {}) for args in zip(*columns, strict=True)]
        options = None
        if extras is not None or self.former.options.request_timeout_s is not None:
            options = self._call_options(extras)
        return self.map(items, options, return_exceptions=return_exceptions)

    def begin_stream(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], extras: Extras | None
    ) -> ResultStream[Any]:
        """Binds a call and returns the stream that makes it when it is entered.

        Raises:
            TypeError: The arguments don't fit the handler's parameters.
        """
        item = self._binding.item(args, kwargs)
        options = None
        if extras is not None or self.former.options.request_timeout_s is not None:
            options = self._call_options(extras)
        return ResultStream(self, item, options)

    async def call(self, item: Any, options: CallOptions | None) -> Any:
        """Puts one request in line and waits for its result.

        Returns:
            What the handler gave back for the item.

        Raises:
            Overloaded: The line is full.
            BatcherClosed: The batcher stopped before it could answer.
            Exception: What the handler raised, or put into this request's slot.

        Cancellation: the request is dropped, from the line or from its batch; no other is touched.
        """
        former = self.former
        request = Request()
        request.item = item
        request.cell = cell = self._new_cell()
        request.arrived_at = self._now()
        request.context = copy_context()
        request.options = options
        request.error = request.batch = None
        live = former.live
        if live < former.room:  # Former.arrive, without the call
            request.state = QUEUED
            former.queue.append(request)
            former.live = live = live + 1
            if live == former.wake_at:
                self.ring()
        else:
            self._overflow(request)
        try:
            await cell
        except BaseException:
            self.abandon(request)
            raise
        if request.error is not None:
            try:
                raise request.error
            finally:
                # The error's traceback holds this frame, so the frame lets go of the error.
                request.error = None
        return request.value

    async def call_until(self, item: Any, options: CallOptions) -> Any:
        """Like `call`, but fails with `DeadlineExceeded` at the deadline in `options`."""
        assert options.deadline is not None
        result = None
        with anyio.CancelScope(deadline=options.deadline) as scope:
            result = await self.call(item, options)
        if scope.cancelled_caught:
            self.count_as_expired(1)
            raise DeadlineExceeded(f"{self.name} did not answer by the call's deadline")
        return result

    async def map(
        self, items: list[Any], options: CallOptions | None, *, return_exceptions: bool
    ) -> list[Any]:
        """Puts many requests in line at once and waits for all of them, with one wake-up.

        Returns:
            The results in the order of `items`.

        Raises:
            Overloaded: Not all of them fit into the line; then none was put in.
            Exception: The first error, in the order of `items`, unless `return_exceptions`.

        Cancellation: all of the requests are dropped.
        """
        if not items:
            await anyio.lowlevel.checkpoint()
            return []
        requests = self._submit_group(items, options)
        group: GroupCell = requests[0].cell
        try:
            if options is None or options.deadline is None:
                await group
            else:
                with anyio.CancelScope(deadline=options.deadline) as scope:
                    await group
                if scope.cancelled_caught:
                    self._expire_group(requests)
        except BaseException:
            for request in requests:
                self.abandon(request)
            raise
        return _outcomes(requests, return_exceptions=return_exceptions)

    def submit_stream(self, item: Any, options: CallOptions | None) -> Request:
        """Puts the request of one stream in line and returns it; its cell is the stream's buffer.

        Raises:
            Overloaded: The line is full.
            BatcherClosed: The batcher has stopped.
        """
        buffer = StreamBuffer(self._parking, self.former.options.stream_buffer)
        request = self._new_request(item, options, buffer)
        self._enter(request)
        return request

    def abandon(self, request: Request) -> None:
        """Drops a request whose caller has left; does nothing if it has come to an end already."""
        state = request.state
        if state is RUNNING:
            batch, request.batch = request.batch, None
            assert batch is not None
            request.state = State.CANCELLED
            self._counters.cancelled += 1
            batch.active -= 1
            if batch.active == 0 and batch.on_abandoned is not None:
                batch.on_abandoned()
        elif state is QUEUED or state is PARKED:
            self._counters.cancelled += 1
            if self.former.leave(request):
                self.ring()

    def expire(self, request: Request) -> None:
        """Drops a request that has run out of time."""
        self.abandon(request)
        self.count_as_expired(1)

    def count_as_expired(self, requests: int) -> None:
        """Counts requests that were dropped as having run out of time, not as cancelled."""
        self._counters.cancelled -= requests
        self._counters.expired += requests

    def close(self) -> None:
        """Lets no further call in; what is in line stays."""
        self._closed = True
        self.former.close()
        self.ring()

    def fail(self, requests: Iterable[Request], failure: BaseException | None) -> None:
        """Fails requests, and every later call, because the batcher has stopped."""
        self._failure = failure
        for request in requests:
            request.error = self.closed_error()
            request.state = State.FAILED
            if (batch := request.batch) is not None:
                batch.active -= 1
                request.batch = None
            self._counters.failed += 1
            self._parking.wake_all((request,))

    def closed_error(self) -> BatcherClosed:
        """Makes the error of one caller that the batcher could not answer."""
        if self._failure is None:
            return BatcherClosed(f"{self.name} is closed")
        error = BatcherClosed(f"{self.name} stopped: {self._failure!r}")
        error.__cause__ = self._failure
        return error

    def _call_options(self, extras: Extras | None) -> CallOptions:
        deadline_s, metadata = (None, None) if extras is None else extras
        limit_s = self.former.options.request_timeout_s
        if deadline_s is None or (limit_s is not None and limit_s < deadline_s):
            deadline_s = limit_s
        return CallOptions(None if deadline_s is None else self._now() + deadline_s, metadata)

    def _new_request(self, item: Any, options: CallOptions | None, cell: Any) -> Request:
        request = Request()
        request.item = item
        request.cell = cell
        request.arrived_at = self._now()
        request.context = copy_context()
        request.options = options
        request.error = request.batch = None
        return request

    def _enter(self, request: Request) -> None:
        if self.former.live < self.former.room:
            request.state = QUEUED
            if self.former.arrive(request):
                self.ring()
        else:
            self._overflow(request)

    def _overflow(self, request: Request) -> None:
        if self._closed:
            raise self.closed_error()
        if self.former.options.overload == "reject":
            self._counters.rejected += 1
            raise self._full()
        request.state = PARKED
        self.former.park(request)

    def _full(self) -> Overloaded:
        return Overloaded(
            f"{self.name} is overloaded: {self.former.live} requests are waiting, "
            f"and max_queued_requests={self.former.options.max_queued_requests}"
        )

    def _submit_group(self, items: list[Any], options: CallOptions | None) -> list[Request]:
        former = self.former
        if len(items) > former.room - former.live:
            if self._closed:
                raise self.closed_error()
            if former.options.overload == "reject":
                self._counters.rejected += len(items)
                raise self._full()
        group = GroupCell(self._parking, len(items))
        now = self._now()
        context = copy_context()
        requests: list[Request] = []
        for item in items:
            request = Request()
            request.item = item
            request.cell = group
            request.arrived_at = now
            request.context = context
            request.options = options
            request.error = request.batch = None
            request.state = QUEUED
            requests.append(request)
        room = int(min(len(requests), max(0, former.room - former.live)))
        if former.arrive_all(requests[:room]):
            self.ring()
        for request in requests[room:]:
            request.state = PARKED
            former.park(request)
        return requests

    def _expire_group(self, requests: list[Request]) -> None:
        late = [request for request in requests if request.state in (PARKED, QUEUED, RUNNING)]
        for request in late:
            self.expire(request)
            request.error = DeadlineExceeded(f"{self.name} did not answer by the call's deadline")


def _outcomes(requests: list[Request], *, return_exceptions: bool) -> list[Any]:
    if not return_exceptions:
        for request in requests:
            if request.error is not None:
                raise request.error
    return [r.value if r.error is None else r.error for r in requests]


def _nobody_listens() -> None:
    """What an arrival rings before the slots have started."""
