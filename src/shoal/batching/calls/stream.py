"""Streams: several results for one call, through a bounded buffer; and the types of results.

The shared state is a `StreamBuffer`: the worker slot that runs the handler puts items in, one
reader takes them out, and either can leave. `ResultStream` is the reader's interface to it. The
reader waits only while the buffer is empty; the handler is blocked only while some buffer is full.

anyio's memory stream is similar, but it executes a checkpoint for an item even if the reader has
just been woken for it, and it has no ends and errors that come after buffered items.
"""

from __future__ import annotations

import warnings
import weakref
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    SupportsIndex,
    TypeAlias,
    TypeVar,
)

import anyio
import anyio.lowlevel

from shoal.batching.calls.intake import raise_error_of
from shoal.core.request import State
from shoal.errors import NotOpen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from types import TracebackType

    from shoal.batching.calls.intake import Intake
    from shoal.batching.stream_buffer import StreamBuffer
    from shoal.core.request import Request


P = ParamSpec("P")
MYPY = False
"""Whether mypy reads this, which takes it as True."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
N = TypeVar("N")
N_co = TypeVar("N_co", covariant=True)


class Results(Protocol[R_co]):
    """One result for each item: a list, tuple, array, or anything sized and indexable."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> R_co: ...


class ResultList(Protocol[R, N_co]):
    # The methods and their order matter. `__contains__` makes pyright match an exception class with
    # `Exception` before R. `append` makes mypy refuse an R that is wider than the elements, such as
    # `object` for `int | str`. `__len__` makes it refuse a generic handler, for which it finds no
    # R. A handler that is refused here is treated as one that returns `Results`.

    if not MYPY:

        def __contains__(self, element: R, /) -> bool: ...

    def __getitem__(self, index: SupportsIndex, /) -> R | Exception: ...

    def __len__(self) -> N_co: ...

    def append(self, element: R, /) -> None: ...


class SlotList(Protocol[R, N_co]):
    """A list of slots, with the methods of `ResultList` for the same reasons."""

    if not MYPY:

        def __contains__(self, element: R, /) -> bool: ...

    def __getitem__(self, index: SupportsIndex, /) -> Slot[R] | Exception: ...

    def __len__(self) -> N_co: ...

    def append(self, element: R, /) -> None: ...


Answer: TypeAlias = "Awaitable[Results[R]] | Results[R]"
"""What a unary handler returns when it is called."""

ListAnswer: TypeAlias = "Awaitable[ResultList[R, N]] | ResultList[R, N]"
"""What a unary handler returns if it is a list, in which exceptions are not results."""

Ended: TypeAlias = "Literal[Mark.END] | type[StopIteration | StopAsyncIteration]"
"""The values in a slot that end its stream."""

Slot: TypeAlias = "R | Ended | Literal[Mark.SKIP]"
"""What one slot of a step may hold, besides an exception."""

Steps: TypeAlias = "AsyncIterator[Results[R]] | Iterator[Results[R]]"
"""What a generator handler returns: steps, each with one slot for each request."""

ListSteps: TypeAlias = "AsyncIterator[SlotList[R, N]] | Iterator[SlotList[R, N]]"
"""Steps that are lists, in which marks and exceptions are not results."""


FINISHED: Final = State.FINISHED
_ALIVE: Final = (State.RUNNING, State.QUEUED, State.PARKED)


class BatchableModel(Protocol[P, R_co]):
    """What `Batcher.over` takes: a method for one call, and one for a batch."""

    @property
    def run(self) -> Callable[P, Any]:
        """The method whose parameters a call has; it is never called."""
        ...

    @property
    def run_batch(self) -> Callable[..., Answer[R_co]]:
        """Takes a list for each parameter of ``run`` and returns one result for each call."""
        ...


class ResultIterator(Protocol):
    """The results of a stream: ``async with handle.stream(x) as stream: async for r in stream``."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> bool | None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Any: ...
    async def aclose(self) -> None:
        """Leaves the stream. Idempotent."""
        ...


class Mark(Enum):
    """What a generator handler may yield in a slot instead of an item: `END` or `SKIP`."""

    END = "END"
    SKIP = "SKIP"

    def __repr__(self) -> str:
        return f"shoal.{self.value}"


END: Final[Literal[Mark.END]] = Mark.END
"""In a slot of a step: ends this stream."""

SKIP: Final[Literal[Mark.SKIP]] = Mark.SKIP
"""In a slot of a step: yields nothing for this stream."""


class ResultStream(Generic[R_co]):
    """The results of one call to a generator handler, in order, as they are produced.

    Use it as ``async with f(x) as stream: async for item in stream: ...``. The request is made on
    entering, or with the first item if the stream is iterated without ``async with``. Leaving the
    block, for whatever reason, drops the request: the handler sees ``request.cancelled``, and is
    closed when no reader is left. Only one task at a time may read.

    A stream that was begun without ``async with`` and is not read to its end should be closed with
    `aclose`. Otherwise its request is dropped when Python collects the stream, with a
    `ResourceWarning`; CPython does that as soon as nothing refers to it.

    Raises (from the iteration, after the earlier items):
        The handler's own exception, or an exception that it yielded in this stream's slot.
        WrongBatchSize: A step had more or fewer slots than the batch has requests.
        SlowReader: This reader blocked its batch for too long.
        HandlerTimeout: The handler ran for too long.
        DeadlineExceeded: The call's deadline passed.
        BatcherClosed: The batcher stopped first.

    Raises (on entering, or with the first item):
        NotOpen: No batcher is open for the function in this event loop.
        TypeError: The arguments don't fit the handler's parameters.
        Overloaded: The queue is full.
        ItemTooLarge: The item costs more than a batch may.
        Exception: The error of a function of one item, such as ``bucket_by``.
        DeadlineExceeded: The call's deadline had passed before it was made.

    Cancellation: a cancelled wait for an item loses no item, and inside ``async with`` reading can
    continue. Checkpoint: every item.
    """

    __slots__ = (
        "__weakref__",
        "_entered",
        "_intake",
        "_left",
        "_make",
        "_request",
    )

    _intake: Intake

    def __init__(self, make: Callable[[], tuple[Intake, Request]]) -> None:
        # Makes the request. It is kept, since it may be what keeps the instance of a method alive.
        self._make = make
        self._request: Request | None = None
        self._entered = False
        self._left = False

    @property
    def request(self) -> Request | None:
        """This call's request; None until it has been made."""
        return self._request

    @property
    def is_finished(self) -> bool:
        """Whether it has ended without an error, and its items were taken."""
        request = self._request
        return request is not None and request.state is FINISHED and not request.waiter.items

    async def __aenter__(self) -> Self:
        self._entered = True
        if self._request is None and not self._left:
            try:
                self._begin()
            except Exception as error:
                await _refused(error)
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R_co:
        request = self._request
        if request is None:
            if self._left:
                raise StopAsyncIteration
            try:
                request = self._begin()
            except Exception as error:
                await _refused(error)
                raise
        buffer: StreamBuffer = request.waiter
        items = buffer.items
        try:
            if items:
                await buffer.parking.checkpoint()
            # A loop, since another reader may have taken the item during the checkpoint.
            while not items and request.state in _ALIVE:
                if buffer.waiter is not None:
                    raise RuntimeError("another task is reading this stream already")
                buffer.held_s = 0.0
                try:
                    await buffer.parking.park(buffer)
                finally:
                    buffer.waiter = None
        except BaseException as error:
            if not self._entered:
                self.leave()
            # Another event loop raises these for a wait of this one.
            if not isinstance(error, (TypeError, RuntimeError)) or self._intake.home.loop.is_here:
                raise
            raise self._intake.elsewhere() from error
        if items:
            item: R_co = items.popleft()
            if buffer.hold is not None:
                buffer.release()
            return item
        if request.options is not None:
            self._intake.overdue.forget(request.options)
        if request.error is not None:
            raise_error_of(request)  # a later read is at the end
        raise StopAsyncIteration

    def ready(self) -> list[R_co]:
        """Removes and returns the buffered items, without waiting."""
        request = self._request
        if request is None:
            return []
        buffer: StreamBuffer = request.waiter
        items: list[R_co] = [*buffer.items]
        if items:
            buffer.items.clear()
            buffer.release()
        return items

    def pass_on(self, take: Callable[[R_co], bool]) -> None:
        """Offers each item that the reader waits for to a function first.

        A reader that only forwards items then needs no task switch for each of them.

        Args:
            take: Takes an item at once, in no task of the reader, and returns whether it did; the
                reader gets the item if not. It must not raise, wait or run the user's code. The
                stream must have been entered.
        """
        assert self._request is not None
        self._request.waiter.passes_on = take

    async def aclose(self) -> None:
        """Closes the stream and drops its request. Idempotent; a checkpoint."""
        self.leave()
        await anyio.lowlevel.checkpoint()

    def leave(self) -> None:
        """Closes the stream like `aclose`, without a checkpoint, for code that can't wait."""
        self._left = True
        if self._request is not None:
            _leave(self._intake, self._request)

    def _begin(self) -> Request:
        self._intake, request = self._make()
        self._request = request
        request.waiter.watch = watch = Watch(self, Watch.dropped)
        watch.intake = self._intake
        watch.request = request
        return request

    def __del__(self) -> None:
        request = self._request
        if request is not None and request.state in _ALIVE:
            warnings.warn(
                f"a stream of {self._intake.name} was not closed; "
                "use it as: async with f(x) as stream: ...",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


class Watch(weakref.ref["ResultStream[Any]"]):
    """Drops the request of a stream that is collected before it was closed."""

    # Not a finalizer: an object can be collected in any thread and at any point of the program, so
    # this only schedules the work in the event loop, if that still runs. Invariant: the stream's
    # buffer has it until the stream is closed or collected. The two refer to each other until then,
    # so it is removed at that point.

    __slots__ = ("intake", "request")

    intake: Intake
    request: Request

    def dropped(self) -> None:
        """Called in any thread."""
        if self.request.state in _ALIVE:
            self.intake.home.loop.soon(self._leave)
        self.request.waiter.watch = None

    def _leave(self) -> None:
        _leave(self.intake, self.request)


def _leave(intake: Intake, request: Request) -> None:
    intake.abandon(request)
    if request.options is not None:
        intake.overdue.forget(request.options)
    buffer: StreamBuffer = request.waiter
    buffer.watch = buffer.passes_on = None
    buffer.items.clear()
    if buffer.hold is not None:
        buffer.release()
    buffer.wake()


async def _refused(error: Exception) -> None:
    """Executes a checkpoint for a stream with a request that could not be made."""
    if not isinstance(error, NotOpen):  # that may be raised in another event loop, or in none
        await anyio.lowlevel.checkpoint()
