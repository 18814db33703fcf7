"""Atomic changes of a backend's config while it serves.

All checks that can refuse the change run first. The old replicas stay until all new ones are ready
and the change has been recorded, so a failed change leaves the old replicas. A user config that
they got in between is taken back. The cost is memory: while replicas are replaced there may be
twice as many.

If the replicas have GPUs and too few are free, an old one ends for each new one that starts. If the
change fails then, replicas of the old kind are started again.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from shoal.errors import ReplicaDied
from shoal.replicas.placements import placement_of
from shoal.serving.backend_config import same_user_config

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from shoal.serving.backend_config import BackendConfig
    from shoal.serving.backends.backend import Backend
    from shoal.serving.backends.managed import ManagedReplica

logger: Final = logging.getLogger("shoal.serving")

_UNDO_S: Final = 30.0


@asynccontextmanager
async def changed(backend: Backend, config: BackendConfig) -> AsyncGenerator[None]:
    """Applies another config, and restores the old one if the block fails."""
    # Leaving the block waits until the replicas that are no longer needed have ended. The errors
    # are those of `Client.update_backend_config`. Cancellation in the block or before undoes the
    # change, once a running ``reconfigure`` has ended; after the block, the change stays.
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
    is_replaced = config.needs_new_replicas(before) or (is_reconfigured and not supervisor.ready())
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
    count = len(supervisor.ready())
    try:
        if is_moved:
            wanted = await backend.membership.prepare(config)
        with supervisor.changing():
            if is_replaced:
                supervisor.replace(config, wanted if is_moved else supervisor.wanted)
                await supervisor.settle()
            elif is_reconfigured:
                await _reconfigure(backend, config, reconfigured)
            backend.adopt(config)
            if is_scaled:
                backend.set_wanted(config.num_replicas)
            # If no replica takes work, the change succeeds only once some do.
            if is_scaled or (supervisor.wanted and not supervisor.ready()):
                await supervisor.settle()
            await backend.mend_batchers()
            yield
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for managed in reconfigured:
                    tasks.start_soon(_restore_user_config, managed, before)
        backend.adopt(before)
        backend.resize_batchers()
        if isinstance(error, Exception):
            with anyio.move_on_after(_UNDO_S):
                await supervisor.wait_restored(count)
        raise
    if is_replaced or is_scaled:
        await supervisor.wait_drained()


async def restart(backend: Backend) -> None:
    """Replaces the replicas of a backend; if a new one can't be started, the old ones stay."""
    supervisor = backend.supervisor
    count = len(supervisor.ready())
    try:
        with supervisor.changing():
            supervisor.replace(backend.config, supervisor.wanted)
            await supervisor.settle()
            backend.forget_results()
            await backend.mend_batchers()
    except Exception:
        with anyio.move_on_after(_UNDO_S):
            await supervisor.wait_restored(count)
        raise
    await supervisor.wait_drained()


async def _reconfigure(
    backend: Backend, config: BackendConfig, reconfigured: list[ManagedReplica]
) -> None:
    """Passes a new user config to one replica after the other; `reconfigured` lists them."""
    supervisor = backend.supervisor
    while pending := [managed for managed in supervisor.ready() if managed not in reconfigured]:
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
