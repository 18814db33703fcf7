"""A thread with an event loop, in which other threads can run coroutines.

anyio's `start_blocking_portal` starts one too, but its thread keeps the program from ending until
it is stopped, which users of notebooks rarely do. This one is a daemon.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal

from shoal.errors import ShutDown
from shoal.replicas.threads import check_may_block
from shoal.serving.clients.sync import PortalBridge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class PortalThread:
    """A `Bridge` to an event loop in a new thread, which starts when it is first needed.

    Args:
        name: The name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._portal: BlockingPortal | None = None
        self._bridge: PortalBridge | None = None
        self._is_closed = False
        self._process = os.getpid()

    def run(self, function: Callable[[], Awaitable[T]], instead: str) -> T:
        """See `Bridge.run`."""
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
        """Does what `close` does, without blocking the event loop.

        Cancellation: waits for the end of the thread nevertheless.
        """
        if self._portal is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self.close, last)
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
