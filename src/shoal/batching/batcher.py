"""The batcher: one handler, its options, and the life of the tasks that serve it.

The constructor starts nothing: whoever owns the batcher gives it a nursery to run in, or opens it
with ``async with``. Then its tasks are shielded until the block is left, so that callers that clean
up while the block is being cancelled still get their answers.
"""

from __future__ import annotations

import logging
import os
from contextlib import AsyncExitStack
from threading import get_ident
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import anyio
import anyio.lowlevel

from shoal.batching.calls.call import StreamCall, UnaryCall
from shoal.batching.handlers.handler import Fill, Handler
from shoal.batching.model import Model, model_handler
from shoal.batching.options.checks import checked_options
from shoal.batching.options.held import held_as_handler
from shoal.batching.session import Session
from shoal.batching.stack import stack_of
from shoal.core.counters import ClosingCounts, Counters
from shoal.errors import BatcherClosed, NotOpen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from inspect import Signature

    from anyio.abc import TaskGroup, TaskStatus

    from shoal.batching.calls.entry import Entry
    from shoal.batching.calls.result_types import Answer, Steps
    from shoal.batching.loops.event_loop import EventLoop
    from shoal.batching.open.batch import OpenBatch
    from shoal.batching.running.capacity import Room
    from shoal.core.batch import Batch
    from shoal.core.counters import BatcherState, BatcherStatistics
    from shoal.core.options.keywords import OptionKeywords
    from shoal.core.options.options import BatchOptions

logger: Final = logging.getLogger("shoal")

P = ParamSpec("P")
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
        handler: The function of a list: plain, async, or a generator function of either kind; or
            such a function adapted already.
        signature: A function of one item whose parameter names, types and defaults the call takes,
            where the handler's own annotations can't say them.
        name: What to call it in messages and metrics; the handler's name by default.
        fill: ``"closed"`` gives the handler whole batches. With ``"open"`` it starts when the first
            request arrives and takes the others as they come, with ``"continuous"`` it takes
            requests between its steps for as long as the batcher is open; then it is an async
            function of an `OpenBatch`.
        streams: Whether such a handler answers calls by streams.
        room: What says when the handler can take another batch; None for whenever a slot is free.
        **options: As in `BatchOptions`.

    Attributes:
        name: What it is called in messages and metrics.

    Raises:
        TypeError: The handler is no function of a list, or an option is unknown or of a wrong type.
        ValueError: An option is out of its range.
    """

    # fmt: off
    @overload
    def __init__(self: Batcher[UnaryCall[[A], R]], handler: Callable[[OpenBatch[A, R]], Awaitable[None]], *, fill: Literal["open", "continuous"], streams: Literal[False] = False, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[StreamCall[[A], R]], handler: Callable[[OpenBatch[A, R]], Awaitable[None]], *, fill: Literal["open", "continuous"], streams: Literal[True], signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
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
    def __init__(self: Batcher[StreamCall[[], R]], handler: Callable[[], Steps[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[UnaryCall[[], R]], handler: Callable[[], Answer[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[Any], handler: Callable[..., Any] | Handler, *, signature: Callable[..., Any] | None = None, name: str | None = None, fill: Fill = "closed", streams: bool = False, room: Room | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    # fmt: on
    def __init__(
        self,
        handler: Callable[..., Any] | Handler,
        *,
        signature: Callable[..., Any] | None = None,
        name: str | None = None,
        fill: Fill = "closed",
        streams: bool = False,
        room: Room | None = None,
        **options: Any,
    ) -> None:
        adapted_handler = (
            handler
            if isinstance(handler, Handler)
            else Handler(handler, signature, fill=fill, streams=streams)
        )
        if (
            adapted_handler.fill != "closed"
            and signature is None
            and not adapted_handler.binding.single
        ):
            raise TypeError(
                f"the handler of an open batch takes the batch alone, not {handler!r}; write "
                "async def handler(batch: shoal.OpenBatch[T, R]) -> None"
            )
        self.name = name or adapted_handler.name
        self._handler = adapted_handler
        self._options = checked_options(held_as_handler(options, adapted_handler), adapted_handler)
        self._counters = Counters()
        self._room = room
        self._session: Session | None = None
        self._closed_unopened = False
        self._scope: anyio.CancelScope | None = None
        self._exit = AsyncExitStack()
        face = StreamCall if self._handler.streams else UnaryCall
        self.call: C_co = cast("C_co", face(self.find, self._handler.binding.item, self.loops))

    @classmethod
    def over(cls, model: Model[P, R], *, name: str | None = None, **options: Unpack[OptionKeywords]) -> Batcher[UnaryCall[P, R]]:  # fmt: skip
        """Batches a model object as caikit does: a call looks like ``run``, ``run_batch`` serves it.

        ``run_batch`` gets a list for each parameter of ``run``, by name; ``run`` is never called.

        Raises:
            TypeError: The model lacks a method, or their parameters don't fit together.
        """
        return Batcher(model_handler(model), signature=model.run, name=name or type(model).__qualname__, **options)  # fmt: skip

    async def run(self, *, task_status: TaskStatus[C_co] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serves calls until the batcher is closed; give it to a nursery's ``start``.

        Args:
            task_status: Told what to call, once calls are taken.

        Raises:
            RuntimeError: It is open already, or was.

        Cancellation: callers that wait fail with `BatcherClosed` at once.
        """
        await self._new_session().run(lambda: task_status.started(self.call))

    def begin(self, tasks: TaskGroup, on_broken: Callable[[], object] | None = None) -> None:
        """Opens it in a task group that runs, without waiting: calls are taken from here on.

        Args:
            tasks: The task group.
            on_broken: Called when it has broken, in place of ending the task group; None to end it.

        Raises:
            RuntimeError: It is open already, or was.
        """
        tasks.start_soon(self._run_in_group, self._new_session(), on_broken)

    async def _run_in_group(self, session: Session, on_broken: Callable[[], object] | None) -> None:
        try:
            await session.run(lambda: None)
        except Exception:  # it is in the log
            if on_broken is None:
                raise
            on_broken()

    def _new_session(self) -> Session:
        self._refuse_second_opening()
        self._log_oddity()
        self._session = Session(self.name, self._handler, self._options, self._counters, self._room)
        return self._session

    def stop(
        self,
        others_at_rest: Callable[[], Awaitable[None]] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """Has an open one close without waiting for that; see `Session.stop`."""
        if self._session is not None:
            self._session.stop(others_at_rest, on_change)

    async def aclose(self, *, drop_queued: bool | None = None) -> ClosingCounts:
        """Closes: takes no more calls, runs what is in line, and waits for it to end.

        After ``graceful_shutdown_timeout_s`` what is still in line fails with `BatcherClosed`, and
        handlers are cancelled. One that can't be, because it is in a thread or shields itself, still
        answers its callers if it ends within 10 s more; after that they fail as well, and only the
        thread is waited for. Idempotent. A handler that closes its own batcher is not waited for
        here.

        Args:
            drop_queued: Whether what is in line fails at once, and only what runs is answered; None
                for what ``drop_queued_on_shutdown`` says.

        Returns:
            What became of the requests that were in the batcher when it began to close; what it did
            in all its life is in `statistics`.

        Cancellation: closing goes on without the caller.
        """
        if self._session is None:
            self._closed_unopened = True
            await anyio.lowlevel.checkpoint()
            return ClosingCounts(0, 0, 0)
        return await self._session.aclose(drop_queued=drop_queued)

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

    async def __aexit__(self, *_: object) -> None:
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
            BatcherClosed: It was closed, without having been opened or in another event loop.
        """
        session = self._session
        if session is not None:
            if session.thread != get_ident():
                session.check_loop()
            return session.entry
        if self._closed_unopened:
            raise BatcherClosed(f"{self.name} is closed")
        raise NotOpen(
            f"the batcher of {self.name} is not open in this event loop; "
            "open it around the calls:\n    async with batcher as call:\n        await call(item)"
        )

    def loops(self) -> list[EventLoop]:
        """Returns the event loop in which it is open; none if it is not."""
        if self._session is None or not self.is_alive or self._session.process != os.getpid():
            return []
        return [self._session.loop]

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
        which wait out a long window do not hold it up. Where ``drop_queued_on_shutdown`` is set,
        what is in line now fails with `BatcherClosed`.

        Raises:
            NotOpen: It is open in another event loop.
        """
        if (session := self._own_session()) is not None:
            session.drain()

    def configure(self, **changes: Unpack[OptionKeywords]) -> None:
        """Changes options, together, from the next batch on.

        A batch that gathers keeps the options with which it began: one whose first request has come
        while a slot is free, which waits with it, or an open batch that still takes requests. Calls
        that come meanwhile join it by those. At once hold ``max_concurrent_batches``,
        ``max_queued_requests``, ``overload``, ``refuse_late``, ``request_timeout_s``,
        ``stream_buffer`` and ``graceful_shutdown_timeout_s``; and all for continuous batches.

        Args:
            **changes: As in `BatchOptions`; what is not named stays as it is.

        Raises:
            TypeError: A name is no option, or a value has the wrong type; nothing is changed.
            ValueError: A value is out of its range; nothing is changed.
            NotOpen: It is open in another event loop; nothing is changed.
        """
        session = self._own_session()
        options = checked_options(
            held_as_handler(changes, self._handler), self._handler, self._options
        )
        self._options = options
        if session is not None:
            session.configure(options)
        self._log_oddity()

    def get_max_batch_size(self) -> int:
        """Returns ``max_batch_size``, as it is in force."""
        return self._options.max_batch_size

    def get_batch_wait_timeout_s(self) -> float | None:
        """Returns ``batch_wait_timeout_s``, in seconds, as it is in force."""
        return self._options.batch_wait_timeout_s

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
    def fill(self) -> str:
        """When its batches are complete: ``"closed"``, ``"open"`` or ``"continuous"``."""
        return self._handler.fill

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
    def is_open(self) -> bool:
        """Whether calls are taken, and it has not been told to close."""
        return self._session is not None and not self._session.is_stopping

    @property
    def is_at_rest(self) -> bool:
        """Whether it has nothing in line, and its handler is not at work."""
        return self._session is None or self._session.is_at_rest

    def runs(self, batch: Batch) -> bool:
        """Says whether a batch is in its handler."""
        return self._session is not None and batch in self._session.slots.batches

    @property
    def failure(self) -> BaseException | None:
        """What broke the batcher; None if nothing did."""
        return None if self._session is None else self._session.failure

    def running_since(self) -> list[float]:
        """Returns since when each batch in the handler has been there, on the loop's clock."""
        return [] if self._session is None else list(self._session.slots.batches.values())

    def stacks(self) -> list[str]:
        """Returns the stack of each slot's task as text; for finding out where one hangs."""
        coroutines = [] if self._session is None else self._session.slots.coroutines
        return [stack_of(coroutine) for coroutine in coroutines]

    def scheduling_capacity(self) -> float:
        """Returns how much more would start at once, as things are; TensorFlow's name for it.

        That is what idle slots and batches that are open have room for, less what is in line: in
        requests, or in cost where there is a ``batch_size_fn``. It is 0 where the batcher is not
        open or is closing, and infinity where ``max_concurrent_batches`` is None.
        """
        return 0 if self._session is None else self._session.scheduling_capacity

    def statistics(self) -> BatcherStatistics:
        """Returns what the batcher is doing and has done, as it is now."""
        if self._session is not None:
            return self._session.statistics()
        return self._counters.statistics(self.name, self._state, self._options, 0, 0, [])

    @property
    def _state(self) -> BatcherState:
        if self._session is None:
            return "closed" if self._closed_unopened else "new"
        return self._session.state

    def _own_session(self) -> Session | None:
        session = self._session
        if session is None or session.state in ("closed", "broken"):
            return None
        session.check_loop()
        return session

    def _log_oddity(self) -> None:
        oddity = self._options.oddity()
        if oddity is not None:
            logger.warning("%s: %s", self.name, oddity)
