"""The lifetime of a controller: opening, its tasks, and shutdown.

One task of the controller performs the shutdown, and callers of `Lifetime.shutdown` only wait for
it. So a cancelled caller does not interrupt it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import anyio
from anyio.from_thread import BlockingPortal

from shoal.errors import ShutDown
from shoal.replicas.portal import PortalBridge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup, TaskStatus


class Lifetime:
    """Opens once, runs tasks, and ends once."""

    def __init__(
        self,
        restore: Callable[[], Awaitable[None]],
        drain: Callable[[], Awaitable[None]],
        close: Callable[[], None],
    ) -> None:
        self._restore = restore  # `open` raises its exceptions
        self._drain = drain  # called at shutdown, before the tasks are cancelled
        self._close = close  # called at the very end, in every case
        self._tasks: TaskGroup | None = None
        self._threads: PortalBridge | None = None
        self._scope = anyio.CancelScope()
        self._exit = AsyncExitStack()
        self._was_opened = False
        self._ending = anyio.Event()
        self._ended = anyio.Event()

    async def open(self) -> None:
        """Cancellation ends it at once."""
        if self._was_opened:
            raise RuntimeError("a controller can be opened only once")
        self._was_opened = True
        try:
            tasks = await self._exit.enter_async_context(anyio.create_task_group())
            await tasks.start(self._run)
        except BaseException:  # not passed to the task group, which would wrap it in a group
            await self._exit.aclose()
            raise
        else:
            # The tasks go on while the block is cancelled, so that cleanup code can make calls.
            self._scope.shield = True

    async def close(self) -> None:
        """Shuts down, in the task that called `open`; cancellation skips the draining."""
        self._scope.shield = False
        async with self._exit:
            await self.shutdown()

    async def shutdown(self) -> None:
        """Waits until the shutdown is complete; it continues if the caller is cancelled."""
        self._ending.set()
        if self._tasks is None:  # it was not opened
            self._ended.set()
        await self._ended.wait()

    async def wait_ending(self) -> None:
        await self._ending.wait()

    def check_open(self) -> None:
        if self._ending.is_set() or self._tasks is None:
            raise _not_open()

    @property
    def threads(self) -> PortalBridge:
        """The bridge over which threads run coroutines in the event loop."""
        if self._threads is None:
            raise _not_open()
        return self._threads

    def start_soon(self, function: Callable[..., Any], *args: Any) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(function, *args)

    async def start(self, function: Callable[..., Any], *args: Any) -> None:
        assert self._tasks is not None
        await self._tasks.start(function, *args)

    async def _run(self, *, task_status: TaskStatus[None]) -> None:
        try:
            with self._scope:
                async with BlockingPortal() as portal, anyio.create_task_group() as tasks:
                    self._threads = PortalBridge(portal)
                    self._tasks = tasks
                    await self._restore()
                    task_status.started()
                    await self._ending.wait()
                    await self._drain()
                    self._ended.set()  # before the portal ends, through which threads wait for this
                    tasks.cancel_scope.cancel()
                    await portal.stop(cancel_remaining=True)
        finally:
            self._ending.set()
            self._ended.set()
            self._close()


def _not_open() -> ShutDown:
    return ShutDown("this client was shut down already, or has not been opened")
