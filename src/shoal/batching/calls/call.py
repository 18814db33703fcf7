"""The objects that callers call with one item.

A `UnaryCall` is awaited for one result; a `StreamCall` returns a stream of results. Both look up
the open batcher when the call is awaited or the stream is entered, since a decorated function
outlives its batchers. So, as with any async function, all errors are raised there, and code that
gathers many calls gets all of their errors in one place.

`retrying` is for bursts that are shorter than a few batches: with ``max_queued_requests=0`` a call
is refused even if a slot will be free in a moment. TensorFlow Serving puts such a retrier in front
of a scheduler that never queues. If callers should wait for as long as it takes, in order and
without polling, use ``overload="wait"`` instead.
"""

from __future__ import annotations

import functools
import inspect
import sys
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeVar, overload

import anyio

from shoal.batching.calls.intake import raise_error_of
from shoal.batching.calls.mapping import MapCall, map_in_thread
from shoal.batching.calls.stream import ResultStream
from shoal.batching.calls.threads import LoopOfThread, ThreadStream
from shoal.batching.handlers.handler import innermost
from shoal.core.forming.call_options import NO_CALL_OPTIONS
from shoal.core.options.option import seconds
from shoal.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
    from typing import Unpack

    from shoal.batching.calls.entry import Entry
    from shoal.batching.calls.intake import Intake
    from shoal.batching.calls.mapping import Items, MapKeywords
    from shoal.batching.calls.progress import Progress
    from shoal.core.forming.call_options import CallKeywords, CallOptions
    from shoal.core.request import Request
    from shoal.loops.event_loop import EventLoop

    Find = Callable[[], Entry]
    """Returns the entry for calls; raises `NotOpen` or `BatcherClosed`."""
    Loops = Callable[[], list[EventLoop]]
    """Returns the event loops in which a batcher is open for the call."""

P = ParamSpec("P")
C = TypeVar("C")
T = TypeVar("T")
R = TypeVar("R")


class BatchedCall(Generic[P, R]):
    """What all calls have: how they find the open batcher, and the options of the call."""

    def __init__(
        self,
        find: Find,
        loops: Loops,
        call_options: CallOptions | None = None,
        here: dict[int, Entry] | None = None,
    ) -> None:
        self._find = find
        self._loops = loops
        self._call_options = call_options
        self._here = {} if here is None else here  # the entries found by their thread alone

    def _found_for(self, args: tuple[Any, ...]) -> tuple[Entry, tuple[Any, ...]]:
        return self._find(), args

    def _with(self, changes: CallKeywords) -> tuple[Find, Loops, CallOptions, dict[int, Entry]]:
        """Returns the arguments for the same call with other options."""
        call_options = (self._call_options or NO_CALL_OPTIONS).with_changes(changes)
        return self._find, self._loops, call_options, self._here

    def _loop_of_thread(self) -> LoopOfThread:
        return LoopOfThread(_name(self), self._loops)


def _async(cls: type[C]) -> type[C]:
    """Makes `inspect.iscoroutinefunction` true for calls, where Python supports that."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(cls)
    return cls


@_async
class UnaryCall(BatchedCall[P, R]):
    """A call that is batched with others and has one result: ``result = await call(item)``.

    Raises:
        NotOpen: No batcher is open for it in this event loop.
        TypeError: The arguments don't fit the handler's parameters.
        Overloaded: The queue is full, and ``overload="reject"``.
        BatcherClosed: The batcher stopped before it could answer.
        ItemTooLarge: The item costs more than a batch may.
        DeadlineExceeded: The call's deadline, ``request_timeout_s`` or queue timeout has passed.
        HandlerTimeout: The handler ran for too long.
        WrongBatchSize: The handler returned more or fewer results than items.
        Exception: An error that the handler raised, or returned as this call's result; or the error
            of a function of one item, such as ``bucket_by``.

    Cancellation: a request that the handler does not have yet never reaches it; otherwise its
    result is dropped. Other calls of the batch are not affected. Checkpoint: always.
    """

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Makes one call, and returns its result."""
        result: R
        rest: tuple[Any, ...] = args
        entry = self._here.get(get_ident())
        if entry is None:
            entry, rest = self._found_for(args)
        item, intake, request = entry.item(rest, kwargs), entry.intake, None
        if self._call_options is not None or entry.needs_options:
            if not intake.parking.seems_here():
                entry = self._elsewhere(intake)
            result = await entry.call(item, self._call_options)
            return result
        try:  # What Entry.call does for the usual call; to await that would cost 8 % of it.
            request = intake.enter(item, None, intake.now())
            await intake.park(request)
        except BaseException as error:
            if not await intake.end_failed_call(request, error):
                raise
        else:
            if request.options is not None:  # `configure` has given it some meanwhile
                intake.overdue.forget(request.options)
            result = request.value if request.error is None else raise_error_of(request)
            return result
        # Two event loops run in this thread, and it was made in the other one. Not in the block
        # above, whose error would become the context of later errors.
        result = await self._elsewhere(intake).call(item, None)
        return result

    def _elsewhere(self, intake: Intake) -> Entry:
        """Returns the entry in this event loop, since the intake is another loop's."""
        entry = self._find()
        if entry.intake is intake:
            raise intake.elsewhere()
        return entry

    @overload
    def map(
        self: UnaryCall[[T], R],
        items: Items[T],
        /,
        *,
        as_completed: Literal[False] = False,
        return_exceptions: Literal[False] = False,
        window: int | None = None,
        progress: Progress = False,
    ) -> MapCall[R]: ...
    @overload
    def map(
        self: UnaryCall[[T], R],
        items: Items[T],
        /,
        *,
        as_completed: Literal[False] = False,
        return_exceptions: bool,
        window: int | None = None,
        progress: Progress = False,
    ) -> MapCall[R | Exception]: ...
    @overload
    def map(
        self,
        *columns: Items[Any],
        as_completed: Literal[False] = False,
        return_exceptions: Literal[False] = False,
        window: int | None = None,
        progress: Progress = False,
    ) -> MapCall[R]: ...
    @overload
    def map(
        self,
        *columns: Items[Any],
        as_completed: Literal[False] = False,
        return_exceptions: bool,
        window: int | None = None,
        progress: Progress = False,
    ) -> MapCall[R | Exception]: ...
    @overload
    def map(
        self,
        *columns: Items[Any],
        as_completed: Literal[True],
        return_exceptions: bool = False,
        window: int | None = None,
        progress: Progress = False,
    ) -> MapCall[tuple[int, Any]]: ...
    def map(self, *columns: Any, **options: Unpack[MapKeywords]) -> MapCall[Any]:
        """Calls every item of an iterable: ``results = await call.map(items)`` returns all results.

        ``async for result in call.map(items): ...`` gives one after the other, in the order of the
        items, and takes items only as there is room for them: for data sets of any size. Items may
        also be an async iterable. See `MapCall`.

        Awaited without options, all calls of a list are made at once, with one wake-up, if queue
        and slots can hold them. Otherwise, and iterated, at most `window` items are under way. An
        item that is refused as `Overloaded` is then called again, for up to 60 s.

        Args:
            *columns: The items; for a handler with several parameters one iterable for each.
            window: The most items that are under way: called, with a result that was not taken yet.
                None for three batches of each slot, at most `max_queued_requests`.
            as_completed: Whether results come as they are completed, each as a tuple of the number
                of its item, from 0, and the result.
            return_exceptions: Whether errors of calls, including refused ones, are given in their
                places instead of being raised.
            progress: True for a bar at a terminal (with the extra ``progress``) and lines on stderr
                elsewhere; or a function of the number of results that were taken and the number of
                items, None if it is not known.

        Raises:
            Overloaded: The queue has no room for all calls of a list; then none is made.
            ValueError: The columns have different lengths.
            Exception: The first error in the order of the items: awaited, after all calls have
                ended; iterated, in its place, and calls that are under way are dropped. What the
                iterable raises, after the results of the items before.

        Cancellation: all of the calls are dropped. Checkpoint: always; iterated, at least once for
        each batch.
        """
        find, asked = self._find, self._call_options
        return MapCall(
            columns,
            options,
            lambda by_end: find().map_plan(asked, as_completed=by_end),
            lambda returns: find().map_at_once(columns, asked, return_exceptions=returns),
        )

    def map_from_thread(
        self, *columns: Iterable[Any], **options: Unpack[MapKeywords]
    ) -> Generator[Any]:
        """Calls every item from a thread: ``for result in f.map_from_thread(items): ...``.

        The items are read in the thread. The options are those of `map`.

        Raises:
            NotOpen: As for `from_thread`.
            Exception: As for `map`.
        """
        loop = self._loop_of_thread()
        return map_in_thread(self.map, columns, options, loop.run, loop.leave, _name(self))

    def options(self, **options: Unpack[CallKeywords]) -> UnaryCall[P, R]:
        """Returns the same call with other options: ``call.options(timeout_s=0.5)(item)``.

        Options that you omit, or pass as None, keep their values.

        Args:
            **options: ``timeout_s``: how long the call may take from when it is made, in seconds.
                ``metadata``: information about this request for the handler.
                ``priority``: its level, from 1, the highest, to ``priority_levels``.
                ``queue_timeout_s``: how long it may wait in the queue, in seconds; it can only
                shorten the timeout in the queue policy of its level.
                ``share``: whether it may share a request with equal calls, or get a result from the
                cache, where the options ``dedupe`` or ``cache`` are set.

        Raises:
            TypeError: An option is unknown, or has the wrong type.
            ValueError: An option is out of its range.
        """
        return UnaryCall(*self._with(options))

    def from_thread(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Makes one call from a thread, and blocks until it is answered.

        In an anyio worker thread the call is made in the event loop that started the thread, and is
        cancelled with the task that waits for it. In any other thread (`asyncio.to_thread`, a
        `ThreadPoolExecutor`, a `threading.Thread`) it is made in the one event loop in which a
        batcher is open for it.

        Raises:
            NotOpen: The thread runs an event loop itself, which a blocking call would stop; or no
                batcher is open for the call; or batchers are open in more than one event loop. To
                choose one, take ``call = f.batcher.call`` there, and use ``call.from_thread``.
            Exception: As for a call in the event loop.
        """
        return self._loop_of_thread().run(partial(self, *args, **kwargs))


class StreamCall(BatchedCall[P, R]):
    """A call that is batched with others and answered with a stream.

    ``async with call(item) as stream: async for result in stream: ...``

    All errors are raised when the stream is entered or read: see `ResultStream`.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ResultStream[R]:
        """Prepares one call; it is made when the stream is entered."""
        return ResultStream(partial(self._make_request, args, kwargs))

    def _make_request(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Intake, Request]:
        entry, rest = self._here.get(get_ident()), args
        if entry is None or not entry.intake.parking.seems_here():
            entry, rest = self._found_for(args)
        return entry.enter_stream(entry.item(rest, kwargs), self._call_options)

    def options(self, **options: Unpack[CallKeywords]) -> StreamCall[P, R]:
        """Returns the same call with other options: ``call.options(timeout_s=5)(item)``.

        Args:
            **options: As for `UnaryCall.options`; ``timeout_s`` limits the whole stream.

        Raises:
            TypeError: An option is unknown, or has the wrong type.
            ValueError: An option is out of its range.
        """
        return StreamCall(*self._with(options))

    def from_thread(self, *args: P.args, **kwargs: P.kwargs) -> ThreadStream[R]:
        """Makes one call from a thread, in the event loop that `UnaryCall.from_thread` describes.

        Returns:
            The stream for plain code: ``with call.from_thread(item) as stream: for x in stream:
            ...``

        Raises:
            NotOpen: As for `UnaryCall.from_thread`.
        """
        loop = self._loop_of_thread()
        return ThreadStream(partial(self, *args, **kwargs), loop.run, loop.leave)


def refuse_batched(handler: Any) -> None:
    code: Any = innermost(handler)
    if isinstance(code, _CALLS) or code in [each.__call__ for each in _CALLS]:
        raise TypeError(
            f"a handler must be a function of a list, but {handler!r} is batched already; open it "
            "with shoal.open_batchers(), or pass the function without @shoal.batch"
        )


_CALLS: Final[tuple[type[Any], ...]] = (UnaryCall, StreamCall)


def _name(call: object) -> str:
    return getattr(call, "__name__", "call")


def retrying(
    call: Callable[P, Awaitable[R]],
    /,
    *,
    max_time_s: float = 0.010,
    delay_s: float = 0.0001,
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Returns a call that is retried while it raises `Overloaded`.

    ``call = shoal.retrying(embed)``, then ``await call("text")``. The first try is always made.
    Another is made after `delay_s`, if it would begin less than `max_time_s` after the first. All
    other errors are raised at once. A deadline of the call starts again with each try:
    ``shoal.retrying(embed.options(timeout_s=0.5))``.

    Args:
        call: A batched function, or any other async function that raises `Overloaded`. Not one that
            returns a stream: a stream is refused when it is entered, not when it is called.
        max_time_s: How long to try, in seconds; a try that has begun is not cut short.
        delay_s: How long to wait between two tries, in seconds, above 0.

    Returns:
        An async function with the parameters of `call`.

    Raises:
        TypeError: `call` is not an async function, or a time is not a number.
        ValueError: A time is out of its range.

    Raises (from the call): the last `Overloaded` when no try is left; the errors of `call`.

    Cancellation: as for `call`; between two tries nothing is queued. Checkpoint: always.
    """
    _refuse_streams(call)
    max_time_s = seconds("max_time_s", max_time_s)
    if seconds("delay_s", delay_s) == 0:
        raise ValueError(
            f"delay_s must be above 0 seconds, not {delay_s!r}: it would retry without a pause"
        )

    @functools.wraps(call, updated=())
    async def call_again(*args: P.args, **kwargs: P.kwargs) -> R:
        give_up_at = anyio.current_time() + max_time_s
        while True:
            try:
                return await call(*args, **kwargs)
            except Overloaded:
                if anyio.current_time() + delay_s >= give_up_at:
                    raise
            await anyio.sleep(delay_s)

    return call_again


def _refuse_streams(call: Any) -> None:
    if (
        not callable(call)
        or isinstance(call, StreamCall)
        or inspect.isasyncgenfunction(call)
        or inspect.isgeneratorfunction(call)
    ):
        raise TypeError(
            f"retrying() takes an async function, not {call!r}; a call that returns a stream can "
            "be refused only when it is entered, so retry entering it in a loop of your own:\n"
            "    async with call(item) as stream: ..."
        )
