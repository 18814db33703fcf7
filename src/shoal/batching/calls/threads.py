"""Callers outside of the event loop: worker threads, and programs without a loop.

`anyio.from_thread` is imported only when there is such a caller: a worker process with plain code
has none, and its start would take a sixth longer.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from shoal.batching.current import calls_from_thread, setting
from shoal.errors import BatcherClosed, NotOpen
from shoal.loops.event_loop import EventLoop, loop_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from shoal.batching.calls.mapping import MapCall
    from shoal.batching.calls.stream import ResultIterator, ResultStream

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class LoopOfThread:
    # For an anyio worker thread it is the loop that started the thread; for any other thread, the
    # loop in which a batcher is open for the call. Raises `NotOpen` if the thread runs an event
    # loop itself, which a blocking call would stop, or if there is no such loop or more than one.

    def __init__(self, name: str, loops: Callable[[], list[EventLoop]]) -> None:
        self._loop: EventLoop | None = None
        if not EventLoop.here().is_none:
            raise NotOpen(
                "from_thread() blocks its thread, but this one runs the event loop that would have "
                f"to answer; here write:\n    await {name}(x)\n"
                "A program without an event loop writes: with shoal.blocking(f) as call: call(x)"
            )
        import anyio.from_thread

        try:
            anyio.from_thread.check_cancelled()
        except RuntimeError:  # not an anyio worker thread
            found = loops()
            if len(found) != 1:
                raise _not_one(name, len(found)) from None
            self._loop = found[0]
        else:
            # A process that was forked in a worker thread has only this thread.
            if threading.current_thread() is threading.main_thread():
                raise _not_one(name, 0)

    def run(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        async def call() -> T:
            return await function()

        import anyio.from_thread

        with setting(calls_from_thread, True):
            if self._loop is None:
                return anyio.from_thread.run(function)
            try:
                return self._loop.run(call)
            except loop_ended() as error:
                raise BatcherClosed("the event loop that would have answered has ended") from error

    def leave(self, stream: ResultStream[Any] | MapCall[Any]) -> None:
        """Leaves a stream; does nothing if the event loop has ended."""
        # Not awaited: the stream is left even if every wait is cancelled.
        if self._loop is None:
            import anyio.from_thread

            anyio.from_thread.run_sync(stream.leave)
        else:
            self._loop.soon(stream.leave)


def _not_one(name: str, number: int) -> NotOpen:
    if number:
        return NotOpen(
            f"{name} is open in {number} event loops, and this thread belongs to none of them; "
            "choose one with an object made in that loop:\n"
            f"    call = {name}.batcher.call  # in the loop\n    call.from_thread(x)  # here"
        )
    return NotOpen(
        f"{name} is not open in an event loop that this thread can call; open it there first:\n"
        f"    async with shoal.open_batchers({name}):\n"
        "A program without an event loop writes: with shoal.blocking(f) as call: call(x)\n"
        "So does a forked process: it has none of its parent's event loops."
    )


@dataclass(eq=False, repr=False)
class ThreadStream(Generic[R_co]):
    """A stream of results for plain code: ``with ... as stream: for item in stream: ...``.

    It raises what the awaited stream raises, such as a `ResultStream`. Leaving the block drops the
    request.
    """

    _open: Callable[[], ResultIterator]
    # Runs a function in the event loop, and waits for it.
    _run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]
    # Leaves the stream.
    _leave: Callable[[Any], object]
    # The code that enters the stream, for an error.
    _block: str = "with ... as stream: for item in stream: ..."
    _stream: ResultIterator | None = None

    def __enter__(self) -> Self:
        if self._stream is None:
            self._stream = self._run(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._leave(self._stream)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> R_co:
        if self._stream is None:
            raise RuntimeError(f"enter the stream first: {self._block}")
        item: Any = self._run(self._next)
        if item is _OVER:
            raise StopIteration
        return cast("R_co", item)

    async def _enter(self) -> ResultIterator:
        return await self._open().__aenter__()

    async def _next(self) -> Any:
        assert self._stream is not None
        return await anext(self._stream, _OVER)


_OVER: Any = object()
