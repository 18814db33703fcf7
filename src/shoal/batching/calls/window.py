"""Calls for the items of a data set, of which a bounded number is under way: the inside of `map`.

Items are started in chunks, since a call for a chunk costs little more than one for an item. All
chunks are tasks of one task group, which ends when whoever takes the results leaves.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from shoal.errors import BatcherClosed, DeadlineExceeded, Overloaded
from shoal.failures.exceptions import is_cancellation, own_copy
from shoal.loops.event_loop import EventLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator

    from anyio.abc import TaskGroup

_FIRST_DELAY_S: Final = 0.01
_MAX_DELAY_S: Final = 1.0
_MAX_REFUSED_S: Final = 60.0
"""How long items are called again while they are refused."""


class MapPlan(NamedTuple):
    name: str
    call_all: Callable[[list[Any]], Awaitable[list[Any]]]
    """Returns the results of items, with errors in their places."""
    chunk: int
    """The most items for `call_all`."""
    window: int
    """How many items may be under way, if the user does not say."""
    most: float = math.inf
    """How many may be under way at all: more would be refused."""
    once: int = 0
    """How many items of an awaited list are called only once, even if they are refused."""


class PlainSource:
    """The items of an iterable, which is read as items are started."""

    is_ended = False
    error: BaseException | None = None
    """What the iterable raised instead of the next item."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items: Iterator[Any] = iter(items)

    def take(self, most: int) -> list[Any]:
        taken: list[Any] = []
        try:
            taken.extend(islice(self._items, most))
        except Exception as error:
            self.error = error
        self.is_ended = len(taken) < most
        return taken


class FedSource:
    """The items that a task or a thread reads in advance."""

    is_ended = False
    error: BaseException | None = None

    def __init__(self) -> None:
        self._read = deque[Any]()
        self._has_last = False
        self._was_taken: anyio.Event | None = None

    def put(self, items: Iterable[Any] = (), *, is_last: bool = False) -> None:
        self._read.extend(items)
        self._has_last |= is_last
        self.is_ended = self._has_last and not self._read

    def take(self, most: int) -> list[Any]:
        taken = [self._read.popleft() for _ in range(min(most, len(self._read)))]
        self.put()
        if self._was_taken is not None:
            self._was_taken.set()
        return taken

    async def read(self, items: AsyncIterable[Any], window: MapWindow) -> None:
        try:
            try:
                async for item in items:
                    self.put([item])
                    window.notify()
                    while len(self._read) >= window.chunk:
                        self._was_taken = anyio.Event()
                        await self._was_taken.wait()
            finally:
                if isinstance(items, AsyncGenerator):  # nobody else may have it
                    await items.aclose()
        except BaseException as error:
            if is_cancellation(error):
                raise
            self.error = error
        self.put(is_last=True)
        window.notify()


@dataclass(slots=True, eq=False)
class _Chunk:
    first: int
    items: list[Any]
    # That of the scope in which the items were taken.
    deadline: float
    outcomes: list[Any] | None = None


class MapWindow:
    """The items that are under way: started, and their results not taken yet."""

    def __init__(
        self,
        plan: MapPlan,
        size: int | None,
        source: PlainSource | FedSource,
        *,
        as_completed: bool,
        retries: bool,
    ) -> None:
        self._size = int(min(size or plan.window, plan.most))
        self.chunk = min(plan.chunk, self._size)
        self.room = self._size
        """How many more items may be under way."""
        self.ready = deque[tuple[int, Any]]()
        """Numbers of items and their outcomes, which can be taken; an error is an outcome."""
        self.source = source
        self._call_all = plan.call_all
        self._as_completed = as_completed
        self._retries = retries
        self._started = 0
        self._running: deque[_Chunk] = deque()  # in the order of the items, if that matters
        self._waiting: deque[_Chunk] = deque()  # for their tasks
        self._failure: BaseException | None = None
        self._changed = anyio.Event()
        self._refused: deque[anyio.Event] = deque()  # of chunks that wait to be called again
        self.ended = anyio.Event()
        self._scope = anyio.CancelScope()
        self._loop = EventLoop.here()
        self.tasks: TaskGroup

    async def open(self) -> None:
        # The task belongs to the event loop, since a bare ``async for`` has no nursery. It ends by
        # `leave`, at the latest when nobody has the iterator any more.
        is_open = anyio.Event()

        async def own_tasks() -> None:
            try:
                with self._scope:
                    async with anyio.create_task_group() as self.tasks:
                        is_open.set()
                        await anyio.sleep_forever()
            except BaseException as error:  # of an iterable's clean-up, beside a cancellation
                if is_cancellation(error):
                    raise
            finally:
                self.ended.set()
                self.notify()

        self._loop.start(own_tasks)
        try:
            await is_open.wait()
        except BaseException:
            self.leave()
            raise

    def fill(self) -> None:
        """Starts as many items as there is room for, if the source has them."""
        while self.room >= self.chunk and not self.source.is_ended:
            items = self.source.take(self.chunk)
            if not items:
                return
            chunk = _Chunk(self._started, items, anyio.current_effective_deadline())
            self._started += len(items)
            self.room -= len(items)
            if not self._as_completed:
                self._running.append(chunk)
            self._waiting.append(chunk)
            if len(self._waiting) == 1 or self.chunk == 1:
                self.tasks.start_soon(self._run_next)

    async def more(self) -> bool:
        """Waits until results are ready, or more may be started; returns False after the last."""
        self.fill()
        if self._failure is not None:
            raise self._failure
        if self.ready:
            return True
        if self.source.is_ended and self.room == self._size:
            if self.source.error is not None:
                raise self.source.error
            return False
        self._changed = anyio.Event()
        if not self.ended.is_set():
            await self._changed.wait()
        if self.ended.is_set():
            raise BatcherClosed("the tasks of this map were cancelled")
        return True

    def take(self) -> tuple[int, Any]:
        self.room += 1
        return self.ready.popleft()

    def notify(self) -> None:
        self._changed.set()

    def leave(self) -> None:
        """Cancels all that is under way; from any thread."""
        if self._loop.is_here:
            self._scope.cancel()
        else:
            self._loop.soon(self._scope.cancel)

    async def _run_next(self) -> None:
        chunk = self._waiting.popleft()
        if self._waiting and self.chunk > 1:
            # Trio starts tasks in any order, and chunks should be queued in the order of the items.
            self.tasks.start_soon(self._run_next)
        try:
            chunk.outcomes = await self._outcomes(chunk)
        except BaseException as error:
            if is_cancellation(error):  # of this map, or of a call by whoever answers it
                self._failure = BatcherClosed("a call of this map was cancelled")
                self.notify()
                raise
            self._failure = error
        else:
            if self._as_completed:
                self._give(chunk)
            while self._running and self._running[0].outcomes is not None:
                self._give(self._running.popleft())
            while self._refused and self._refused[0].is_set():
                self._refused.popleft()
            if self._refused:  # one for one: all of them at once would be refused again
                self._refused.popleft().set()
        self.notify()

    def _give(self, chunk: _Chunk) -> None:
        assert chunk.outcomes is not None
        self.ready.extend(enumerate(chunk.outcomes, chunk.first))

    async def _outcomes(self, chunk: _Chunk) -> list[Any]:
        """Calls items, again while they are refused: the queue may be full of others' requests."""
        items, deadline = chunk.items, chunk.deadline
        outcomes = await self._called(items, deadline)
        left = _refused(range(len(items)), outcomes)
        delay_s, give_up_at = _FIRST_DELAY_S, anyio.current_time() + _MAX_REFUSED_S
        size = len(left)
        while left and self._retries and anyio.current_time() < give_up_at:
            is_worth_it = anyio.Event()
            self._refused.append(is_worth_it)
            with anyio.move_on_after(delay_s):
                await is_worth_it.wait()
            is_worth_it.set()
            some, rest = left[:size], left[size:]
            again = await self._called([items[number] for number in some], deadline)
            for number, outcome in zip(some, again, strict=True):
                outcomes[number] = outcome
            left = _refused(some, outcomes)
            if len(left) < len(some):
                size, delay_s, give_up_at = 2 * size, 0, anyio.current_time() + _MAX_REFUSED_S
            else:  # together they may be more than the queue ever holds
                size = max(1, size // 2)
                delay_s = min(max(2 * delay_s, _FIRST_DELAY_S), _MAX_DELAY_S)
            left += rest
        return outcomes

    async def _called(self, items: list[Any], deadline: float) -> list[Any]:
        with anyio.CancelScope(deadline=deadline):
            try:
                return await self._call_all(items)
            except Overloaded as error:
                return [own_copy(error) for _ in items]
        return [DeadlineExceeded("the deadline of the scope has passed") for _ in items]


def _refused(numbers: Iterable[int], outcomes: list[Any]) -> list[int]:
    return [number for number in numbers if isinstance(outcomes[number], Overloaded)]
