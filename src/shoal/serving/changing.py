"""Changing a backend's config while it serves: whole, or not at all.

What can be refused is asked first, what takes effect at once comes last, and what was done before
something failed is undone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio

from shoal.errors import ReplicaDied
from shoal.replicas.placements import placement_of

if TYPE_CHECKING:
    from shoal.serving.backend import Backend
    from shoal.serving.config import BackendConfig
    from shoal.serving.keeping import Kept

logger: Final = logging.getLogger("shoal.serving")

_UNDO_S: Final = 30.0


async def change(backend: Backend, config: BackendConfig) -> None:
    """Takes in another config; see `Client.update_backend_config`.

    Raises:
        TypeError: An option has the wrong type; nothing is changed.
        ValueError: An option does not fit the code; nothing is changed.
        ReplicaNotStarted: A new replica could not be started; nothing is changed.
        Exception: What ``reconfigure`` raised; nothing is changed.
    """
    before = backend.config
    placement_of(config.placement)
    for line in backend.lines.values():
        line.check(backend.batch_options(line.method, config))
    told = await _reconfigured(backend, config) if config.user_config != before.user_config else []
    try:
        if config.needs_new_replicas(before):
            await backend.replace(config)
        backend.adopt(config)
        if (config.num_replicas, config.autoscaling) != (before.num_replicas, before.autoscaling):
            await _scale(backend, config, before)
    except BaseException:
        with anyio.CancelScope(shield=True):
            for kept in told:
                await _give_back(kept, before)
        raise


async def change_back(backend: Backend, config: BackendConfig) -> None:
    """Undoes a change that could not be written down, as far as that can be done soon."""
    with anyio.move_on_after(_UNDO_S, shield=True):
        try:
            await change(backend, config)
        except Exception:
            logger.exception("%s: a change could not be undone", backend.tag)
        return
    logger.error("%s: a change is not undone after %g s", backend.tag, _UNDO_S)


async def _scale(backend: Backend, config: BackendConfig, before: BackendConfig) -> None:
    try:
        await backend.scale(config.num_replicas)
    except BaseException:
        if config.needs_new_replicas(before):
            backend.supervisor.replace(before)
        backend.adopt(before)
        raise


async def _reconfigured(backend: Backend, config: BackendConfig) -> list[Kept]:
    """Gives a new user config to all replicas, and returns them."""
    if not (await backend.supervisor.described()).reconfigures:
        raise ValueError(
            f"user_config={config.user_config!r:.80}: the code of {backend.tag} has no "
            "reconfigure(user_config) that would take it"
        )
    told: list[Kept] = []
    try:
        while untold := [kept for kept in backend.supervisor.ready() if kept not in told]:
            for kept in untold:
                told.append(kept)
                try:
                    await kept.replica.reconfigure(config.user_config)
                except ReplicaDied:
                    continue  # whoever takes its place is told when it starts
                kept.config = config
    except BaseException:
        with anyio.CancelScope(shield=True):
            for kept in told:
                await _give_back(kept, backend.config)
        raise
    return told


async def _give_back(kept: Kept, config: BackendConfig) -> None:
    try:
        await kept.replica.reconfigure(config.user_config)
        kept.config = config
    except ReplicaDied:
        return
    except Exception as error:
        kept.replica.kill(f"its old user_config could not be given back to it: {error!r}")
