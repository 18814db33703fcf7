"""The backends of a controller: starting, changing and draining them.

Tasks of the controller drain backends, both deleted ones and all of them at shutdown. Callers only
wait for these tasks, so a caller that is cancelled does not interrupt the draining.

A change of a backend's config is atomic. All checks that can refuse it run first. The old replicas
stay until all new ones are ready and the change has been recorded, so a failed change leaves the
old replicas. A user config that they got in between is taken back. The cost is memory: while
replicas are replaced there may be twice as many. If they have GPUs and too few are free, an old one
ends for each new one that starts. If the change fails then, replicas of the old kind are started
again.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from shoal.errors import BatcherClosed, NameTaken, NoSuchName, ReplicaDied
from shoal.replicas.placements import placement_of
from shoal.serving.backend_config import BackendConfig, same_user_config
from shoal.serving.names import found

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from anyio.abc import TaskStatus

    from shoal.core.events import Observers
    from shoal.replicas.code.definition import Definition
    from shoal.replicas.contract import Replica
    from shoal.serving.backends.backend import Backend
    from shoal.serving.backends.managed import ManagedReplica
    from shoal.serving.controller.lifetime import Lifetime
    from shoal.serving.devices import Devices


logger: Final = logging.getLogger("shoal.serving")


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
        self._leaving: dict[str, Backend] = {}  # deleted ones that drain

    def find(self, tag: str) -> Backend:
        return found("backend", tag, self.by_tag)

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
        if tag in self.by_tag or tag in self._reserved or tag in self._leaving:
            raise NameTaken(
                f"there is a backend {tag!r} already; change its config, or choose "
                "another tag and set the traffic of its endpoints to that"
            )
        self._reserved.add(tag)
        try:
            async with self._devices.checked(tag, config):
                backend = await self.start(tag, code, config)
            try:
                await backend.wait_ready()
                yield backend
            except BaseException as error:
                backend.end_at_once()
                with anyio.CancelScope(shield=True):
                    await backend.close()
                if isinstance(error, BatcherClosed):
                    self._lifetime.check_open()  # as in `locked`
                raise
        finally:
            self._reserved.discard(tag)

    def add(self, backend: Backend) -> None:
        self.by_tag[backend.tag] = backend

    @asynccontextmanager
    async def locked(self, tag: str) -> AsyncGenerator[Backend]:
        """Holds the lock for changing a backend during a block."""
        self._lifetime.check_open()
        backend = self.find(tag)
        try:
            async with backend.change_lock:
                self._lifetime.check_open()
                if self.find(tag) is not backend:
                    raise NoSuchName(f"the backend {tag!r} was deleted and created again meanwhile")
                yield backend
        except BatcherClosed:
            self._lifetime.check_open()  # raises ShutDown if that is the reason
            raise

    def remove(self, tag: str) -> None:
        """Removes a backend and begins to drain it; its tag is free when that has ended."""
        self._leaving[tag] = backend = self.by_tag.pop(tag)
        self._lifetime.start_soon(self._finish, backend)

    def leaving(self, tag: object) -> Backend | None:
        """Returns the deleted backend of a tag while it drains."""
        return next((one for one in self._leaving.values() if one.tag == tag), None)

    def drain(self) -> None:
        for backend in self.by_tag.values():
            backend.drain()

    async def close(self) -> None:
        """Drains all backends. Cancellation ends the draining one at once, and no others."""
        for backend in [*self._leaving.values()]:
            await backend.gone.wait()
        # In reverse order: code may call endpoints of backends that were added earlier.
        closed: list[Backend] = []
        while remaining := [one for one in self.by_tag.values() if one not in closed]:
            closed.append(remaining[-1])
            await remaining[-1].close()

    async def _run(self, backend: Backend, *, task_status: TaskStatus[None]) -> None:
        try:
            await backend.run(task_status=task_status)
        except Exception as error:  # an internal error must not end the other backends
            logger.exception("the backend %s broke", backend.tag)
            backend.pool.fail(error)

    async def _finish(self, backend: Backend) -> None:
        try:
            await backend.close()
        finally:
            del self._leaving[backend.tag]
            backend.gone.set()


_UNDO_S: Final = 30.0


@asynccontextmanager
async def applied(
    backend: Backend, config: BackendConfig, *, restarts: bool = False
) -> AsyncGenerator[None]:
    """Applies another config, and restores the old one if the block fails.

    It replaces the replicas if `restarts` is True, or if only new ones can apply the config.
    """
    # Leaving the block waits until the replicas that are no longer needed have ended. The errors
    # are those of `Client.update_backend_config`. Cancellation in the block or before undoes the
    # change, once a running ``reconfigure`` has ended; after the block, the change stays. The undo,
    # in order: the supervisor's part (`keeping_ready`), the user configs, all that `adopt` sets.
    before, supervisor = backend.config, backend.supervisor
    placement_of(config.placement, config.for_placement())
    for method_batcher in backend.method_batchers.values():
        method_batcher.check(backend.batch_options(method_batcher.method, config))
    is_reconfigured = not same_user_config(config, before)
    description = supervisor.description
    if is_reconfigured and description is not None and not description.reconfigures:
        raise ValueError(
            f"user_config={config.user_config!r:.80}: the code of {backend.tag} has no "
            "reconfigure(user_config) that would take it"
        )
    # If no replica takes work, only a new one can show whether the new user config works.
    is_replaced = (
        restarts or config.needs_new_replicas(before) or (is_reconfigured and not supervisor.ready)
    )
    is_moved = config.is_remote is not before.is_remote
    is_scaled = not is_moved and (config.num_replicas, config.autoscaling) != (
        before.num_replicas,
        before.autoscaling,
    )
    await backend.devices.find(config)
    wanted = config.num_replicas if is_scaled or is_moved else supervisor.wanted
    if is_replaced or wanted > supervisor.wanted:
        own = [managed.replica.tag for managed in supervisor.managed]
        backend.devices.check(backend.tag, config, wanted, own)
    reconfigured: list[ManagedReplica] = []
    count = len(supervisor.ready)
    try:
        if is_moved:
            wanted = await backend.membership.prepare(config)
        with supervisor.keeping_ready():
            if is_replaced:
                supervisor.replace(config, wanted if is_moved else supervisor.wanted)
                await supervisor.settle()
            elif is_reconfigured:
                await _reconfigure(backend, config, reconfigured)
            backend.adopt(config)
            if is_scaled:
                backend.set_wanted(config.num_replicas)
            # If no replica takes work, the change succeeds only once some do.
            if is_scaled or (supervisor.wanted and not supervisor.ready):
                await supervisor.settle()
            await backend.mend_batchers()
            yield
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for managed in reconfigured:
                    tasks.start_soon(_restore_user_config, managed, before)
        backend.adopt(before)
        if isinstance(error, Exception):
            with anyio.move_on_after(_UNDO_S):
                await supervisor.wait_restored(count)
        raise
    backend.forget_results()  # of replicas that ran until now
    if is_replaced or is_scaled:
        await supervisor.wait_retired()


async def _reconfigure(
    backend: Backend, config: BackendConfig, reconfigured: list[ManagedReplica]
) -> None:
    """Passes a new user config to one replica after the other; `reconfigured` lists them."""
    supervisor = backend.supervisor
    while pending := [managed for managed in supervisor.ready if managed not in reconfigured]:
        managed = pending[0]
        reconfigured.append(managed)
        limit_s = config.replica.start_timeout_s
        # A client that leaves must not interrupt it: a process that goes on would be killed.
        with anyio.move_on_after(limit_s, shield=True) as patience:
            await managed.replica.reconfigure(config.user_config)
        await anyio.lowlevel.checkpoint_if_cancelled()
        if patience.cancelled_caught:
            raise TimeoutError(
                f"reconfigure() of {managed.replica.tag} did not end within "
                f"start_timeout_s={limit_s}"
            )
        managed.config = config
        assert supervisor.description is not None
        if (
            supervisor.description.checks_health
            and (trouble := await managed.trouble()) is not None
        ):
            raise ReplicaDied(
                f"{managed.replica.tag}: a health check failed after it got the new "
                f"user_config: {trouble}",
                replica=managed.replica.tag,
            )
    for managed in reconfigured:
        if managed.life.is_over:
            raise ReplicaDied(
                f"{managed.replica.tag} died after it got the new user_config",
                replica=managed.replica.tag,
            )


async def _restore_user_config(managed: ManagedReplica, config: BackendConfig) -> None:
    """Restores the old user config of a replica, and ends it if that fails."""
    trouble: str | None = f"it took longer than {_UNDO_S:g} s"
    with anyio.move_on_after(_UNDO_S):
        try:
            await managed.replica.reconfigure(config.user_config)
        except Exception as error:
            # It may be the death of a replica that the code has called.
            is_own = isinstance(error, ReplicaDied) and error.replica == managed.replica.tag
            trouble = None if is_own else repr(error)
        else:
            managed.config = config
            return
    if trouble is not None:
        managed.kill(f"its old user_config could not be restored: {trouble}")
    await managed.give_up()
