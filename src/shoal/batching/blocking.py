"""`shoal.blocking`: batching for a program that has threads and no event loop."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from anyio.from_thread import start_blocking_portal

from shoal.batching.batcher import Batcher
from shoal.batching.calls import StreamCall, UnaryCall
from shoal.batching.decorator import open_batchers
from shoal.batching.threads import ThreadStream
from shoal.errors import BatcherClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from concurrent.futures import Future
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from anyio.from_thread import BlockingPortal

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


@overload
def blocking(
    batched: UnaryCall[P, R] | Batcher[UnaryCall[P, R]], /, *, backend: str = "trio"
) -> AbstractContextManager[Callable[P, R]]: ...
@overload
def blocking(
    batched: StreamCall[P, R] | Batcher[StreamCall[P, R]], /, *, backend: str = "trio"
) -> AbstractContextManager[Callable[P, ThreadStream[R]]]: ...
def blocking(batched: Any, /, *, backend: str = "trio") -> AbstractContextManager[Any]:
    """Opens batching for plain code, in an event loop that runs in a thread of its own.

    ``with shoal.blocking(embed) as call: vector = call("text")``, from any number of threads. A
    generator handler gives a stream: ``with call(x) as stream: for item in stream: ...``.

    Args:
        batched: A function decorated with `batch`, or a method of an instance; or a `Batcher` that
            has not been opened.
        backend: The event loop, ``"trio"`` or ``"asyncio"``.

    Returns:
        A context manager that gives the blocking call. Leaving the block waits for the calls that
        other threads have under way.

    Raises (on entering): `TypeError` for what is not batched; `RuntimeError` for a batcher that is
        or was open, since a batcher is opened once.

    Raises (from the call): what the call would raise in an event loop; `BatcherClosed` once the
        block has been left.

    Cancellation: a `KeyboardInterrupt` in the waiting thread drops its request.
    """
    if isinstance(batched, Batcher):
        batcher = cast("Batcher[object]", batched)
        return _blocking(batcher.call, batcher, backend)
    return _blocking(batched, open_batchers(batched), backend)


@contextmanager
def _blocking(
    call: Any, opened: AbstractAsyncContextManager[Any], backend: str
) -> Generator[Callable[..., Any]]:
    with (
        start_blocking_portal(backend) as portal,
        portal.wrap_async_context_manager(opened),
    ):
        run = _PortalRun(portal)
        streams = isinstance(call, StreamCall)

        def call_from_thread(*args: Any, **kwargs: Any) -> Any:
            bound = partial(call, *args, **kwargs)
            return ThreadStream[Any](bound, run, run.run_sync) if streams else run(bound)

        try:
            yield call_from_thread
        finally:
            run.is_closing = True


class _PortalRun:
    """Runs async functions in the portal's event loop, until it is closed."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self.is_closing = False

    def run_sync(self, function: Callable[[], None]) -> None:
        """Runs a plain function in the event loop, if there still is one."""
        try:
            self._portal.call(function)
        except RuntimeError:
            if not self.is_closing:
                raise

    def __call__(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        try:
            future: Future[T] = self._portal.start_task_soon(function)
        except RuntimeError as error:
            if not self.is_closing:
                raise
            raise BatcherClosed("the block of shoal.blocking() has been left") from error
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
