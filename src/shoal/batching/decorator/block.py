"""A block in which batched functions open at their first call: `open_batchers` without names.

The problem is where a batcher's tasks belong that nobody has opened by name. Not to the caller that
comes first: its cancellation and its context would be theirs. So there is a block, which a program
has around its ``main``, and a batcher that is missing is opened in the nursery and the context of
that block, at once and without a wait: calls that race for it find it open, in their order.

Which block a call belongs to: that which it was made in, by the context of its task; for a task
that a server has started elsewhere, the last that was entered in its event loop and has not ended.

A replica of served code has a block of its own, in which calls from elsewhere open nothing: what
breaks a batcher in it ends that replica.

The end is not an order of closing. Batchers call one another, also in circles, so closing one of
them first would fail calls of handlers that are running. Instead calls from outside are refused,
and those that running handlers make are taken, until nothing is in line and nothing runs in any of
them; then all are closed. Each waits no longer than its own ``graceful_shutdown_timeout_s``. Which
ones have work is noted as they tell: to ask all of them at each change would take the square of
their number.

A method's batcher belongs to an instance, and must not keep it: the block knows instances by weak
references, and gives a batcher back when its instance has gone. Who makes a call keeps the instance
until the answer is there.
"""

from __future__ import annotations

import os
import weakref
from contextlib import AsyncExitStack, contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

import anyio
from anyio.lowlevel import RunVar

from shoal.batching.current import running_batch
from shoal.batching.loops.event_loop import EventLoop
from shoal.batching.loops.this_loop import parking_of_this_loop
from shoal.errors import BatcherClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from anyio.abc import TaskGroup, TaskStatus

    from shoal.batching.batcher import Batcher
    from shoal.batching.calls.entry import Entry
    from shoal.batching.handlers.handler import Handler
    from shoal.core.batch import Batch

_block: Final[ContextVar[BatcherBlock | None]] = ContextVar("shoal.batcher_block", default=None)
_blocks: Final[RunVar[tuple[BatcherBlock, ...]]] = RunVar("shoal.batcher_blocks", default=())


class Face(Protocol):
    """What calls are made through."""

    def bound_to(self, receiver: object) -> Face:
        """Returns the face of one receiver, as a new object."""
        ...

    def enter_at(self, entry: Entry) -> None:
        """Has the calls of this thread enter there."""
        ...

    def enter_no_more(self, entry: Entry) -> None:
        """Has no calls enter there any more."""
        ...


class Batched(Protocol):
    """What a block opens: a decorated handler."""

    @property
    def handler(self) -> Handler:
        """The handler; unbound where it is a method."""
        ...

    def key(self, receiver: object) -> tuple[EventLoop, int | None]:
        """Returns the key of this thread's batcher for a receiver."""
        ...

    def new_handler(self, receiver: object) -> Handler:
        """Makes the handler for a receiver."""
        ...

    def new_batcher(self, receiver: object, handler: Handler) -> Batcher[Any]:
        """Makes the batcher for a receiver, of its handler."""
        ...

    def face_of(self, receiver: object) -> Face:
        """Returns what the calls of a receiver are made through."""
        ...

    def publish(self, receiver: object, opened: OpenedBatcher) -> None:
        """Has calls find a batcher."""
        ...

    def withdraw(self, key: tuple[EventLoop, int | None], opened: OpenedBatcher) -> None:
        """Has no more calls find it."""
        ...


class OpenedBatcher(NamedTuple):
    """A batcher that is open, and where its calls enter.

    Attributes:
        batcher: The batcher.
        entry: Where its calls enter.
        face: The object that calls are made through; None where each access makes one, because the
            instance is not to be kept.
    """

    batcher: Batcher[Any]
    entry: Entry
    face: Face | None


class BatcherBlock:
    """Opens batchers when they are first called, while it is entered.

    Args:
        told: Makes of what would end the program, and came out of a handler, what its callers are
            told; None to let it end the program. See `Handler`. Where there is such a function, a
            batcher that breaks ends no more than itself, and the next call opens another; unless
            the block is private.
        is_private: Whether only calls that are made in its context open batchers in it.
    """

    def __init__(
        self,
        *,
        told: Callable[[BaseException], Exception] | None = None,
        is_private: bool = False,
    ) -> None:
        self.is_private = is_private
        self.is_closing = False
        self._told = told
        self.loop = EventLoop.here()
        self.process = os.getpid()
        # An instance may go at any time, in any thread: what it had is taken out of the first then,
        # and put into the second. So the first is copied before it is gone through.
        self._opened: dict[tuple[Batched, tuple[EventLoop, int | None]], OpenedBatcher] = {}
        self._given_back: list[Batcher[Any]] = []
        self._scope = anyio.CancelScope()
        self._exit = AsyncExitStack()
        self._closing = anyio.Event()
        # Those that have work while the block is closing, and may have; set when none has.
        self._busy: set[Batcher[Any]] = set()
        self._at_rest = anyio.Event()
        self._before: BatcherBlock | None = None
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        self._soon = parking_of_this_loop().soon
        self._before = _block.get()
        _block.set(self)
        self._context = copy_context()
        async with AsyncExitStack() as stack:
            stack.callback(self._leave_context)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            await tasks.start(self._run)
            self._exit = stack.pop_all()
        # The batchers go on while the block is cancelled, so that who cleans up gets answers.
        self._scope.shield = True
        _blocks.set((*_blocks.get(), self))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._scope.shield = False
        try:
            async with self._exit:
                self._close()
        finally:
            _blocks.set(tuple(block for block in _blocks.get() if block is not self))
            self._opened.clear()

    def _leave_context(self) -> None:
        if _block.get() is self:  # not so where it is left in another context
            _block.set(self._before)

    @contextmanager
    def in_context(self) -> Generator[None]:
        """Calls that are made in this block of code belong to this block of batchers."""
        token = _block.set(self)
        try:
            yield
        finally:
            _block.reset(token)

    async def _run(self, *, task_status: TaskStatus[None]) -> None:
        with self._scope:
            async with anyio.create_task_group() as self._tasks:
                task_status.started()
                await self._closing.wait()

    def open(self, opening: Batched, receiver: object) -> OpenedBatcher:
        """Opens the batcher of a function, or of a method of an instance; returns at once.

        Raises:
            TypeError: An option does not fit the function.
            ValueError: An option is out of its range.
        """
        place = (opening, opening.key(receiver))
        if (there := self._opened.get(place)) is not None:
            return there  # the block is closing, so that it is found by nobody else
        handler = opening.new_handler(receiver)
        handler.told = self._told
        is_kept = receiver is None or not _keep_weakly(
            handler, opening, receiver, self._gone(place)
        )
        batcher = opening.new_batcher(receiver, handler)
        stands_alone = self._told is not None and not self.is_private
        on_broken = partial(self._forget, place) if stands_alone else None
        self._context.copy().run(batcher.begin, self._tasks, on_broken)
        face = opening.face_of(receiver) if is_kept else None
        opened = self._opened[place] = OpenedBatcher(batcher, batcher.find(), face)
        if self.is_closing:
            self._stop(batcher)
        else:
            opening.publish(receiver, opened)
        return opened

    def _forget(self, place: tuple[Batched, tuple[EventLoop, int | None]]) -> OpenedBatcher | None:
        """Has calls open another batcher in the place of one that is gone; returns that."""
        opened = self._opened.pop(place, None)
        if opened is not None:
            opening, key = place
            opening.withdraw(key, opened)
        return opened

    def runs(self, batch: Batch | None) -> bool:
        """Says whether a batch is in a handler of one of its batchers."""
        return batch is not None and any(
            one.batcher.runs(batch) for one in list(self._opened.values())
        )

    def _close(self) -> None:
        self.is_closing = True
        self._stop_given_back()
        for (opening, key), opened in list(self._opened.items()):
            opening.withdraw(key, opened)
            self._stop(opened.batcher)
        self._look_at_all()
        self._closing.set()

    def _stop(self, batcher: Batcher[Any]) -> None:
        batcher.stop(self._at_rest.wait, partial(self._look_at, batcher))

    def _look_at(self, batcher: Batcher[Any]) -> None:
        """Takes note that a batcher may have come to rest, or to work."""
        if not batcher.is_at_rest:
            self._busy.add(batcher)
            return
        self._busy.discard(batcher)
        if not self._busy and not self._at_rest.is_set():
            self._look_at_all()

    def _look_at_all(self) -> None:
        # A request that has come since its batcher told is not noted.
        batchers = [one.batcher for one in list(self._opened.values())]
        self._busy.update([batcher for batcher in batchers if not batcher.is_at_rest])
        if not self._busy:
            self._at_rest.set()

    def _gone(
        self, place: tuple[Batched, tuple[EventLoop, int | None]]
    ) -> Callable[[object], None]:
        """Returns what is called when an instance has gone, in whatever thread that is."""

        def gone(_: object) -> None:
            # At once, since another instance may come to have the same id.
            if (opened := self._forget(place)) is not None:
                self._given_back.append(opened.batcher)
                with suppress(RuntimeError):  # the event loop has ended
                    self._soon(self._stop_given_back)

        return gone

    def _stop_given_back(self) -> None:
        while self._given_back:
            self._given_back.pop().stop()


def block_here() -> BatcherBlock | None:
    """Returns the block that a call belongs to; None if there is none in this event loop.

    Raises:
        BatcherClosed: It is being left, and the call is none of a handler that still runs in it.
    """
    with suppress(RuntimeError):  # no event loop runs in this thread
        blocks = _blocks.get()
        if not blocks:
            return None
        batch = running_batch.get(None)
        own = _block.get()
        for block in blocks:
            if block.is_closing and block.runs(batch):
                return block
        if own in blocks and not own.is_closing:
            return own
        public = [block for block in blocks if not block.is_private]
        for block in reversed(public):
            if not block.is_closing:
                return block
        if own not in blocks and not public:
            return None
        raise BatcherClosed("the block of shoal.open_batchers() is being left")
    return None


def loops_of_context() -> list[EventLoop]:
    """Returns the event loop of the block that the caller's context belongs to; none without."""
    block = _block.get()
    if block is None or block.is_closing or block.process != os.getpid():
        return []
    return [block.loop]


def _keep_weakly(
    handler: Handler, opening: Batched, receiver: object, gone: Callable[[object], None]
) -> bool:
    """Has a handler know its instance by a weak reference; says whether that can be."""
    try:
        instance = weakref.ref(receiver, gone)
    except TypeError:  # its class has __slots__
        return False
    function = opening.handler.function

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(instance(), *args, **kwargs)

    named: Any = call  # since functions are not known to have the attribute
    named.__signature__ = signature(handler.function)
    handler.function = named
    return True
