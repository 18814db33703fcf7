"""The batcher: one handler, its options, and the lifetime of the tasks that run it.

The owner runs the batcher in a nursery, or opens it with ``async with``: then its tasks are shielded
until the block is left, so that callers that clean up while it is cancelled still get results.
"""

from __future__ import annotations

import logging
import os
from contextlib import AsyncExitStack
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, cast, overload

import anyio
import anyio.lowlevel

from shoal.batching.calls.call import StreamCall, UnaryCall, refuse_batched
from shoal.batching.current import refuse_own_handler
from shoal.batching.handlers.binding import not_of_a_batch
from shoal.batching.handlers.handler import Fill, Handler, model_handler, stack_of
from shoal.batching.options import checked_options, held_as_handler
from shoal.batching.session import Session
from shoal.core.counters import ClosingCounts, Counters
from shoal.errors import BatcherClosed, NotOpen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from inspect import Signature
    from typing import Literal, Unpack

    from anyio.abc import TaskGroup, TaskStatus

    from shoal.batching.calls.entry import Entry
    from shoal.batching.calls.stream import Answer, BatchableModel, ListAnswer, ListSteps, N, Steps
    from shoal.batching.open_batch import OpenBatch
    from shoal.batching.running.slots import Capacity
    from shoal.core.counters import BatcherState, BatcherStatistics
    from shoal.core.events import Observers
    from shoal.core.options.options import BatchOptions, OptionKeywords
    from shoal.core.request import Batch
    from shoal.loops.event_loop import EventLoop

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

    or run it, once, in your own nursery or task group: ``call = await nursery.start(batcher.run)``.

    Args:
        handler: The function of a list: plain, async, or a generator function; or its `Handler`.
        signature: A function of one item with the parameters and result type of calls; see `batch`.
        name: The name in messages and metrics; the handler's name by default.
        fill: ``"closed"`` passes complete batches to the handler. With ``"open"`` it starts when
            the first request arrives and gets later ones as they arrive; with ``"continuous"`` it
            takes requests between its steps for as long as the batcher is open. For both it is an
            async function of an `OpenBatch`.
        streams: Whether an open or continuous handler answers calls with streams.
        capacity: What the handler can take now; None if it takes a batch whenever a slot is free.
        observers: The observers of its batches, if batchers share them; None for its own.
        **options: As in `BatchOptions`.

    Attributes:
        name: The name in messages and metrics.
        observers: The observers of its batches; add a `BatchObserver`.

    Raises:
        TypeError: The handler is not a function of a list; or an option is unknown or mistyped.
        ValueError: An option is out of its range.
    """

    # fmt: off
    @overload
    def __init__(self: Batcher[UnaryCall[[A], R]], handler: Callable[[OpenBatch[A, R]], Awaitable[None]], *, fill: Literal["open", "continuous"], streams: Literal[False] = False, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[StreamCall[[A], R]], handler: Callable[[OpenBatch[A, R]], Awaitable[None]], *, fill: Literal["open", "continuous"], streams: Literal[True], signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[StreamCall[[A], R]], handler: Callable[[list[A]], ListSteps[R, N]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[StreamCall[[A], R]], handler: Callable[[list[A]], Steps[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[UnaryCall[[A], R]], handler: Callable[[list[A]], ListAnswer[R, N]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[UnaryCall[[A], R]], handler: Callable[[list[A]], Answer[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[StreamCall[[A, B], R]], handler: Callable[[list[A], list[B]], ListSteps[R, N]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[StreamCall[[A, B], R]], handler: Callable[[list[A], list[B]], Steps[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[UnaryCall[[A, B], R]], handler: Callable[[list[A], list[B]], ListAnswer[R, N]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[UnaryCall[[A, B], R]], handler: Callable[[list[A], list[B]], Answer[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[StreamCall[[A, B, C], R]], handler: Callable[[list[A], list[B], list[C]], ListSteps[R, N]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[StreamCall[[A, B, C], R]], handler: Callable[[list[A], list[B], list[C]], Steps[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[UnaryCall[[A, B, C], R]], handler: Callable[[list[A], list[B], list[C]], ListAnswer[R, N]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[UnaryCall[[A, B, C], R]], handler: Callable[[list[A], list[B], list[C]], Answer[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[StreamCall[[], R]], handler: Callable[[], ListSteps[R, N]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[StreamCall[[], R]], handler: Callable[[], Steps[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[UnaryCall[[], R]], handler: Callable[[], ListAnswer[R, N]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[UnaryCall[[], R]], handler: Callable[[], Answer[R]], *, signature: None = None, name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[StreamCall[P, R]], handler: Callable[..., Steps[Any]], *, signature: Callable[P, R], name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[UnaryCall[P, R]], handler: Callable[..., Answer[Any]], *, signature: Callable[P, R], name: str | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    @overload
    def __init__(self: Batcher[Any], handler: Callable[..., Any] | Handler, *, signature: Callable[..., Any] | None = None, name: str | None = None, fill: Fill = "closed", streams: bool = False, capacity: Capacity | None = None, observers: Observers | None = None, **options: Unpack[OptionKeywords]) -> None: ...
    # fmt: on
    def __init__(
        self,
        handler: Callable[..., Any] | Handler,
        *,
        signature: Callable[..., Any] | None = None,
        name: str | None = None,
        fill: Fill = "closed",
        streams: bool = False,
        capacity: Capacity | None = None,
        observers: Observers | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(handler, Handler):
            refuse_batched(handler)
            handler = Handler(handler, signature, fill=fill, streams=streams)
        if handler.fill != "closed" and not (handler.binding.single or signature is not None):
            raise not_of_a_batch(handler.function)
        self.name = name or handler.name
        self._handler = handler
        self._options = checked_options(held_as_handler(options, handler), handler)
        self._counters = Counters(observers)
        self.observers = self._counters.observers
        self._capacity = capacity
        self._session: Session | None = None
        self._closed_unopened = False
        self._scope: anyio.CancelScope | None = None
        self._exit = AsyncExitStack()
        face = StreamCall if self._handler.streams else UnaryCall
        self.call: C_co = cast("C_co", face(self.find, self.loops))

    @classmethod
    def over(cls, model: BatchableModel[P, R], *, name: str | None = None, **options: Unpack[OptionKeywords]) -> Batcher[UnaryCall[P, R]]:  # fmt: skip
        """Makes a batcher of a model object, as caikit does; a call has the parameters of ``run``.

        ``run_batch`` gets a list for each parameter of ``run``, by name; ``run`` is never called.

        Raises:
            TypeError: The model lacks a method, or their parameters don't fit together.
        """
        return Batcher[UnaryCall[P, R]](model_handler(model), signature=model.run, name=name or type(model).__qualname__, **options)  # fmt: skip

    async def run(self, *, task_status: TaskStatus[C_co] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serves calls until the batcher is closed; pass it to a nursery's ``start``.

        Args:
            task_status: Receives the call object as soon as calls are accepted.

        Raises:
            RuntimeError: The batcher is or was open already.

        Cancellation: waiting callers fail with `BatcherClosed` at once.
        """
        await self.serve(lambda: task_status.started(self.call))

    async def serve(self, on_open: Callable[[], object]) -> None:
        """Serves calls like `run`; calls a function as soon as calls are accepted."""
        await self._new_session().run(on_open)

    def begin(self, tasks: TaskGroup, on_broken: Callable[[], object] | None = None) -> None:
        """Opens the batcher in a running task group without waiting; calls are accepted at once.

        Args:
            tasks: The task group.
            on_broken: Called when the batcher breaks; None to cancel the task group then.

        Raises:
            RuntimeError: The batcher is or was open already.
        """
        tasks.start_soon(self._run_in_group, self._new_session(), on_broken)

    async def _run_in_group(self, session: Session, on_broken: Callable[[], object] | None) -> None:
        try:
            await session.run(lambda: None)
        except Exception:  # already logged
            if on_broken is None:
                raise
            on_broken()

    def _new_session(self) -> Session:
        self._refuse_second_opening()
        self._log_oddity()
        self._session = Session(
            self.name, self._handler, self._options, self._counters, self._capacity
        )
        return self._session

    def stop(
        self,
        others_at_rest: Callable[[], Awaitable[None]] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """Starts closing an open batcher without waiting; see `Session.stop`."""
        if self._session is not None:
            self._session.stop(others_at_rest, on_change)

    async def aclose(self) -> ClosingCounts:
        """Stops accepting calls, runs the queued requests, and waits until all have ended.

        After ``graceful_shutdown_timeout_s`` queued requests fail with `BatcherClosed`, and
        handlers are cancelled. A handler in a thread or under a shield can still answer for 10 s;
        then its callers fail. Idempotent. Called by its own handler, it does not wait.

        Returns:
            The outcomes of the requests in it when closing began; `statistics` has totals.

        Cancellation: closing continues without the caller.
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
            # Shielded only now: a shielded task could not be cancelled while it is being started.
            self._scope.shield = True
        return call

    async def __aexit__(self, *_: object) -> None:
        assert self._scope is not None
        refuse_own_handler("a Batcher", self.runs)
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
        """Returns the entry for calls; the only check that a call makes.

        Raises:
            NotOpen: The batcher has not been opened, or runs in another event loop.
            BatcherClosed: It was closed, without having been opened or in another event loop.
        """
        session = self._session
        if session is not None:
            if session.home.thread != get_ident():
                session.entry.intake.check_loop()
            return session.entry
        if self._closed_unopened:
            raise BatcherClosed(f"{self.name} is closed")
        raise NotOpen(
            f"the batcher of {self.name} is not open in this event loop; "
            "open it around the calls:\n    async with batcher as call:\n        await call(item)"
        )

    def loops(self) -> list[EventLoop]:
        """Returns the event loop in which the batcher is open; an empty list if it is not."""
        if self._session is None or not self.is_alive or self._session.home.process != os.getpid():
            return []
        return [self._session.home.loop]

    def flush(self) -> None:
        """Dispatches the queued requests as soon as a slot is free, without waiting for more.

        Raises:
            NotOpen: The batcher is open in another event loop.
        """
        if (session := self._own_session()) is not None:
            session.slots.flush()

    def drain(self) -> None:
        """Stops waiting for batches to fill, for good: a free slot takes what is queued.

        Calls are still accepted. A server that shuts down does this first. With
        ``drop_queued_on_shutdown`` the queued requests fail with `BatcherClosed`.

        Raises:
            NotOpen: The batcher is open in another event loop.
        """
        if (session := self._own_session()) is not None:
            session.drain()

    def configure(self, **changes: Unpack[OptionKeywords]) -> None:
        """Changes several options together, from the next batch on.

        A batch that is filling keeps its options, also for calls that join it: its first request
        waits with a free slot, or it is an open batch that still takes requests. These change at
        once: ``max_concurrent_batches``, ``max_queued_requests``, ``overload``, ``refuse_late``,
        ``request_timeout_s``, ``dedupe``, ``cache``, ``limit``, ``sticky_load_factor``,
        ``stream_buffer``, ``graceful_shutdown_timeout_s`` and ``drop_queued_on_shutdown``; for
        continuous batches all options do.

        Args:
            **changes: As in `BatchOptions`; options that you omit keep their values.

        Raises:
            TypeError: A name is no option, or a value has the wrong type; nothing is changed.
            ValueError: A value is out of its range; nothing is changed.
            NotOpen: The batcher is open in another event loop; nothing is changed.
        """
        session = self._own_session()
        held = held_as_handler(changes, self._handler)
        options = checked_options(held, self._handler, self._options)
        if session is not None:
            session.configure(options)
        self._options = options
        self._log_oddity()

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Changes ``max_batch_size``; Ray Serve's name for it."""
        self.configure(max_batch_size=max_batch_size)

    def set_batch_wait_timeout_s(self, batch_wait_timeout_s: float | None) -> None:
        """Changes ``batch_wait_timeout_s``, in seconds; Ray Serve's name for it."""
        self.configure(batch_wait_timeout_s=batch_wait_timeout_s)

    @property
    def options(self) -> BatchOptions:
        """The current options."""
        return self._options

    @property
    def signature(self) -> Signature:
        """The signature of a call with one item, with the types of one item."""
        return self._handler.binding.signature

    @property
    def fill(self) -> str:
        """When its batches are complete: ``"closed"``, ``"open"`` or ``"continuous"``."""
        return self._handler.fill

    @property
    def streams(self) -> bool:
        """Whether calls are answered with streams."""
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
        """Whether calls are accepted and closing has not been requested."""
        return self._session is not None and not self._session.is_stopping

    @property
    def is_at_rest(self) -> bool:
        """Whether the queue is empty and no handler is running."""
        return self._session is None or self._session.is_at_rest

    def runs(self, batch: Batch) -> bool:
        """Returns whether this batcher's handler is running a batch."""
        return self._session is not None and self._session.slots.is_running(batch)

    @property
    def failure(self) -> BaseException | None:
        """The error that broke the batcher; None if it is not broken."""
        return None if self._session is None else self._session.entry.intake.failure

    def stacks(self) -> list[str]:
        """Returns the stack of each slot's task as text, to find out where one hangs."""
        if self._session is None:
            return []
        return [stack_of(coroutine) for coroutine in self._session.slots.coroutines.values()]

    def statistics(self) -> BatcherStatistics:
        """Returns the current state of the batcher and its counts."""
        if self._session is not None:
            return self._session.statistics()
        return self._counters.statistics(self.name, self._state, self._options, 0, 0, [])

    @property
    def _state(self) -> BatcherState:
        if self._session is None:
            return "closed" if self._closed_unopened else "new"
        return self._session.state

    def _own_session(self) -> Session | None:
        session = self._session if self.is_alive else None
        if session is not None:
            session.entry.intake.check_loop()
        return session

    def _log_oddity(self) -> None:
        if (oddity := self._options.oddity()) is not None:
            logger.warning("%s: %s", self.name, oddity)
