"""Replicas on other machines: Ray places them, and they run as actors.

Ray provides the cluster: it places actors, transfers work and results, and reports deaths. It is
used for nothing else. Ray does not restart a dead actor or retry its work, since Shoal's supervisor
does both, by the same rules for all replicas. Ray's own restart was measured to take longer, and
its retries know nothing of the requests in a batch.

The death of an idle actor is noticed by its lifeline, a call that never returns. Nothing is polled.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from shoal.batching.current import running_batch
from shoal.errors import ReplicaDied, ReplicaNotStarted
from shoal.replicas.code.definition import split_import_path
from shoal.replicas.contract import Replica
from shoal.replicas.process.wire.batch import batch_as_data
from shoal.replicas.process.wire.errors import slots_as_exceptions
from shoal.replicas.ray.actor import HOOKS
from shoal.replicas.ray.cluster import actor_options, join, new_actor, put_if_large
from shoal.replicas.ray.link import Link
from shoal.replicas.threads import loop_of_caller

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import TaskStatus

    from shoal.replicas.code.description import Description
    from shoal.replicas.contract import Blueprint

logger: Final = logging.getLogger("shoal.replicas")


class RayReplica(Replica):
    """A replica in a Ray actor.

    Args:
        blueprint: The specification of the replica.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        self._link = Link(self.tag, blueprint.options.cancel_grace_s, self._leave)
        self._is_ready = False
        self._was_stopped = False
        self._to_end = anyio.Event()
        self._starting = anyio.CancelScope()
        self._doing = ""  # the current stage of the start, for the timeout error

    async def serve(self, *, task_status: TaskStatus[Description]) -> None:
        link = self._link
        try:
            description = await self._start()
            self._is_ready = True
            task_status.started(description)
            await self._to_end.wait()
            if link.end is None:
                await self._close()
            if link.end is not None:
                raise link.died()
        finally:
            link.finish("was stopped" if self._was_stopped else "was cancelled")
            await link.wait_gone()

    def stop(self) -> None:
        self._was_stopped = True
        self._leave()

    def kill(self, reason: str) -> None:
        self._link.finish(f"was killed: {reason}")

    async def run(self, method: str, items: list[Any]) -> Any:
        results = await self._link.run(method, await self._packed(items))
        return slots_as_exceptions(results, self.tag)

    async def run_stream(self, method: str, items: list[Any]) -> AsyncGenerator[Any, None]:
        async with aclosing(self._link.steps(method, await self._packed(items))) as steps:
            async for step in steps:
                yield slots_as_exceptions(step, self.tag)

    async def reconfigure(self, user_config: Any) -> None:
        self._check_ready()
        await self._link.ask("reconfigure", user_config, group=HOOKS)

    async def check_health(self) -> None:
        self._check_ready()
        if await self._link.ask("health", group=HOOKS) is False:
            raise RuntimeError(f"health() of {self.tag} returned False")

    async def _start(self) -> Description:
        """Creates the actor, which starts the code.

        Raises:
            ReplicaNotStarted: See `Replica.serve`.
        """
        timeout_s = self.blueprint.options.start_timeout_s
        if timeout_s is not None:
            self._starting.deadline = anyio.current_time() + timeout_s
        cause: BaseException | None = None
        try:
            with self._starting:
                return await self._begin()
        except Exception as error:
            cause = error
        if self._link.end is not None:
            why, cause = self._link.end
        elif self._was_stopped:
            why = "was stopped"
        elif cause is not None:
            why = f"could not be started: {cause!r}"
        else:
            why = f"was not ready within {timeout_s} s: {self._doing}"
        try:
            raise ReplicaNotStarted(f"{self.tag} {why}") from cause
        finally:
            del cause  # its traceback holds this frame

    async def _begin(self) -> Description:
        blueprint = self.blueprint
        loop, soon = loop_of_caller()
        self._doing = "Ray could not be joined"
        await anyio.to_thread.run_sync(join, abandon_on_cancel=True)
        asked = actor_options(blueprint)
        self._doing = f"Ray has not placed its actor, which asks for {asked}"
        make = partial(new_actor, blueprint, loop)
        # If this is abandoned, nothing refers to the handle, and Ray ends such an actor.
        actor = await anyio.to_thread.run_sync(make, abandon_on_cancel=True)
        await self._link.attach(actor, soon)
        self._doing = "its code was still starting"
        definition = blueprint.definition
        data = await self._link.ask("begin", definition, blueprint.user_config)
        path = definition.import_path
        description: Description = data.as_description(path and split_import_path(path)[0])
        return description

    async def _close(self) -> None:
        try:
            await self._link.ask("close", group=HOOKS)
        except ReplicaDied:
            pass  # `serve` checks
        except Exception:
            logger.exception("%s: close() failed", self.tag)

    async def _packed(self, items: list[Any]) -> Any:
        """Returns the load with which the actor runs a method."""
        self._check_ready()
        batch = running_batch.get(None)
        data = None if batch is None else batch_as_data(batch, anyio.current_time())
        load = await put_if_large((items, data), items, self.tag)
        self._check_ready()
        return load

    def _leave(self) -> None:
        """Ends the wait in `serve`."""
        self._to_end.set()
        self._starting.cancel()

    def _check_ready(self) -> None:
        if not self._is_ready or self._link.end is not None:
            raise self._link.died()
