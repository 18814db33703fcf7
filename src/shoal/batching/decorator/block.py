"""A block in which batched functions open at their first call: `open_batchers` without arguments.

The tasks of a batcher that was not opened by name need an owner. It can't be the first caller,
since its cancellation and context would then apply to them. So a program has a block around its
``main``, and a missing batcher is opened in the nursery and context of that block. Opening returns
at once without a checkpoint, so concurrent first calls find the batcher open, in their order.

A call belongs to the block in which it was made, by the context of its task. For a task that a
server has started elsewhere, it is the last block that was entered in its event loop and not left.

A replica of served code has a private block, in which calls from elsewhere open no batchers: an
error that breaks one of its batchers ends that replica.

Batchers may call one another, also in cycles, so no order of closing would do: closing one of them
first would fail calls of running handlers. Instead calls from outside are refused, and calls of
running handlers are accepted, until all queues are empty and no handler runs; then all batchers are
closed. Each waits no longer than its own ``graceful_shutdown_timeout_s``. Batchers report when they
become busy or idle: checking all of them at each change would take quadratic time.

A method's batcher belongs to an instance, and must not keep it alive: the block has weak references
to instances, and closes a batcher when its instance is collected. A call keeps the instance alive
until it is answered.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, TypeAlias

import anyio
from anyio.lowlevel import RunVar

from shoal.batching.current import running_batch
from shoal.errors import BatcherClosed
from shoal.loops.event_loop import EventLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskGroup, TaskStatus

    from shoal.batching.batcher import Batcher
    from shoal.batching.calls.entry import Entry
    from shoal.core.request import Batch

own_block: Final[ContextVar[BatcherBlock | None]] = ContextVar("shoal.batcher_block", default=None)
_blocks: Final[RunVar[tuple[BatcherBlock, ...]]] = RunVar("shoal.batcher_blocks", default=())

Key: TypeAlias = "tuple[EventLoop, int | None]"
"""An event loop, and the id of a receiver in it, if any."""


class Face(Protocol):
    """The callable object of a batched function, or of a batched method of one instance."""

    def bound_to(self, receiver: object) -> Face: ...

    def note_entry(self, entry: Entry, *, finds: bool) -> None: ...


class OpenedBatcher(NamedTuple):
    batcher: Batcher[Any]
    entry: Entry
    # None if each access of the method makes a new one, so that the instance is not kept alive.
    face: Face | None


class Table(Protocol):
    """Where calls of a batched function find its open batchers."""

    def withdraw(self, key: Key, opened: OpenedBatcher) -> None: ...


class Place(NamedTuple):
    """What a batcher is for: a batched function, and a receiver in an event loop."""

    table: Table
    key: Key


class BatcherBlock:
    """Opens batchers when they are first called, while it is entered."""

    def __init__(
        self,
        *,
        convert_error: Callable[[BaseException], Exception] | None = None,
        is_private: bool = False,
    ) -> None:
        # Whether only calls made in its context open batchers in it.
        self.is_private = is_private
        self.is_closing = False
        # Converts an exception of a handler that would end the program to the error for its
        # callers. With it, a batcher that breaks ends only itself, and the next call opens another,
        # unless the block is private.
        self.convert_error = convert_error
        self.loop = EventLoop.here()
        self.process = os.getpid()
        # An instance may be collected at any time, in any thread, which removes its entry. So it is
        # copied before it is iterated.
        self._opened: dict[Place, OpenedBatcher] = {}
        self._scope = anyio.CancelScope()
        self._exit = AsyncExitStack()
        self._closing = anyio.Event()
        # While the block is closing: the batchers that may have work, and whether none has.
        self._busy: set[Batcher[Any]] = set()
        self._at_rest = anyio.Event()
        self._before: BatcherBlock | None = None
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        self._before = own_block.get()
        own_block.set(self)
        self._context = copy_context()
        async with AsyncExitStack() as stack:
            stack.callback(self._leave_context)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            await tasks.start(self._run)
            self._exit = stack.pop_all()
        # The batchers keep running while the block is cancelled, for calls of clean-up code.
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
        if own_block.get() is self:  # it is not if the block is left in another context
            own_block.set(self._before)

    async def _run(self, *, task_status: TaskStatus[None]) -> None:
        with self._scope:
            async with anyio.create_task_group() as self._tasks:
                task_status.started()
                await self._closing.wait()

    @property
    def batchers(self) -> list[Batcher[Any]]:
        return [one.batcher for one in list(self._opened.values())]

    def opened_at(self, place: Place) -> OpenedBatcher | None:
        return self._opened.get(place)

    def begin(self, place: Place, batcher: Batcher[Any], face: Face | None) -> OpenedBatcher:
        stands_alone = self.convert_error is not None and not self.is_private
        on_broken = partial(self._forget, place) if stands_alone else None
        self._context.copy().run(batcher.begin, self._tasks, on_broken)
        opened = OpenedBatcher(batcher, batcher.find(), face)
        self._opened[place] = opened
        if self.is_closing:
            self._stop(batcher)
        return opened

    def _forget(self, place: Place) -> OpenedBatcher | None:
        """Removes and returns a batcher that is gone, so that the next call opens another."""
        opened = self._opened.pop(place, None)
        if opened is not None:
            place.table.withdraw(place.key, opened)
        return opened

    def runs(self, batch: Batch | None) -> bool:
        return batch is not None and any(batcher.runs(batch) for batcher in self.batchers)

    def _close(self) -> None:
        self.is_closing = True
        for place, opened in list(self._opened.items()):
            place.table.withdraw(place.key, opened)
            self._stop(opened.batcher)
        self._look_at_all()
        self._closing.set()

    def _stop(self, batcher: Batcher[Any]) -> None:
        batcher.stop(self._at_rest.wait, partial(self._look_at, batcher))

    def _look_at(self, batcher: Batcher[Any]) -> None:
        if not batcher.is_at_rest:
            self._busy.add(batcher)
            return
        self._busy.discard(batcher)
        if not self._busy and not self._at_rest.is_set():
            self._look_at_all()

    def _look_at_all(self) -> None:
        # Requests that arrived since their batcher last reported are not recorded yet.
        self._busy.update([batcher for batcher in self.batchers if not batcher.is_at_rest])
        if not self._busy:
            self._at_rest.set()

    def gone(self, place: Place) -> Callable[[object], None]:
        """Returns the function to call when an instance is collected, in any thread."""

        def forget(_: object) -> None:
            # At once, since another instance may get the same id.
            if (opened := self._forget(place)) is not None:
                self.loop.soon(opened.batcher.stop)

        return forget


def block_here() -> BatcherBlock | None:
    """Returns the block of a call, if any; raises `BatcherClosed` if it is being left."""
    # A call made by a handler that still runs in the block is accepted.
    with suppress(RuntimeError):  # no event loop runs in this thread
        blocks = _blocks.get()
        if not blocks:
            return None
        batch = running_batch.get(None)
        own = own_block.get()
        for block in blocks:
            if block.is_closing and block.runs(batch):
                return block
        if own in blocks and not own.is_closing:
            return own
        public = public_blocks()
        for block in reversed(public):
            if not block.is_closing:
                return block
        if own not in blocks and not public:
            return None
        raise BatcherClosed("the block of shoal.open_batchers() is being left")
    return None


def public_blocks() -> list[BatcherBlock]:
    """Returns the blocks of this event loop that are not private, in the order of entering."""
    return [block for block in _blocks.get() if not block.is_private]


def loops_of_context() -> list[EventLoop]:
    block = own_block.get()
    if block is None or block.is_closing or block.process != os.getpid():
        return []
    return [block.loop]
