"""The batcher: one handler, its options, and the life of the tasks that serve it.

The constructor starts nothing: whoever owns the batcher gives it a nursery to run in, or opens it
with ``async with``. Then its tasks are shielded until the block is left, so that callers that clean
up while the block is being cancelled still get their answers.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, overload

import anyio
import anyio.lowlevel

from shoal.batching.calls import StreamCall, UnaryCall
from shoal.batching.handlers import Handler
from shoal.batching.session import Session
from shoal.batching.stack import stack_of
from shoal.core.counters import BatcherState, BatcherStatistics, ClosingCounts, Counters
from shoal.core.options import BatchOptions
from shoal.errors import BatcherClosed, NotOpen

if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Signature
    from types import TracebackType
    from typing import Unpack

    from anyio.abc import TaskStatus

    from shoal.batching.entry import Entry
    from shoal.batching.kinds import Answer, Steps
    from shoal.core.options import OptionKeywords

logger: Final = logging.getLogger("shoal")

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
R = TypeVar("R")
C_co = TypeVar("C_co", covariant=True)


class Batcher(Generic[C_co]):
    """Gathers calls of one item into batches for one handler, while it is open.

    Open it around the code that calls it::

        async with shoal.Batcher(handler, max_batch_size=64) as call:
            result = await call(item)

    or run it in a nursery or task group of yours: ``call = await nursery.start(batcher.run)``. A
    batcher is opened once.

    Args:
        handler: The function of a list: plain, async, or a generator function of either kind.
        signature: A function of one item whose parameter names, types and defaults the call takes,
            where the handler's own annotations can't say them.
        name: What to call it in messages and metrics; the handler's name by default.
        **options: As in `BatchOptions`.

    Raises:
        TypeError: The handler is no function of a list, or an option is unknown or of a wrong type.
        ValueError: An option is out of its range.
    """

    # fmt: off
    @overload
    def __init__(self: Batcher[StreamCall[[A], R]], handler: Callable[[list[A]], Steps[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[UnaryCall[[A], R]], handler: Callable[[list[A]], Answer[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[StreamCall[[A, B], R]], handler: Callable[[list[A], list[B]], Steps[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[UnaryCall[[A, B], R]], handler: Callable[[list[A], list[B]], Answer[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[StreamCall[[A, B, C], R]], handler: Callable[[list[A], list[B], list[C]], Steps[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[UnaryCall[[A, B, C], R]], handler: Callable[[list[A], list[B], list[C]], Answer[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[Any], handler: Callable[..., Any], *, signature: Callable[..., Any] | None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    # fmt: on
    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        signature: Callable[..., Any] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        self._options = BatchOptions.of(options)
        self._handler = Handler(handler, signature)
        self.name = name or self._handler.name
        self._counters = Counters()
        self._session: Session | None = None
        self._closed_unopened = False
        self._scope: anyio.CancelScope | None = None
        self._exit = AsyncExitStack()
        face = StreamCall if self._handler.streams else UnaryCall
        self.call: C_co = cast("C_co", face(self.find))

    async def run(self, *, task_status: TaskStatus[C_co] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serves calls until the batcher is closed; give it to a nursery's ``start``.

        Args:
            task_status: Told what to call, once calls are taken.

        Raises:
            RuntimeError: It is open already, or was.

        Cancellation: callers that wait fail with `BatcherClosed` at once.
        """
        self._refuse_second_opening()
        self._log_oddity()
        self._session = Session(self.name, self._handler, self._options, self._counters)
        await self._session.run(lambda: task_status.started(self.call))

    async def aclose(self) -> ClosingCounts:
        """Closes: takes no more calls, runs what is in line, and waits for it to end.

        What has not ended after ``graceful_shutdown_timeout_s`` fails with `BatcherClosed`, and its
        handler is cancelled; a handler in a thread can't be, and is waited for. Idempotent.

        Returns:
            What became of the requests that were in the batcher.

        Cancellation: closing goes on without the caller.
        """
        if self._session is None:
            self._closed_unopened = True
            await anyio.lowlevel.checkpoint()
            return ClosingCounts(0, 0, 0)
        return await self._session.aclose()

    async def __aenter__(self) -> C_co:
        self._refuse_second_opening()
        if self._scope is not None:
            raise RuntimeError(f"{self.name} is being opened already: a batcher is opened once")
        self._scope = anyio.CancelScope()
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(anyio.create_task_group())
            call: C_co = await tasks.start(self._run_in_scope)
            self._exit = stack.pop_all()
            # Not before: a shielded task could not be cancelled while it is being started.
            self._scope.shield = True
        return call

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._scope is not None
        self._scope.shield = False
        async with self._exit:
            await self.aclose()

    async def _run_in_scope(self, *, task_status: TaskStatus[C_co]) -> None:
        assert self._scope is not None
        with self._scope:
            await self.run(task_status=task_status)

    def _refuse_second_opening(self) -> None:
        if self._session is not None or self._closed_unopened:
            raise RuntimeError(f"{self.name} is {self._state}: a batcher is opened once")

    def find(self) -> Entry:
        """Returns where calls enter; for the calls, which check nothing else.

        Raises:
            NotOpen: The batcher has not been opened, or runs in another event loop.
            BatcherClosed: It was closed without having been opened.
        """
        session = self._session
        if session is not None and session.thread == get_ident():
            return session.entry
        if self._closed_unopened:
            raise BatcherClosed(f"{self.name} is closed")
        raise NotOpen(
            f"the batcher of {self.name} is not open in this event loop; "
            "open it around the calls:\n    async with batcher as call:\n        await call(item)"
        )

    def flush(self) -> None:
        """Sends what is in line now without waiting for more, as soon as a slot is free.

        Raises:
            NotOpen: It is open in another event loop.
        """
        if (session := self._own_session()) is not None:
            session.flush()

    def drain(self) -> None:
        """Stops waiting for company, for good: from now on a free slot takes what is there.

        Calls are still taken. A server does this first when it is told to end, so that requests
        which wait out a long window do not hold it up.

        Raises:
            NotOpen: It is open in another event loop.
        """
        if (session := self._own_session()) is not None:
            session.stop_waiting()

    def configure(self, **changes: Unpack[OptionKeywords]) -> None:
        """Changes options, together, from the next batch on.

        Args:
            **changes: As in `BatchOptions`; what is not named stays as it is.

        Raises:
            TypeError: A name is no option, or a value has the wrong type; nothing is changed.
            ValueError: A value is out of its range; nothing is changed.
            NotOpen: It is open in another event loop; nothing is changed.
        """
        session = self._own_session()
        self._options = self._options.changed(changes)
        self._log_oddity()
        if session is not None:
            session.configure(self._options)

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Changes ``max_batch_size``; Ray Serve's name for it."""
        self.configure(max_batch_size=max_batch_size)

    def set_batch_wait_timeout_s(self, batch_wait_timeout_s: float | None) -> None:
        """Changes ``batch_wait_timeout_s``, in seconds; Ray Serve's name for it."""
        self.configure(batch_wait_timeout_s=batch_wait_timeout_s)

    @property
    def options(self) -> BatchOptions:
        """The options in force."""
        return self._options

    @property
    def signature(self) -> Signature:
        """The signature of the call of one item, with the types of one item."""
        return self._handler.binding.signature

    @property
    def streams(self) -> bool:
        """Whether the handler is a generator function, so that calls are answered by streams."""
        return self._handler.streams

    @property
    def threaded(self) -> bool:
        """Whether the handler runs in worker threads, where it can't be interrupted."""
        return self._handler.threaded

    @property
    def is_alive(self) -> bool:
        """Whether calls are being served."""
        return self._state in ("open", "draining")

    @property
    def _state(self) -> BatcherState:
        if self._session is None:
            return "closed" if self._closed_unopened else "new"
        return self._session.state

    @property
    def failure(self) -> BaseException | None:
        """What broke the batcher; None if nothing did."""
        return None if self._session is None else self._session.failure

    def running_since(self) -> list[float]:
        """Returns since when each batch in the handler has been there, on the loop's clock."""
        return [] if self._session is None else list(self._session.slots.batches.values())

    def stacks(self) -> list[str]:
        """Returns the stack of each slot's task as text; for finding out where one hangs."""
        return (
            [] if self._session is None else [stack_of(c) for c in self._session.slots.coroutines]
        )

    def statistics(self) -> BatcherStatistics:
        """Returns what the batcher is doing and has done, as it is now."""
        queued, parked, batches = (0, 0, []) if self._session is None else self._session.load()
        return self._counters.statistics(
            self.name, self._state, self._options, queued, parked, batches
        )

    def _own_session(self) -> Session | None:
        if self._session is not None:
            self.find()
        return self._session

    def _log_oddity(self) -> None:
        oddity = self._options.oddity()
        if oddity is not None:
            logger.warning("%s: %s", self.name, oddity)
