"""The backends of a controller: starting, changing and draining them.

Tasks of the controller drain backends, both deleted ones and all of them at shutdown. Callers only
wait for these tasks, so a caller that is cancelled does not interrupt the draining.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio

from shoal.errors import BatcherClosed, NameTaken, NoSuchName
from shoal.serving.names import found

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

    from anyio.abc import TaskStatus

    from shoal.core.events import Observers
    from shoal.replicas.code.definition import Definition
    from shoal.replicas.contract import Replica
    from shoal.serving.backend_config import BackendConfig
    from shoal.serving.backends.backend import Backend
    from shoal.serving.controller.lifetime import Lifetime
    from shoal.serving.devices import Devices

Turn: TypeAlias = "Callable[[], Awaitable[object]]"
"""Called when a backend is ready; its result is awaited before the backend gets traffic."""

logger: Final = logging.getLogger("shoal.serving")


class Deletion:
    def __init__(self, backend: Backend) -> None:
        self.done = anyio.Event()  # set when the backend's tag is free again
        self._backend = backend
        self._draining = anyio.CancelScope()

    async def run(self, *, at_once: bool) -> None:
        with self._draining:
            await self._backend.close(at_once=at_once)
        await self._backend.wait_ended()

    def end_at_once(self) -> None:
        """Stops waiting for the backend's queued requests, and ends it."""
        self._draining.cancel()


class Backends:
    """Starts backends, runs them while the controller is open, and drains them."""

    def __init__(
        self,
        lifetime: Lifetime,
        prepare: Callable[[Replica], None],
        enter: Callable[[], object],
        observers: Observers,
        devices: Devices,
    ) -> None:
        self.by_tag: dict[str, Backend] = {}  # in the order in which they were added
        self._lifetime = lifetime
        self._prepare = prepare
        self._enter = enter
        self._observers = observers
        self._devices = devices
        # A tag is taken from the moment its backend begins to start until it has drained.
        self._reserved: set[str] = set()
        self._deletions: dict[str, Deletion] = {}

    def find(self, tag: str) -> Backend:
        return found("backend", tag, self.by_tag)

    def among(self, tags: Iterable[str]) -> dict[str, Backend]:
        return {tag: self.by_tag[tag] for tag in tags}

    async def start(self, tag: str, code: Definition, config: BackendConfig) -> Backend:
        """Starts a backend, without waiting until it is ready."""
        from shoal.serving.backends.backend import Backend

        await self._devices.find(config)
        backend = Backend(
            tag, code, config, self._prepare, self._enter, self._observers, self._devices
        )
        await self._lifetime.start(self._run, backend)
        return backend

    @asynccontextmanager
    async def starting(
        self, tag: str, code: Definition, config: BackendConfig
    ) -> AsyncGenerator[Backend]:
        """Starts a backend with a free tag; the block begins when it is ready."""
        # Cancellation ends the backend at once, as when the block fails.
        self._reserve(tag)
        try:
            async with self._devices.checked(tag, config):
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
        self.by_tag[backend.tag] = backend

    @asynccontextmanager
    async def changing(self, tag: str) -> AsyncGenerator[Backend]:
        """Holds the lock for changing a backend during a block."""
        self._lifetime.check_open()
        backend = self.find(tag)
        try:
            async with backend.changing:
                self._lifetime.check_open()
                if self.find(tag) is not backend:
                    raise NoSuchName(f"the backend {tag!r} was deleted and created again meanwhile")
                yield backend
        except BatcherClosed:
            self._lifetime.check_open()  # raises ShutDown if that is the reason
            raise

    def remove(self, tag: str, *, at_once: bool) -> Deletion:
        """Removes a backend and begins to drain it; its tag is free when that has ended."""
        deletion = self._deletions[tag] = Deletion(self.by_tag.pop(tag))
        self._lifetime.start_soon(self._finish_deletion, tag, deletion, at_once)
        return deletion

    def deletion(self, tag: str) -> Deletion | None:
        try:
            return self._deletions.get(tag)
        except TypeError:  # an unhashable value is not a tag
            return None

    def drain(self) -> None:
        for backend in self.by_tag.values():
            backend.drain()

    async def close(self) -> None:
        """Drains all backends. Cancellation ends the draining one at once, and no others."""
        for deletion in [*self._deletions.values()]:
            await deletion.done.wait()
        # In reverse order: code may call endpoints of backends that were added earlier.
        closed: list[Backend] = []
        while remaining := [one for one in self.by_tag.values() if one not in closed]:
            closed.append(remaining[-1])
            await remaining[-1].close()

    def _reserve(self, tag: str) -> None:
        if tag in self.by_tag or tag in self._reserved or tag in self._deletions:
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

    async def _run(self, backend: Backend, *, task_status: TaskStatus[None]) -> None:
        try:
            await backend.run(task_status=task_status)
        except Exception as error:  # an internal error must not end the other backends
            logger.exception("the backend %s broke", backend.tag)
            backend.pool.fail(error)

    async def _finish_deletion(self, tag: str, deletion: Deletion, at_once: bool) -> None:
        try:
            await deletion.run(at_once=at_once)
        finally:
            del self._deletions[tag]
            deletion.done.set()
