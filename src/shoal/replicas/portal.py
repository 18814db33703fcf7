"""Runs coroutines in a client's event loop for plain code that waits for them.

A thread submits a coroutine to a client's event loop and waits. The loop's own thread must not wait
here, since that would deadlock. The thread of another event loop must not wait either, since that
would block all other tasks of the loop. IPython is an exception: it runs a notebook's code inside
an event loop, and that code is expected to block.

A client without an event loop of its own gets one in a new thread. anyio's `start_blocking_portal`
starts one too, but its thread keeps the program alive until it is stopped, which users of notebooks
rarely do. `PortalThread` starts a daemon thread.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal

from shoal.batching.calls.threads import ThreadStream
from shoal.errors import ShutDown
from shoal.failures.held import holding
from shoal.loops.event_loop import holds_ctrl_c
from shoal.replicas.threads import WorkCancelled, check_may_block, inner_calls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.batching.calls.stream import ResultIterator

T = TypeVar("T")


class Bridge(Protocol):
    """Runs coroutines in a client's event loop, for other threads."""

    def run(self, function: Callable[[], Awaitable[T]], instead: str) -> T:
        """Waits for the result; `instead` is the code to write in an event loop."""
        ...


class PortalBridge:
    """Runs coroutines in the event loop of a blocking portal."""

    def __init__(self, portal: BlockingPortal, thread_id: int | None = None) -> None:
        self._portal = portal
        self._process = os.getpid()
        self._thread_id = threading.get_ident() if thread_id is None else thread_id

    def run(self, function: Callable[[], Awaitable[T]], instead: str) -> T:
        """Waits for the result; an exception in the waiting thread cancels the coroutine."""
        if os.getpid() != self._process:
            raise ShutDown(
                f"this client was made in process {self._process}, and this is {os.getpid()}, a "
                "fork of it, which has no copy of its event loop; make a client here"
            )
        check_may_block(instead, self._thread_id)
        try:
            task = self._portal.start_task_soon(_held, function)
        except RuntimeError:
            raise ShutDown("the event loop of this client has ended") from None
        calls = inner_calls.get(None)
        try:
            if calls is None:
                return task.result()
            with calls.waiting(task.cancel):
                return task.result()
        except CancelledError:
            if calls is not None and calls.is_cancelled:
                raise WorkCancelled("the request that made this call was cancelled") from None
            raise ShutDown("the event loop of this client has ended") from None
        except BaseException:
            task.cancel()
            raise


@holds_ctrl_c
async def _held(function: Callable[[], Awaitable[T]]) -> T:
    """Calls a function whose user code must not end the loop with an exception."""
    with holding():
        return await function()


class PortalThread:
    """A `Bridge` to an event loop in a new thread, which the first call starts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._portal: BlockingPortal | None = None
        self._bridge: PortalBridge | None = None
        self._is_closed = False
        self._process = os.getpid()

    def run(self, function: Callable[[], Awaitable[T]], instead: str) -> T:
        check_may_block(instead)
        return self._started().run(function, instead)

    def close(self, last: Callable[[], Awaitable[object]]) -> None:
        """Runs one last coroutine, and ends the thread. Idempotent."""
        with self._lock:
            self._is_closed = True
            portal, self._portal = self._portal, None
        if portal is None or self._thread is None or os.getpid() != self._process:
            return  # a process that was forked has no copy of the thread
        try:
            portal.call(last)
        finally:
            portal.call(portal.stop, True)
            self._thread.join()

    async def aclose(self, last: Callable[[], Awaitable[object]]) -> None:
        """Closes without blocking the event loop; cancellation does not shorten the wait."""
        if self._portal is not None:
            with anyio.CancelScope(shield=True):
                # All threads of the usual limiter may be blocked in calls that end only by this.
                await anyio.to_thread.run_sync(self.close, last, limiter=anyio.CapacityLimiter(1))
        self._is_closed = True

    def _started(self) -> PortalBridge:
        with self._lock:
            if self._is_closed:
                raise ShutDown("this client is closed")
            if self._bridge is None:
                self._process = os.getpid()
                started: Future[BlockingPortal] = Future()
                self._thread = threading.Thread(
                    target=_serve, args=(started,), name=self._name, daemon=True
                )
                self._thread.start()
                self._portal = started.result()
                self._bridge = PortalBridge(self._portal, self._thread.ident)
            return self._bridge


def _serve(started: Future[BlockingPortal]) -> None:
    async def main() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    try:
        anyio.run(main, backend="trio")
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


def blocking_stream(
    open_: Callable[[], ResultIterator], bridge: Bridge, owner: str
) -> ThreadStream[Any]:
    """Makes a stream for plain code, of the `owner` of a method `stream`."""
    block = f"with {owner}.stream(...) as stream:"

    def leave(stream: ResultIterator) -> None:
        with suppress(ShutDown):  # then the stream has ended
            bridge.run(stream.aclose, "await stream.aclose()")

    def run(function: Callable[[], Awaitable[T]]) -> T:
        return bridge.run(function, f"async {block}")

    return ThreadStream(open_, run, leave, f"{block} ...")
