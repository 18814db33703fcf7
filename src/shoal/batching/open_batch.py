"""The handler's interface to batches that take requests while the handler runs.

The handler answers each request separately, at any time. `joining` adds requests to the batch. This
module holds them until the handler takes them, and has the methods to answer them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast

import anyio.lowlevel

from shoal.batching.calls.stream import Mark
from shoal.batching.running.run import RUNNING, Run
from shoal.batching.stream_buffer import is_full, wait_for_readers, wait_for_room
from shoal.errors import Unfinished
from shoal.failures.exceptions import own_copy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from shoal.batching.joining import Joining
    from shoal.core.request import Batch, DispatchReason, Draining, Request, State
    from shoal.loops.parking import Scope

T = TypeVar("T")
R = TypeVar("R")


class Joins(Protocol):
    """How requests join a batch: from the queue of this process, or over a wire."""

    batch: Batch
    # Requests that have joined and were not taken from this list yet.
    joined: list[Request]

    def pull(self) -> None:
        """Adds requests that join when the handler asks, and drops those that have ended."""

    async def wait(self) -> bool:
        """Waits until a request may have joined; returns False if no more will join."""
        ...

    def stepped(self, *active: int) -> None:
        """Called when the handler begins steps, with how many requests are active in each."""

    async def pause(self) -> None:
        """Executes a checkpoint between two steps."""

    def leave(self) -> None:
        """Takes no more requests, and ends when the present ones have ended."""


class AnswerSink(Protocol):
    """How the requests of a batch are answered: in this process, or over a wire."""

    @property
    def name(self) -> str: ...

    @property
    def streams(self) -> bool: ...

    async def send(self, chunks: Sequence[tuple[Request, Any]]) -> None:
        """Sends an item to each of several streams, once all of them have room."""

    def finish(self, request: Request, value: Any) -> None:
        """Ends a request with its result, or ends its stream, unless it has ended."""

    def fail(self, request: Request, error: BaseException) -> None:
        """Ends a request with an error, unless it has ended."""


class OpenRequest(Generic[T, R]):
    """One request of an open batch, which the handler answers separately.

    Attributes:
        item: What the caller passed; a tuple if a ``signature`` has several parameters.
    """

    __slots__ = ("_has_ended", "_request", "_run", "item")

    item: T

    def __init__(self, request: Request, run: AnswerSink) -> None:
        self.item = request.item
        self._request = request
        self._run = run
        self._has_ended = False

    @property
    def cancelled(self) -> bool:
        """Whether its caller has left."""
        return self._request.state is not RUNNING and not self._has_ended

    @property
    def ended(self) -> bool:
        """Whether it has been finished or failed, or its caller has left."""
        return self._request.state is not RUNNING

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the caller passed as ``options(metadata=...)``; empty by default."""
        return self._request.metadata

    @property
    def deadline(self) -> float | None:
        """When it must have ended, on the event loop's clock; None for no deadline."""
        return self._request.deadline

    @property
    def priority(self) -> int:
        """Its priority level; 1 is the highest."""
        return self._request.priority

    @property
    def cost(self) -> float:
        """The result of ``batch_size_fn`` for its item; 1 without that option."""
        return self._request.cost

    @property
    def arrived_at(self) -> float:
        """When the call was made, in seconds on the event loop's clock."""
        return self._request.arrived_at

    async def send(self, chunk: R) -> None:
        """Sends one item of a stream; does nothing if the caller has left.

        It waits while the reader's buffer is full; a reader that is too slow fails alone with
        `SlowReader`.

        Raises:
            TypeError: Calls are not answered with streams.
            RuntimeError: The request has been finished or failed.

        Cancellation: the item is not sent. Checkpoint: as by `OpenBatch.send`, which takes one for
        all items of a step.
        """
        await self._run.send([self.takes(chunk, self._run)])

    def finish(self, value: R | None = None) -> None:
        """Ends the request with its result, or ends its stream.

        It does nothing if the caller has left.

        Raises:
            TypeError: A result was given for a stream; send its items instead.
            RuntimeError: The request has been finished or failed.
        """
        self._check_open("finish it")
        run = self._run
        if run.streams and value is not None:
            raise TypeError(
                f"a stream of {run.name} has no result but its items; send(item), then finish()"
            )
        if isinstance(value, BaseException):
            raise TypeError(f"a result can't be {value!r}: fail(error) fails the request")
        was_running = not self.ended
        run.finish(self._request, value)
        self._has_ended = was_running

    def fail(self, error: BaseException) -> None:
        """Ends the request with an error; the caller gets a copy of it.

        Raises:
            RuntimeError: The request has been finished or failed.
        """
        self._check_open("fail it")
        if not isinstance(error, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"fail() takes an exception, not {error!r}; write request.fail(ValueError(...))"
            )
        was_running = not self.ended
        self._run.fail(self._request, error)
        self._has_ended = was_running

    def takes(self, chunk: R, run: AnswerSink) -> tuple[Request, R]:
        """Checks that an item may be sent now by a run; returns what `AnswerSink.send` takes."""
        if run is not self._run:
            raise ValueError(f"{self!r} is of another batcher: send by its own batch")
        self._check_open("send an item")
        if isinstance(chunk, (Mark, BaseException)):
            raise TypeError(
                f"an item of a stream can't be {chunk!r}: finish() ends the stream, fail(error) "
                "fails it, and where there is nothing to send, send nothing"
            )
        if not run.streams:
            raise TypeError(
                f"a call to {run.name} is answered once, by finish(result); "
                "for a stream of items write fill=..., streams=True"
            )
        return self._request, chunk

    def _check_open(self, what: str) -> None:
        if self._has_ended:
            raise RuntimeError(f"{self!r} has been answered already: you can't {what}")

    def __repr__(self) -> str:
        return f"<OpenRequest {self._request.state.value} item={self.item!r:.60}>"


class OpenBatch(Generic[T, R]):
    """A batch that takes requests while its handler runs.

    ``async for request in batch`` yields each request as it joins. With ``fill="open"`` it ends
    when the batch is full or its wait is over; with ``fill="continuous"`` when the batcher closes.
    ``async for joined in batch.steps()`` is for handlers that work in steps: before each step it
    yields the requests that join now, and it waits only while no request is active.
    """

    def __init__(self, joining: Joins, run: AnswerSink) -> None:
        self._batch = joining.batch
        self._joining = joining
        self._run = run
        self._active: list[OpenRequest[T, R]] = []
        # Requests that have joined and were not yielded yet.
        self._ahead: list[OpenRequest[T, R]] = []

    @property
    def id(self) -> int:
        """A number that is unique among the batches of this batcher."""
        return self._batch.id

    @property
    def size(self) -> int:
        """How many requests have joined so far."""
        return self._batch.size

    @property
    def reason(self) -> DispatchReason:
        """Why the batch was closed to further requests; ``open`` until then, or after `leave`."""
        return self._batch.reason

    @property
    def draining(self) -> Draining:
        """Set when the batcher drains or begins to close; endless requests should be ended then."""
        return self._batch.draining

    @property
    def active(self) -> list[OpenRequest[T, R]]:
        """The requests that the handler has taken and not answered, in the order of taking."""
        self._drop_ended()
        return list(self._active)

    def join_nowait(self) -> list[OpenRequest[T, R]]:
        """Returns the requests that join now, in order; can be empty."""
        self._look()
        self._joining.stepped(self._batch.active)
        joined, self._ahead = self._ahead, []
        self._active += joined
        return joined

    async def send(self, chunks: Mapping[OpenRequest[T, R], R]) -> None:
        """Sends an item to each of several streams, such as the tokens of a step.

        This is cheaper than one send for each, which has a checkpoint for each. It waits until the
        buffers of all of them have room; a reader that is too slow fails alone with `SlowReader`.
        Requests with callers that have left get nothing.

        Args:
            chunks: The items, by request.

        Raises:
            TypeError: Calls are not answered with streams, or the items are not in a mapping.
            ValueError: One of the requests is of another batcher.
            RuntimeError: One of the requests has been finished or failed.

        Cancellation, or an error: nothing is sent. Checkpoint: always; in a replica that is
        elsewhere, at least every 10 ms.
        """
        try:
            items = chunks.items()
        except AttributeError:
            raise TypeError(
                f"send() takes a dict of an item for each request, not {chunks!r:.80}"
            ) from None
        run = self._run
        await run.send([request.takes(chunk, run) for request, chunk in items])

    def leave(self) -> None:
        """Takes no more requests, and ends when the present ones have ended.

        For handlers that run in a place that will shut down, such as a replica.
        """
        self._joining.leave()

    def _look(self) -> None:
        joining = self._joining
        joining.pull()
        if len(self._active) + len(self._ahead) + len(joining.joined) > self._batch.active:
            self._drop_ended()
        if joining.joined:
            self._ahead += [
                OpenRequest[T, R](request, self._run)
                for request in joining.joined
                if request.state is RUNNING
            ]
            joining.joined.clear()

    def _drop_ended(self) -> None:
        self._active = [request for request in self._active if not request.ended]
        self._ahead = [request for request in self._ahead if not request.ended]

    async def join(self) -> list[OpenRequest[T, R]]:
        """Waits until requests join, and returns them; an empty list if no more will join.

        Cancellation: no request is lost. Checkpoint: always.
        """
        await anyio.lowlevel.checkpoint()
        while not (joined := self.join_nowait()):
            if not await self._joining.wait():
                break
        return joined

    def steps(self) -> AsyncIterator[list[OpenRequest[T, R]]]:
        """Yields the requests that join before each step of the handler; can be an empty list.

        It waits only while no request is active, and ends when none is active and none will join.
        """
        return _Steps(self, self._joining)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OpenRequest[T, R]:
        """Waits for the next request that joins.

        Cancellation: no request is lost. Checkpoint: always.
        """
        await anyio.lowlevel.checkpoint()
        while True:
            self._look()
            if self._ahead:
                request = self._ahead.pop(0)
                self._active.append(request)
                return request
            if not await self._joining.wait():
                raise StopAsyncIteration

    def __repr__(self) -> str:
        return f"<OpenBatch {self.id} size={self.size} active={len(self.active)}>"


class _Steps(Generic[T, R]):
    def __init__(self, batch: OpenBatch[T, R], joining: Joins) -> None:
        self._batch = batch
        self._joining = joining

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[OpenRequest[T, R]]:
        batch = self._batch
        await self._joining.pause()
        while not (joined := batch.join_nowait()) and not self._joining.batch.active:
            if not await self._joining.wait():
                raise StopAsyncIteration
        return joined


@dataclass(slots=True)
class OpenRun(Run):
    """Runs a handler on batches that take requests while they run."""

    joinings: dict[Batch, Joining] = field(default_factory=dict["Batch", "Joining"])
    """How requests join each of the running batches."""

    @property
    def streams(self) -> bool:
        return self.handler.streams

    async def send(self, chunks: Sequence[tuple[Request, Any]]) -> None:
        await self.parking.checkpoint()
        await self.wait_for_room([request for request, _ in chunks])
        for request, chunk in chunks:
            if request.state is RUNNING:
                request.waiter.items.append(chunk)
                request.waiter.offer()

    async def wait_for_room(self, requests: Sequence[Request]) -> None:
        """Waits until each stream has room for an item; a reader that is too slow fails alone."""
        await wait_for_room(requests, is_full, self._wait_for_readers)

    async def _wait_for_readers(self, full: list[Request]) -> None:
        limit_s = self.options.slow_reader_timeout_s
        await wait_for_readers(full, limit_s, self.parking, self._fail_slow_reader)

    def finish(self, request: Request, value: Any) -> None:
        if request.state is not RUNNING:
            return
        request.value = value
        self._finish_all([request])

    def fail(self, request: Request, error: BaseException) -> None:
        if request.state is RUNNING:
            self._fail(request, own_copy(error))

    def _left(self, batch: Batch, scope: Scope, request: Request | None) -> None:
        joining = self.joinings[batch]
        if request is not None:
            joining.ended(request)
        # A continuous batch goes on: others may join, and restarting the handler is expensive.
        is_abandoned = joining.is_closed and not (batch.is_continuous or batch.active)
        if is_abandoned and self.options.cancel_abandoned:
            scope.cancel()

    def _end(self, request: Request, state: State) -> None:
        batch = request.batch
        Run._end(self, request, state)
        self.joinings[cast("Batch", batch)].ended(request)

    def _may_run_again(self, request: Request) -> bool:
        return False  # its handler may have answered it in part, and can wait by itself

    async def _attempt(self, batch: Batch, requests: Sequence[Request]) -> None:
        joining = self.joinings[batch]
        try:
            await self.handler.function(OpenBatch[Any, Any](joining, self))
        finally:
            joining.end()
        self._fail_all(requests, self._unfinished)

    def _unfinished(self) -> Unfinished:
        return Unfinished(f"the handler of {self.name} ended and left this request unanswered")
