"""Callers that are not in the event loop: worker threads, and programs that have no loop at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast

import anyio.from_thread

from shoal.errors import NotOpen

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from shoal.batching.stream import ResultStream

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class RunInLoop(Protocol):
    """How a thread has the event loop run an async function, and waits for it."""

    def __call__(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """Returns what `function` returns, or raises what it raises."""
        ...


def run_in_loop(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs an async function in the event loop that started this worker thread.

    Raises:
        NotOpen: The thread is not a worker thread of an event loop.
    """
    try:
        anyio.from_thread.check_cancelled()
    except RuntimeError:
        raise NotOpen(
            "from_thread() is for worker threads of an event loop (anyio.to_thread.run_sync); "
            "a program without one uses:\n    with shoal.blocking(f) as call:\n        call(x)"
        ) from None
    return anyio.from_thread.run(function)


class ThreadStream(Generic[R_co]):
    """A `ResultStream` for plain code: ``with ... as stream: for item in stream: ...``.

    It raises what the `ResultStream` raises. Leaving the block gives the request's place back.
    """

    def __init__(
        self,
        open_: Callable[[], ResultStream[R_co]],
        run: RunInLoop,
        run_sync: Callable[[Callable[[], None]], None],
    ) -> None:
        self._open = open_
        self._run = run
        self._run_sync = run_sync
        self._stream: ResultStream[R_co] | None = None

    def __enter__(self) -> Self:
        self._stream = self._run(self._enter)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            # Not awaited: leaving is done even where every wait is cancelled.
            self._run_sync(self._stream.leave)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> R_co:
        if self._stream is None:
            raise RuntimeError(
                "enter the stream first: with ... as stream: for item in stream: ..."
            )
        item: Any = self._run(self._next)
        if item is _OVER:
            raise StopIteration
        return cast("R_co", item)

    async def _enter(self) -> ResultStream[R_co]:
        return await self._open().__aenter__()

    async def _next(self) -> Any:
        assert self._stream is not None
        return await anext(self._stream, _OVER)


_OVER: Any = object()
