"""`shoal.blocking`: batching for programs with threads and without an event loop.

The event loop runs in its own thread, which ends when the block is left; see `loops.kept`. In a
process that was forked inside of the block calls are refused.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast, overload

from shoal.batching.batcher import Batcher
from shoal.batching.calls.call import StreamCall, UnaryCall
from shoal.batching.calls.mapping import map_blocking
from shoal.batching.calls.threads import ThreadStream
from shoal.batching.current import calls_from_thread, setting, waiting_batches
from shoal.batching.decorator.block import BatcherBlock
from shoal.batching.decorator.decorator import open_batchers
from shoal.errors import BatcherClosed, NotOpen
from shoal.loops.event_loop import EventLoop
from shoal.loops.kept import KeptBlock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
    from concurrent.futures import Future
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from typing import Self, Unpack

    from shoal.batching.calls.mapping import MapCall
    from shoal.batching.calls.progress import Progress
    from shoal.batching.calls.stream import ResultStream
    from shoal.core.counters import BatcherStatistics
    from shoal.core.forming.call_options import CallKeywords
    from shoal.core.options.options import OptionKeywords

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


@overload
def blocking(
    batched: UnaryCall[P, R] | Batcher[UnaryCall[P, R]], /, *, backend: str = "trio"
) -> AbstractContextManager[BlockingCall[P, R]]: ...
@overload
def blocking(
    batched: StreamCall[P, R] | Batcher[StreamCall[P, R]], /, *, backend: str = "trio"
) -> AbstractContextManager[BlockingStreamCall[P, R]]: ...
def blocking(batched: Any, /, *, backend: str = "trio") -> AbstractContextManager[Any]:
    """Opens batching for plain code, in an event loop that runs in its own thread.

    ``with shoal.blocking(embed) as call: vector = call("text")``, from any number of threads. A
    generator handler returns a stream: ``with call(x) as stream: for item in stream: ...``. Batched
    functions that the handler calls are opened at their first call, as in `open_batchers`.

    Args:
        batched: A function decorated with `batch`, or a method of an instance; or a `Batcher` that
            has not been opened.
        backend: The event loop, ``"trio"`` or ``"asyncio"``.

    Returns:
        A context manager that returns the blocking call, a `BlockingCall` or `BlockingStreamCall`.
        Leaving the block waits for calls in progress in other threads.

    Raises (on entering): `TypeError` for an object that is not batched; `RuntimeError` in a trio
        task, and for a batcher that is or was open, since a batcher can be opened only once.

    Raises (on leaving): `WouldDeadlock` in a handler of the block, at once.

    Raises (from the call): the errors of the call in an event loop; `BatcherClosed` once the block
        has been left; `NotOpen` in a process that was forked inside of the block.

    Cancellation: a `KeyboardInterrupt` in the waiting thread drops its request.
    """
    if isinstance(batched, Batcher):
        batcher = cast("Batcher[object]", batched)
        return _BlockingContext(batcher.call, lambda: batcher, batcher, backend)
    return _BlockingContext(batched, lambda: batched.batcher, open_batchers(batched), backend)


class BlockingFace:
    """The common base of blocking calls: access to their batcher from any thread."""

    def __init__(self, call: Any, run: _PortalRun, batcher: Batcher[Any]) -> None:
        self._call = call
        self._run = run
        self._batcher = batcher

    def options(self, **options: Unpack[CallKeywords]) -> Self:
        """Returns the same call with call options; see `UnaryCall.options`."""
        return type(self)(self._call.options(**options), self._run, self._batcher)

    def statistics(self) -> BatcherStatistics:
        """Returns a snapshot of the batcher's counts and state."""
        return self._run.sync(self._batcher.statistics)

    def configure(self, **changes: Unpack[OptionKeywords]) -> None:
        """Changes several options together, from the next batch on; see `Batcher.configure`.

        Raises:
            TypeError: A name is no option, or a value has the wrong type; nothing is changed.
            ValueError: A value is out of its range; nothing is changed.
            BatcherClosed: The block has been left.
        """
        self._run.sync(partial(self._batcher.configure, **changes))

    def flush(self) -> None:
        """Dispatches the queued requests without waiting for more."""
        self._run.sync(self._batcher.flush)


class BlockingCall(BlockingFace, Generic[P, R]):
    """A batched call for plain code: ``result = call(item)``, from any thread.

    Raises: as `UnaryCall`, and `BatcherClosed` once the block has been left.
    """

    _call: UnaryCall[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Makes one call, and blocks until it is answered."""
        return self._run(partial(self._call, *args, **kwargs))

    @overload
    def map(
        self: BlockingCall[[T], R],
        items: Iterable[T],
        /,
        *,
        return_exceptions: Literal[False] = False,
        progress: Progress = False,
    ) -> list[R]: ...
    @overload
    def map(
        self: BlockingCall[[T], R],
        items: Iterable[T],
        /,
        *,
        return_exceptions: bool,
        progress: Progress = False,
    ) -> list[R | Exception]: ...
    @overload
    def map(
        self,
        *columns: Iterable[Any],
        window: int,
        as_completed: bool = False,
        return_exceptions: bool = False,
        progress: Progress = False,
    ) -> Generator[Any]: ...
    @overload
    def map(
        self,
        *columns: Iterable[Any],
        return_exceptions: Literal[False] = False,
        progress: Progress = False,
    ) -> list[R]: ...
    @overload
    def map(
        self, *columns: Iterable[Any], return_exceptions: bool, progress: Progress = False
    ) -> list[R | Exception]: ...
    def map(self, *columns: Iterable[Any], **options: Any) -> Any:
        """Calls every item of an iterable; see `UnaryCall.map`.

        Returns:
            All results, as a list. With a `window`, an iterator of them, which reads items in this
            thread as there is room for them: for data sets of any size. Only that one takes
            `as_completed`.
        """
        run = self._run
        name = self._batcher.name
        return map_blocking(self._call.map, columns, cast("Any", options), run, run.leave, name)


class BlockingStreamCall(BlockingFace, Generic[P, R]):
    """A batched call for plain code that returns a stream: ``with call(item) as stream: ...``.

    Raises: as `StreamCall`, and `BatcherClosed` once the block has been left.
    """

    _call: StreamCall[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ThreadStream[R]:
        """Prepares one call; it is made when the stream is entered."""
        return ThreadStream(partial(self._call, *args, **kwargs), self._run, self._run.leave)


@dataclass(eq=False)
class _BlockingContext:
    _call: Any
    _batcher: Callable[[], Batcher[Any]]
    _opened: AbstractAsyncContextManager[Any]
    _backend: str

    def __enter__(self) -> Any:
        if EventLoop.here().trio_run is not None:  # a trio task can't wait for a portal
            raise RuntimeError(
                "shoal.blocking() is for plain code, and trio runs here; write:\n"
                "    async with shoal.open_batchers(f):\n"
                "        ...  # await f(item)"
            )
        if not isinstance(cast("object", self._call), (UnaryCall, StreamCall)):
            raise TypeError(
                "blocking() takes a function decorated with @shoal.batch, a method of an instance, "
                f"or a Batcher, not {self._call!r}; for a handler that is not decorated, write\n"
                "    with shoal.blocking(shoal.Batcher(handler)) as call:"
            )
        self._kept = KeptBlock(_in_block(self._opened, self._batcher), self._backend)
        _, batcher = self._kept.value
        run = _PortalRun(self._kept)
        streams = isinstance(cast("object", self._call), StreamCall)
        kind: Any = BlockingStreamCall if streams else BlockingCall
        return kind(self._call, run, batcher)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        block, batcher = self._kept.value
        self._kept.leave(
            "shoal.blocking()",
            kind,
            lambda: any(batcher.runs(one) or block.runs(one) for one in waiting_batches()),
        )


@asynccontextmanager
async def _in_block(
    opened: AbstractAsyncContextManager[Any], batcher: Callable[[], Batcher[Any]]
) -> AsyncGenerator[tuple[BatcherBlock, Batcher[Any]]]:
    async with BatcherBlock() as block, opened:
        yield block, batcher()


class _PortalRun:
    def __init__(self, kept: KeptBlock[Any]) -> None:
        # Referenced as long as calls can be made: a block that is dropped ends.
        self._kept = kept

    def sync(self, function: Callable[[], T]) -> T:
        """Raises `BatcherClosed` after the block was left, `NotOpen` in a forked process."""

        async def call() -> T:
            return function()

        return self(call)

    def leave(self, stream: ResultStream[Any] | MapCall[Any]) -> None:
        if os.getpid() != self._kept.process:
            return
        try:
            self._kept.portal.call(stream.leave)
        except RuntimeError:
            if not self._kept.closing.is_set():
                raise

    def __call__(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        if os.getpid() != self._kept.process:
            raise NotOpen(
                f"shoal.blocking() was entered in process {self._kept.process}, and this is "
                f"{os.getpid()}, a fork of it, which has no copy of the block's thread; enter "
                "another block here:\n    with shoal.blocking(f) as call:\n        call(item)"
            )
        try:
            with setting(calls_from_thread, True):  # a handler that calls itself would hang
                future: Future[T] = self._kept.portal.start_task_soon(function)
        except RuntimeError as error:
            if not self._kept.closing.is_set():
                raise
            raise BatcherClosed("the block of shoal.blocking() has been left") from error
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
