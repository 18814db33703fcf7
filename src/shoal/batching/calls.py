"""What callers hold: an object that is called with one item.

`UnaryCall` is awaited for one result, `StreamCall` gives a stream of them. Both find the open
batcher anew at each call, since a decorated function outlives the batchers that serve it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import anyio.from_thread

from shoal.batching.threads import ThreadStream, run_in_loop
from shoal.core.option_checks import seconds, whole
from shoal.core.request import NOTHING
from shoal.core.terms import Wishes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from shoal.batching.entry import Entry
    from shoal.batching.stream import ResultStream

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class UnaryCall(Generic[P, R]):
    """A call that is batched with others and answered once: ``result = await call(item)``.

    Raises:
        NotOpen: No batcher is open for it in this event loop.
        TypeError: The arguments don't fit the handler's parameters.
        Overloaded: The line is full, and ``overload="reject"``.
        BatcherClosed: The batcher stopped before it could answer.
        ItemTooLarge: The item costs more than ``max_batch_size``.
        DeadlineExceeded: The call's deadline, ``request_timeout_s`` or its time in line passed.
        HandlerTimeout: The handler ran for too long.
        WrongBatchSize: The handler gave back another number of results than it was given items.
        Exception: What the handler raised, or put into this call's slot.

    Cancellation: before the handler has the request, the handler never sees it; after that its
    result is dropped. No other call of the batch notices. Checkpoint: always.
    """

    def __init__(self, find: Callable[[], Entry], wishes: Wishes | None = None) -> None:
        self._find = find
        self._wishes = wishes

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Makes one call; await what it returns."""
        return self._find().begin(args, kwargs, self._wishes)

    @overload
    def map(
        self: UnaryCall[[T], R], items: Iterable[T], /, *, return_exceptions: bool = False
    ) -> Coroutine[Any, Any, list[R]]: ...
    @overload
    def map(
        self, *columns: Iterable[Any], return_exceptions: bool = False
    ) -> Coroutine[Any, Any, list[R]]: ...
    def map(
        self, *columns: Iterable[Any], return_exceptions: bool = False
    ) -> Coroutine[Any, Any, list[R]]:
        """Makes many calls at once and waits for all of them, with one wake-up.

        Args:
            *columns: The items; for a handler of several parameters one iterable for each.
            return_exceptions: Whether errors are put in their places instead of being raised.

        Returns:
            The results, in the order of the items.

        Raises:
            Overloaded: Not all of them fit into the line; then none was made, and nobody was shed.
            Exception: As for a single call, the first in the order of the items, once all ended.

        Cancellation: all of the calls are dropped. Checkpoint: always.
        """
        return self._find().begin_map(columns, self._wishes, return_exceptions=return_exceptions)

    def options(
        self,
        *,
        deadline_s: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        priority: int | None = None,
        queue_timeout_s: float | None = None,
    ) -> UnaryCall[P, R]:
        """Returns the same call with options of its own: ``call.options(deadline_s=0.5)(item)``.

        Args:
            deadline_s: How long the call may take from when it is made, in seconds.
            metadata: What the handler should know about this request.
            priority: Its level, from 1, the highest, to ``priority_levels``.
            queue_timeout_s: How long it may wait in line, in seconds; it can only shorten what the
                queue policy of its level says.
        """
        wishes = checked_wishes(deadline_s, metadata, priority, queue_timeout_s)
        return UnaryCall(self._find, wishes)

    def from_thread(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Makes one call from a worker thread of the event loop, and blocks until it is answered.

        Raises:
            NotOpen: The thread is not a worker thread (`anyio.to_thread.run_sync`); other threads
                use `shoal.blocking`.
            Exception: As for a call in the event loop.
        """
        return run_in_loop(partial(self, *args, **kwargs))


class StreamCall(Generic[P, R]):
    """A call that is batched with others and answered by a stream.

    ``async with call(item) as stream: async for result in stream: ...``

    Raises:
        NotOpen: No batcher is open for it in this event loop.
        TypeError: The arguments don't fit the handler's parameters.

    What the stream raises is told at `ResultStream`.
    """

    def __init__(self, find: Callable[[], Entry], wishes: Wishes | None = None) -> None:
        self._find = find
        self._wishes = wishes

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ResultStream[R]:
        """Prepares one call; it is made when the stream is entered."""
        return self._find().begin_stream(args, kwargs, self._wishes)

    def options(
        self,
        *,
        deadline_s: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        priority: int | None = None,
        queue_timeout_s: float | None = None,
    ) -> StreamCall[P, R]:
        """Returns the same call with options of its own: ``call.options(deadline_s=5)(item)``.

        Args:
            deadline_s: How long the whole stream may take from when it is made, in seconds.
            metadata: What the handler should know about this request.
            priority: Its level, from 1, the highest, to ``priority_levels``.
            queue_timeout_s: How long it may wait in line, in seconds; it can only shorten what the
                queue policy of its level says.
        """
        wishes = checked_wishes(deadline_s, metadata, priority, queue_timeout_s)
        return StreamCall(self._find, wishes)

    def from_thread(self, *args: P.args, **kwargs: P.kwargs) -> ThreadStream[R]:
        """Makes one call from a worker thread of the event loop.

        Returns:
            The stream for plain code: ``with call.from_thread(item) as stream: for x in stream:
            ...``
        """
        return ThreadStream(partial(self, *args, **kwargs), run_in_loop, anyio.from_thread.run_sync)


def checked_wishes(
    deadline_s: float | None,
    metadata: Mapping[str, Any] | None,
    priority: int | None,
    queue_timeout_s: float | None,
) -> Wishes | None:
    """Checks what a call asks for; None for nothing.

    Raises:
        TypeError: A time is no number, or the priority no whole number.
        ValueError: One of them is out of its range.
    """
    if deadline_s is None and metadata is None and priority is None and queue_timeout_s is None:
        return None
    return Wishes(
        None if deadline_s is None else seconds("deadline_s", deadline_s),
        NOTHING if metadata is None else metadata,
        None if priority is None else whole("priority", priority, least=1),
        None if queue_timeout_s is None else seconds("queue_timeout_s", queue_timeout_s),
    )
