"""Streams: many results for one call, through a bounded buffer.

A `StreamBuffer` is the shared state: the slot that runs the handler puts items in, one reader takes
them out, and either can leave. `ResultStream` is the reader's thin handle on it. Neither waits for
the other without need: the reader parks only when the buffer is empty, the handler is held back
only while some buffer is full.

anyio's memory stream has the same shape, but it takes a checkpoint for an item even when the reader
has just been woken for it, and it knows nothing of ends and errors that come after buffered items.
"""

from __future__ import annotations

import warnings
import weakref
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, Self, TypeVar

import anyio
import anyio.lowlevel

from shoal.core.request import State
from shoal.errors import NotOpen

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from shoal.batching.calls.intake import Intake
    from shoal.batching.stream_buffer import StreamBuffer
    from shoal.core.request import Request, RequestOptions

R_co = TypeVar("R_co", covariant=True)

_ALIVE: Final = (State.RUNNING, State.QUEUED, State.PARKED)


class Mark(Enum):
    """What a generator handler may put into a slot instead of an item: `END` or `SKIP`."""

    END = "END"
    SKIP = "SKIP"

    def __repr__(self) -> str:
        return f"shoal.{self.value}"


END: Final[Literal[Mark.END]] = Mark.END
"""In a slot of a step: this stream is over."""

SKIP: Final[Literal[Mark.SKIP]] = Mark.SKIP
"""In a slot of a step: nothing for this stream now."""


class WayIn(Protocol):
    """What makes the request of a stream: nearly always the `Intake`."""

    def enter_stream(self, item: Any, options: RequestOptions | None, /) -> tuple[Intake, Request]:
        """Puts the request in line at once, and returns where, and the request."""
        ...


class LateWayIn:
    """Makes it as is found out only when the stream is entered.

    Args:
        enter: Makes it.
    """

    def __init__(self, enter: Callable[[], tuple[Intake, Request]]) -> None:
        self._enter = enter

    def enter_stream(self, _item: Any, _options: RequestOptions | None) -> tuple[Intake, Request]:
        """See `WayIn`."""
        return self._enter()


def late_stream(enter: Callable[[], tuple[Intake, Request]]) -> ResultStream[Any]:
    """Returns a stream whose request is made by a function, which may raise."""
    return ResultStream(LateWayIn(enter), None, None)


class ResultStream(Generic[R_co]):
    """The results of one call to a generator handler, in order, as they are produced.

    Use it as ``async with f(x) as stream: async for item in stream: ...``. The request is made on
    entering, or with the first item if the stream is iterated without ``async with``. Leaving the
    block, whatever the reason, gives the request's place back: the handler sees
    ``request.cancelled``, and is closed when no reader is left. One task at a time may read.

    A stream that was begun without ``async with`` and is not read to its end should be closed by
    `aclose`. One that is dropped instead gives its place back when Python collects it, which
    CPython does at once where nothing refers to it any more, with a `ResourceWarning`.

    Raises (from the iteration, after the items that came before):
        The handler's own exception, or what it put into this stream's slot.
        WrongBatchSize: A step had another number of slots than the batch has requests.
        SlowReader: This reader held its batch back for too long.
        HandlerTimeout: The handler ran for too long.
        DeadlineExceeded: The call's deadline passed.
        BatcherClosed: The batcher stopped first.

    Raises (on entering, or with the first item):
        NotOpen: No batcher is open for the function in this event loop.
        Overloaded: The line is full.
        ItemTooLarge: The item costs more than ``max_batch_size``.
        Exception: What a function of one item, such as ``bucket_by``, raised.
        DeadlineExceeded: The call's time was up before it was made.

    Cancellation: a cancelled wait for an item loses nothing, and inside ``async with`` the stream
    can be read on. Checkpoint: every item.
    """

    __slots__ = (
        "__weakref__",
        "_entered",
        "_intake",
        "_item",
        "_left",
        "_options",
        "_request",
        "_way_in",
        "keeps",
    )

    keeps: object
    """What must live as long as the stream does; unset for nothing."""

    _intake: Intake

    def __init__(self, way_in: WayIn, item: Any, options: RequestOptions | None) -> None:
        self._way_in = way_in
        self._item = item
        self._options = options
        self._request: Request | None = None
        self._entered = False
        self._left = False

    @property
    def request(self) -> Request | None:
        """This call's request; None until it has been made."""
        return self._request

    async def __aenter__(self) -> Self:
        self._entered = True
        if self._request is None and not self._left:
            try:
                self._begin()
            except Exception as error:
                await _refused(error)
                raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
                await anyio.lowlevel.checkpoint()
            # A loop, since another reader may have been faster than this one at its checkpoint.
            while not items and request.state in _ALIVE:
                await self._wait(buffer)
        except BaseException:
            if not self._entered:
                self.leave()
            raise
        if items:
            item: R_co = items.popleft()
            if buffer.hold is not None:
                buffer.release()
            return item
        if request.options is not None:
            self._intake.former.overdue.forget(request)
        if request.error is not None:
            try:
                raise request.error
            finally:
                # A reader that asks again is at the end; and the error's traceback holds this
                # frame, so the frame lets go of the error.
                request.error = None
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Leaves the stream: gives its place in the batch back. Idempotent; a checkpoint."""
        self.leave()
        await anyio.lowlevel.checkpoint()

    def leave(self) -> None:
        """Does what `aclose` does, at once; for code that can't wait."""
        self._left = True
        if self._request is not None:
            _leave(self._intake, self._request)

    async def _wait(self, buffer: StreamBuffer) -> None:
        """Parks until there is an item, an error or the end."""
        if buffer.reader is not None:
            raise RuntimeError("another task is reading this stream already")
        buffer.held_s = 0.0
        buffer.reader = waiter = buffer.parking.new_waiter()
        try:
            await waiter
        except (TypeError, RuntimeError) as error:  # what other loops say of a cell
            if self._intake.home.loop.is_here:
                raise
            raise self._intake.refusals.elsewhere() from error
        finally:
            buffer.reader = None

    def _begin(self) -> Request:
        """Makes the request."""
        self._intake, request = self._way_in.enter_stream(self._item, self._options)
        self._request = request
        request.waiter.watch = watch = Watch(self, _dropped)
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
    """Gives the place of a stream back that was dropped while it was read without ``async with``.

    It is no finalizer: an object can't tell in which thread, and where in the program, it is
    collected. So this only has the event loop do it, if that still runs.

    Invariant: the stream's buffer has it until the stream is left or gone. They refer to each other
    meanwhile, so it is taken out then.
    """

    __slots__ = ("intake", "request")

    intake: Intake
    request: Request

    def dropped(self) -> None:
        """Notes that the stream is gone; in any thread."""
        if self.request.state in _ALIVE:
            with suppress(RuntimeError):  # the event loop has ended
                self.intake.soon(self._leave)
        self.request.waiter.watch = None

    def _leave(self) -> None:
        _leave(self.intake, self.request)


def _leave(intake: Intake, request: Request) -> None:
    """Drops the request of a stream whose reader has left."""
    intake.abandon(request)
    if request.options is not None:
        intake.former.overdue.forget(request)
    buffer: StreamBuffer = request.waiter
    buffer.watch = None
    buffer.items.clear()
    if buffer.hold is not None:
        buffer.release()
    if buffer.reader is not None:
        buffer.wake()


async def _refused(error: Exception) -> None:
    """Makes a checkpoint of a stream that could not be begun."""
    if not isinstance(error, NotOpen):  # then this may be no event loop of ours, or none at all
        await anyio.lowlevel.checkpoint()


def _dropped(watch: Any) -> None:
    watch.dropped()
