"""Loads and unloads the models of a backend's replicas, by methods of its code.

`Members` decides which model is loaded where. A load is a task of the backend and not of the batch
that needs it: it goes on if the callers of that batch leave, and all batches that need the model
wait for the same load. A load that fails fails the batches that wait for it; the next batch tries
again.
"""

from __future__ import annotations

import logging
from contextvars import Context
from typing import TYPE_CHECKING, Final

import anyio

from shoal.batching.current import running_batch, setting
from shoal.core.request import Batch, DispatchReason, RequestOptions, State, request_of_nobody
from shoal.errors import HandlerTimeout, ReplicaDied
from shoal.failures.exceptions import must_propagate, own_copy
from shoal.loops.this_loop import parking_of_this_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.core.options.records import Models
    from shoal.core.replicas.members import LoadedModel
    from shoal.serving.backends.pool import Pool, PoolMember
    from shoal.status import ModelState

LOAD: Final = "load_model"
UNLOAD: Final = "unload_model"

logger: Final = logging.getLogger("shoal.serving")


class _Flight:
    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.error: BaseException | None = None


class ModelLoader:
    def __init__(
        self,
        pool: Pool,
        start_task: Callable[..., None],
        unloads: Callable[[], bool],
        options: Callable[[], Models | None],
    ) -> None:
        self.loads = self.failures = self.unloads = 0
        self.load_s = 0.0  # of all loads
        self._pool = pool
        self._start_task = start_task
        self._code_unloads = unloads
        self._options = options  # read at each load: they may change
        # The unloads to come and under way; a model is loaded again only after them.
        self._unloading: dict[tuple[PoolMember, str], anyio.Event] = {}

    def use(self, member: PoolMember, model: str) -> LoadedModel:
        """Begins to load a model if it is not loaded; it stays until `Pool.end` gets the result."""
        victims = self._pool.members.use_model(member, model)
        used = member.models[model]
        if victims is not None:
            used.flight = _Flight()
            self._unloading |= {(member, victim): anyio.Event() for victim in victims}
            self._start_task(self._load, member, model, used, victims)
        return used

    async def _load(
        self, member: PoolMember, model: str, used: LoadedModel, victims: list[str]
    ) -> None:
        flight: _Flight = used.flight
        options = self._options()
        limit_s = None if options is None else options.load_timeout_s
        began_at = anyio.current_time()
        self.loads += 1
        try:
            with anyio.move_on_after(limit_s) as scope:
                while victims:
                    await self._unload(member, victims[0])
                    self._unloading.pop((member, victims.pop(0))).set()
                if (unload := self._unloading.get((member, model))) is not None:
                    await unload.wait()
                await _run(member, LOAD, model)
            if scope.cancelled_caught:
                flight.error = HandlerTimeout(
                    f"{member.name}: loading the model {model!r} took longer than "
                    f"load_timeout_s={limit_s}"
                )
        except BaseException as error:
            if must_propagate(error, parking_of_this_loop()):
                flight.error = ReplicaDied(f"{member.name}: its backend has ended")
                raise
            flight.error = error
        finally:
            for victim in victims:
                self._unloading.pop((member, victim)).set()
            used.flight = None
            self.load_s += anyio.current_time() - began_at
            if flight.error is not None:
                self.failures += 1
                if member.models.get(model) is used:
                    del member.models[model]
                logger.warning(
                    "%s: the model %r was not loaded", member.name, model, exc_info=flight.error
                )
            flight.ended.set()
            self._pool.changed()

    async def _unload(self, member: PoolMember, model: str) -> None:
        self.unloads += 1
        if not self._code_unloads():
            return
        try:
            await _run(member, UNLOAD, model)
        except BaseException as error:
            if must_propagate(error, parking_of_this_loop()):
                raise
            logger.warning("%s: unload_model(%r) raised", member.name, model, exc_info=error)


async def wait_loaded(used: LoadedModel) -> None:
    flight: _Flight | None = used.flight
    if flight is not None:
        await flight.ended.wait()
        if flight.error is not None:
            raise own_copy(flight.error)


def model_states(member: PoolMember) -> dict[str, ModelState]:
    return {
        name: "loaded" if one.flight is None else "loading" for name, one in member.models.items()
    }


async def _run(member: PoolMember, method: str, model: str) -> None:
    options, now = RequestOptions(), anyio.current_time()
    options.metadata = {"model": model}
    request = request_of_nobody(model, now, State.RUNNING, options, Context())
    with setting(running_batch, Batch(0, DispatchReason.FULL, [request])):
        await member.replica.run(method, [model])
