"""The backends of a controller: each is started, kept, changed by one at a time, and drained.

To drain is the controller's work and not its callers': a backend that was deleted, and all of them
at the end, are drained by tasks of the controller, which callers only wait for. So who asked for it
may leave, and aborts nothing.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio

from shoal.errors import BatcherClosed, NameTaken, NoSuchName
from shoal.serving.backends.backend import Backend
from shoal.serving.names import found

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from anyio.abc import TaskStatus

    from shoal.replicas.code.definition import Definition
    from shoal.replicas.contract import Replica
    from shoal.serving.config.config import BackendConfig
    from shoal.serving.controller.lifetime import Lifetime

logger: Final = logging.getLogger("shoal.serving")


class Leaving:
    """A backend that was deleted, and is drained.

    Args:
        backend: The backend.

    Attributes:
        has_gone: Set when its tag is free again.
    """

    def __init__(self, backend: Backend) -> None:
        self.has_gone = anyio.Event()
        self._backend = backend
        self._draining = anyio.CancelScope()

    async def run(self, *, at_once: bool) -> None:
        """Ends the backend.

        Args:
            at_once: Whether to fail what is in its line, and not to wait for it.
        """
        with self._draining:
            await self._backend.close(at_once=at_once)
        await self._backend.wait_ended()

    def end_at_once(self) -> None:
        """Waits no more for what is in its line."""
        self._draining.cancel()


class Backends:
    """Starts backends, keeps them while the controller is open, and drains them.

    A tag is taken from the moment when its backend begins to start until it has drained.

    Args:
        lifetime: When the controller is open, and its tasks.
        prepare: Called with each replica before it starts.
        enter: What each task calls first that code of a backend may run in.

    Attributes:
        by_tag: The backends that can get traffic, by tag, in the order in which they were added.
    """

    def __init__(
        self, lifetime: Lifetime, prepare: Callable[[Replica], None], enter: Callable[[], object]
    ) -> None:
        self.by_tag: dict[str, Backend] = {}
        self._lifetime = lifetime
        self._prepare = prepare
        self._enter = enter
        self._reserved: set[str] = set()
        self._leaving: dict[str, Leaving] = {}

    def find(self, tag: str) -> Backend:
        """Returns a backend.

        Raises:
            NoSuchName: There is none of that tag.
        """
        return found("backend", tag, self.by_tag)

    def among(self, tags: Iterable[str]) -> dict[str, Backend]:
        """Returns those of some tags, all of which are there."""
        return {tag: self.by_tag[tag] for tag in tags}

    async def start(self, tag: str, code: Definition, config: BackendConfig) -> Backend:
        """Starts a backend, and does not wait until it is ready."""
        backend = Backend(tag, code, config, self._prepare, self._enter)
        await self._lifetime.start(self._keep, backend)
        return backend

    @asynccontextmanager
    async def starting(
        self, tag: str, code: Definition, config: BackendConfig
    ) -> AsyncGenerator[Backend]:
        """Starts a backend of a free tag, for a block that begins when it is ready.

        Raises:
            NameTaken: The tag is taken.
            ShutDown: The controller was shut down meanwhile.
            Exception: See `Backend.ready`.

        Cancellation: the backend ends at once, as when the block fails.
        """
        self._reserve(tag)
        try:
            backend = await self.start(tag, code, config)
            try:
                await self._ready(backend)
                yield backend
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await backend.close(at_once=True)
                raise
        finally:
            self._reserved.discard(tag)

    def add(self, backend: Backend) -> None:
        """Adds a backend that was started: it can get traffic from here on."""
        self.by_tag[backend.tag] = backend

    @asynccontextmanager
    async def changing(self, tag: str) -> AsyncGenerator[Backend]:
        """Keeps others from changing a backend during a block.

        Raises:
            NoSuchName: There is none of that tag.
            ShutDown: The controller was shut down, before or meanwhile.
        """
        self._lifetime.check_open()
        backend = self.find(tag)
        try:
            async with backend.changing:
                self._lifetime.check_open()
                if self.find(tag) is not backend:
                    raise NoSuchName(f"the backend {tag!r} was deleted, and made again, meanwhile")
                yield backend
        except BatcherClosed:
            self._lifetime.check_open()  # which says more, if that is why
            raise

    def let_go(self, tag: str, *, at_once: bool) -> Leaving:
        """Removes a backend and begins to drain it; its tag is free when that has ended.

        Args:
            tag: Which.
            at_once: Whether to fail what is in its line instead.
        """
        leaving = self._leaving[tag] = Leaving(self.by_tag.pop(tag))
        self._lifetime.start_soon(self._see_off, tag, leaving, at_once)
        return leaving

    def leaving(self, tag: str) -> Leaving | None:
        """Returns the backend of a tag that was removed and is drained; None for none."""
        try:
            return self._leaving.get(tag)
        except TypeError:  # as in `find`
            return None

    def drain(self) -> None:
        """Has batches wait for company no more; calls are taken."""
        for backend in self.by_tag.values():
            backend.drain()

    async def close(self) -> None:
        """Ends them all, once what is in their lines has been answered or is out of time.

        Cancellation: the one that is being drained ends at once; the others go on.
        """
        for leaving in [*self._leaving.values()]:
            await leaving.has_gone.wait()
        # The last one first: code may call endpoints that were there before it.
        closed: list[Backend] = []
        while left := [one for one in self.by_tag.values() if one not in closed]:
            closed.append(left[-1])
            await left[-1].close()

    def _reserve(self, tag: str) -> None:
        if tag in self.by_tag or tag in self._reserved or tag in self._leaving:
            raise NameTaken(
                f"there is a backend {tag!r} already; change its config, or choose "
                "another tag and set the traffic of its endpoints to that"
            )
        self._reserved.add(tag)

    async def _ready(self, backend: Backend) -> None:
        try:
            await backend.ready()
        except BatcherClosed:
            self._lifetime.check_open()  # as in `changing`
            raise

    async def _keep(self, backend: Backend, *, task_status: TaskStatus[None]) -> None:
        try:
            await backend.run(task_status=task_status)
        except Exception as error:  # a mistake of ours must not end its neighbours
            logger.exception("the backend %s broke", backend.tag)
            backend.pool.fail(error)

    async def _see_off(self, tag: str, leaving: Leaving, at_once: bool) -> None:
        try:
            await leaving.run(at_once=at_once)
        finally:
            del self._leaving[tag]
            leaving.has_gone.set()
