"""What `map` returns: awaited, all results; iterated, one after the other in bounded memory.

Items are taken from the source while results are taken, and only as many as the window has room
for. A plain iterable is read by whoever takes the results, and an async one by a task of its own,
since it may wait while results are ready.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypedDict, TypeVar

import anyio
import anyio.lowlevel

from shoal.batching.calls.progress import checked_progress, reporter
from shoal.batching.calls.window import FedSource, MapPlan, MapWindow, PlainSource
from shoal.core.options.option import whole, yes_or_no

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable

    from shoal.batching.calls.progress import Progress

T = TypeVar("T")
V = TypeVar("V")
R = TypeVar("R")


Items: TypeAlias = "Iterable[T] | AsyncIterable[T]"


class MapKeywords(TypedDict, total=False):
    window: int | None
    as_completed: bool
    return_exceptions: bool
    progress: Progress


class DelegatingCoroutine(Coroutine[Any, Any, V]):
    """A coroutine object with further methods, which event loops take for the coroutine."""

    @property
    @abstractmethod
    def _coroutine(self) -> Coroutine[Any, Any, V]: ...

    def __await__(self) -> Generator[Any, Any, V]:
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __getattr__(self, name: str) -> Any:
        # For attributes that event loops read, such as whether the coroutine runs.
        if not name.startswith(("cr_", "gi_")):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name)
        return getattr(self._coroutine, name)


class MapCall(DelegatingCoroutine["list[R]"], AsyncIterator[R], Generic[R]):
    """Calls for all items: ``await f.map(items)``, or ``async for result in f.map(items)``.

    Iterated, it takes items as there is room for them, and gives each result when all results
    before it were given; with ``as_completed=True`` as soon as it is there, with the number of its
    item. An error is raised in its place, and ends the calls that are under way.

    Leaving the loop cancels these calls, as does cancellation. To wait until they have ended:
    ``async with f.map(items) as results: async for result in results: ...``.
    """

    _window: MapWindow | None = None
    _made: Coroutine[Any, Any, list[R]] | None = None
    _is_over = True  # until it is made: an option may be refused
    _is_busy = False
    _done = 0
    _awaited: int | None = None
    """The length of a list that is awaited without options."""

    # `plan` is called in the event loop when the first item is needed, with whether results may
    # come as completed. `at_once` makes the calls of columns that have a length; it gets whether to
    # return errors, and returns None if there are too many.
    def __init__(
        self,
        columns: tuple[Any, ...],
        options: MapKeywords,
        plan: Callable[[bool], MapPlan],
        at_once: Callable[[bool], Awaitable[list[Any]] | None] = lambda _: None,
    ) -> None:
        self._columns = columns
        self._plan = plan
        self._at_once = at_once
        window = options.get("window")
        self._size = None if window is None else whole("window", window, least=1)
        self._as_completed = yes_or_no("as_completed", options.get("as_completed", False))
        self._returns = yes_or_no("return_exceptions", options.get("return_exceptions", False))
        self._progress: Progress = checked_progress(options.get("progress", False))
        self._is_over = False

    # As a coroutine.

    @property
    def _coroutine(self) -> Coroutine[Any, Any, list[R]]:
        if self._made is None:
            self._made = self._all_results()
        return self._made

    async def _all_results(self) -> list[R]:
        is_plain = self._size is None and not self._as_completed and self._progress is False
        lists = not any(isinstance(column, AsyncIterable) for column in self._columns)
        if is_plain and lists and None not in map(_length, self._columns):
            self._awaited = _length(*self._columns[:1])
            at_once = self._at_once(self._returns)
            if at_once is not None:
                return await at_once
        returns, self._returns = self._returns, True
        results: list[Any] = [result async for result in self]
        try:
            for one in () if returns else results:
                outcome = one[1] if self._as_completed else one
                if isinstance(outcome, Exception):
                    raise outcome
            return results.copy()
        finally:
            results.clear()  # the traceback of an error holds this frame

    # As an iterator.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R:
        if self._is_over:
            raise StopAsyncIteration
        if self._is_busy:
            raise RuntimeError("another task waits for the next result of this map; use one task")
        self._is_busy = True
        try:
            window = self._window or await self._opened()
            if window.room >= window.chunk:
                window.fill()
            while not window.ready:
                self._report(self._done, False)
                if not await window.more():
                    self._report(self._done, True)
                    raise StopAsyncIteration
            self._done += 1
            value: R = self.value_of(window.take())
            return value
        except BaseException:
            self.leave()
            raise
        finally:
            self._is_busy = False

    def value_of(self, taken: tuple[int, Any]) -> Any:
        """Returns what the user gets for the number of an item and its outcome, or raises it."""
        outcome = taken[1]
        if isinstance(outcome, Exception) and not self._returns:
            raise outcome
        return taken if self._as_completed else outcome

    async def _opened(self) -> MapWindow:
        if not any(isinstance(column, AsyncIterable) for column in self._columns):
            return await self._open(PlainSource(_rows(self._columns)))
        items, *others = self._columns
        if others:
            raise TypeError("map() takes one async iterable, or several plain ones")
        source = FedSource()
        window = await self._open(source)
        window.tasks.start_soon(source.read, items, window)
        return window

    async def _open(self, source: PlainSource | FedSource) -> MapWindow:
        await anyio.lowlevel.checkpoint_if_cancelled()
        plan = self._plan(self._as_completed)
        if len(self._columns) != 1:
            plan = plan._replace(call_all=partial(_call_rows, plan.call_all))
        window = MapWindow(
            plan,
            self._size,
            source,
            as_completed=self._as_completed,
            retries=self._awaited is None or self._awaited > plan.once,
        )
        await window.open()
        self._window = window
        self._report = reporter(self._progress, _length(*self._columns[:1]), plan.name)
        return window

    async def exchanged(
        self, items: list[Any], *, is_last: bool
    ) -> tuple[list[tuple[int, Any]], int] | None:
        """Calls items of a thread; returns results and the number of wanted items, or None."""
        window = self._window or await self._open(FedSource())
        assert isinstance(window.source, FedSource)
        window.source.put(items, is_last=is_last)
        while True:
            window.fill()
            wanted = window.chunk if window.room >= window.chunk and not is_last else 0
            if window.ready or wanted:
                return [window.take() for _ in range(len(window.ready))], wanted
            if not await window.more():
                return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancels the calls that are under way, and waits until they have ended."""
        self.leave()
        await anyio.lowlevel.checkpoint()
        if self._window is not None:
            await self._window.ended.wait()

    def leave(self) -> None:
        self._is_over = True
        if self._window is not None:
            self._window.leave()

    def __del__(self) -> None:
        if self._window is not None:
            self._window.leave()
        elif self._made is None and not self._is_over:
            warnings.warn("the calls of map() were never awaited", RuntimeWarning, stacklevel=2)


def map_in_thread(
    make: Callable[..., MapCall[Any]],
    columns: tuple[Any, ...],
    options: MapKeywords,
    run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any],
    leave: Callable[[MapCall[Any]], object],
    name: str,
) -> Generator[Any]:
    """Makes the calls of `map` for plain code: reads the iterables and yields in its thread."""
    report = reporter(checked_progress(options.get("progress", False)), _length(*columns[:1]), name)
    own: MapKeywords = {**options, "progress": False}
    source = PlainSource(_rows(columns))
    call = make(*columns, **own)
    done, items = 0, list[Any]()
    try:
        while (got := run(partial(call.exchanged, items, is_last=source.is_ended))) is not None:
            results, wanted = got
            for one in results:
                value = call.value_of(one)
                done += 1
                yield value
            report(done, False)
            items = source.take(wanted) if wanted else []
        if source.error is not None:
            raise source.error
        report(done, True)
    finally:
        leave(call)


def map_blocking(
    make: Callable[..., MapCall[Any]],
    columns: tuple[Any, ...],
    options: MapKeywords,
    run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any],
    leave: Callable[[MapCall[Any]], object],
    name: str,
) -> Any:
    """Returns a list, or with a `window` the iterator of `map_in_thread`."""
    if options.keys() - {"return_exceptions"}:
        results = map_in_thread(make, columns, options, run, leave, name)
        return list(results) if options.get("window") is None else results
    lists = [list(column) for column in columns]  # in this thread: they may block
    return run(partial(make, *lists, **options))


async def _call_rows(
    call_all: Callable[..., Awaitable[list[Any]]], rows: list[tuple[Any, ...]]
) -> list[Any]:
    return await call_all(*zip(*rows, strict=True))


def _rows(columns: tuple[Any, ...]) -> Iterable[Any]:
    return columns[0] if len(columns) == 1 else zip(*columns, strict=True)


def _length(column: Any = None) -> int | None:
    try:
        return len(column)
    except Exception:  # such as that of tqdm's bar around a generator
        return None
