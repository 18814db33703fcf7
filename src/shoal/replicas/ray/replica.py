"""Replicas on other machines: Ray places them, and they run as actors.

Ray provides the cluster: it places actors, transfers work and results, and reports deaths. It is
used for nothing else. Ray does not restart a dead actor or retry its work, since Shoal's supervisor
does both, by the same rules for all replicas. Ray's own restart was measured to take longer, and
its retries know nothing of the requests in a batch.

The death of an idle actor is noticed by its lifeline, a call that never returns. Nothing is polled.

The actor's code may call endpoints, which only this process can reach, and may take open batches.
Both are done as with a worker process, with the same frames (`channel`).
"""

from __future__ import annotations

import logging
import math
from contextlib import aclosing, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
import anyio.to_thread

from shoal.batching.current import running_batch
from shoal.errors import ReplicaDied, ReplicaNotStarted
from shoal.failures.exceptions import ungrouped
from shoal.failures.hints import constructor_hint
from shoal.loops.event_loop import EventLoop
from shoal.loops.this_loop import parking_of_this_loop
from shoal.replicas.code.definition import split_import_path
from shoal.replicas.contract import Replica
from shoal.replicas.placements import RayOptions
from shoal.replicas.process.wire.batch import batch_as_data
from shoal.replicas.process.wire.errors import slots_as_exceptions
from shoal.replicas.process.wire.start import received
from shoal.replicas.ray.actor import HOOKS
from shoal.replicas.ray.channel import ActorChannel, conversation_with, converse
from shoal.replicas.ray.cluster import (
    draining_nodes,
    end_use,
    has_lost_node,
    join,
    lost_for_s,
    put_if_large,
)
from shoal.replicas.ray.link import Link
from shoal.replicas.ray.placing import (
    ReplicaGroup,
    actor_options,
    asked_of_ray,
    free_resources,
    new_actor,
)
from shoal.replicas.scopes import Beside

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import TaskGroup, TaskStatus

    from shoal.batching.handlers.binding import Binding
    from shoal.batching.open_batch import OpenBatch
    from shoal.replicas.code.instance import Description
    from shoal.replicas.contract import Blueprint
    from shoal.replicas.process.calls import Conversation

logger: Final = logging.getLogger("shoal.replicas")
# How long Ray may take to place an actor before the log says that it waits.
_PATIENCE_S: Final = 10.0
# How often it looks whether its node is being drained.
_LOOK_PERIOD_S: Final = 2.0
# How long the program may be without a Ray node before it fails its liveness check.
_LOST_S: Final = 60.0
# How long Ray may take to say what it has free.
_ROOM_S: Final = 2.0


class RayReplica(Replica):
    takes_open_batches: ClassVar = True

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        self._link = Link(self.tag, blueprint.options.cancel_grace_s, self._leave)
        self._calls = count()
        self._is_ready = False
        self._was_stopped = False
        self._to_end = anyio.Event()
        self._starting = anyio.CancelScope()
        self._conversation: Conversation | None = None
        self._description: Description | None = None
        self._beside = Beside()
        self._group = ReplicaGroup()
        # The current stage of the start, for messages, its limit, and the resources that Ray has
        # not given yet.
        self._doing = ""
        self._limit_s = math.inf
        self._limited_by = ""
        self._pending: dict[str, Any] | None = None

    async def serve(self, *, task_status: TaskStatus[Description]) -> None:
        link = self._link
        try:
            async with ungrouped() as tasks:
                try:
                    self._description = await self._start(tasks)
                    self._is_ready = True
                    task_status.started(self._description)
                    await self._to_end.wait()
                    if link.end is None:
                        await self._close()
                    if link.end is not None:
                        raise link.died()
                finally:
                    self._beside.end()
        finally:
            link.finish("was stopped" if self._was_stopped else "was cancelled")
            if self._conversation is not None:
                self._conversation.close()
                self._conversation = None
            await link.wait_gone()
            if self._group.end():
                await self._remove_group()
            end_use(link)

    def stop(self) -> None:
        self._was_stopped = True
        self._leave()

    def kill(self, reason: str) -> None:
        self._link.finish(f"was killed: {reason}")

    async def run(self, method: str, items: list[Any]) -> Any:
        results = await self._link.run(*await self._packed(method, items))
        return slots_as_exceptions(results, self.tag)

    async def run_stream(self, method: str, items: list[Any]) -> AsyncGenerator[Any, None]:
        async with aclosing(self._link.steps(*await self._packed(method, items))) as steps:
            async for step in steps:
                yield slots_as_exceptions(step, self.tag)

    async def run_open(self, method: str, batch: OpenBatch[Any, Any]) -> None:
        self._check_ready()
        assert self._conversation is not None
        await self._conversation.ask_open(method, batch)

    def open_binding(self, method: str) -> Binding:
        assert self._description is not None
        return self._description.open_binding(method, self.tag)

    def drain(self) -> None:
        if self._conversation is not None:
            self._conversation.drain()

    async def reconfigure(self, user_config: Any) -> None:
        self._check_ready()
        await self._link.ask("reconfigure", user_config, group=HOOKS)

    async def check_health(self) -> None:
        self._check_ready()
        if await self._link.ask("health", group=HOOKS) is False:
            raise RuntimeError(f"health() of {self.tag} returned False")

    async def _start(self, tasks: TaskGroup) -> Description:
        cause: BaseException | None = None
        try:
            with self._starting:
                return await self._begin(tasks)
        except Exception as error:
            cause = error.with_traceback(None)  # its frames would keep the link alive
        if self._link.end is not None:
            why, cause = self._link.end
        elif self._was_stopped:
            why = "was stopped"
        elif cause is not None:
            why = f"could not be started: {cause!r}{constructor_hint(cause)}"
        else:
            why = f"was not ready within {self._limit_s:g} s ({self._limited_by}): {self._doing}"
            if self._pending is not None:
                why += await self._room()
        try:
            is_lost = lost_for_s() > _LOST_S
            raise ReplicaNotStarted(f"{self.tag} {why}", needs_restart=is_lost) from cause
        finally:
            del cause  # its traceback holds this frame

    async def _begin(self, tasks: TaskGroup) -> Description:
        blueprint = self.blueprint
        self._doing = "Ray could not be joined"
        self._limit("start_timeout_s", blueprint.options.start_timeout_s)
        await anyio.to_thread.run_sync(join, self._link, abandon_on_cancel=True)
        asked = asked_of_ray(actor_options(blueprint))
        self._doing = f"Ray has not placed its actor, which asks for {asked}"
        self._pending = asked
        place_timeout_s = RayOptions(**blueprint.placement_options).place_timeout_s
        self._limit("place_timeout_s", place_timeout_s)
        make = partial(new_actor, blueprint, parking_of_this_loop().name, self._group)
        tasks.start_soon(self._beside.run, self._watch_wait)
        # If this is abandoned, nothing refers to the handle, and Ray ends such an actor.
        actor = await anyio.to_thread.run_sync(make, abandon_on_cancel=True)
        node = await self._link.attach(actor, EventLoop.here().soon)
        self._pending = None
        tasks.start_soon(self._beside.run, self._link.watch)
        tasks.start_soon(self._beside.run, self._watch_nodes, node)
        self._doing = "its code was still starting"
        self._limit("start_timeout_s", blueprint.options.start_timeout_s)
        channel = ActorChannel(self._link, self.tag)
        grace_s = blueprint.options.cancel_grace_s
        self._conversation = conversation = conversation_with(channel, self.tag, grace_s)
        tasks.start_soon(self._beside.run, converse, channel, conversation, self.on_call_out)
        definition = blueprint.definition
        description = await self._link.ask("begin", definition, blueprint.user_config)
        path = definition.import_path
        return received(description, path and split_import_path(path)[0])

    def _limit(self, option: str, limit_s: float | None) -> None:
        self._limited_by = option
        self._limit_s = math.inf if limit_s is None else limit_s
        self._starting.deadline = anyio.current_time() + self._limit_s

    async def _watch_wait(self) -> None:
        """Logs once that the cluster has no place for it yet; ends if that can't change."""
        has_said = False
        while True:
            await anyio.sleep(_PATIENCE_S)
            if self._pending is None:
                return
            if not has_said:
                has_said = True
                room = await self._room()
                logger.warning("%s waits: %s%s", self.tag, self._doing, room)
            with suppress(OSError):  # the head node does not answer
                if await anyio.to_thread.run_sync(has_lost_node, abandon_on_cancel=True):
                    self._link.finish("was lost: the Ray node of this program has died")

    async def _watch_nodes(self, own: str) -> None:
        """Has the replica replaced when Ray drains one of its nodes, which will then stop."""
        nodes = {own}
        has_all = False
        while True:
            await anyio.sleep(_LOOK_PERIOD_S)
            if not has_all:
                with suppress(Exception):  # for example, the head node does not answer
                    nodes |= await anyio.to_thread.run_sync(
                        self._group.nodes, abandon_on_cancel=True
                    )
                    has_all = True
            draining = await anyio.to_thread.run_sync(draining_nodes, abandon_on_cancel=True)
            leaving = nodes & draining.keys()
            if leaving and self.on_leaving is not None:
                self.on_leaving(f"Ray is draining its node {min(leaving)}")

    async def _room(self) -> str:
        free: str | None = None
        with anyio.move_on_after(_ROOM_S), suppress(Exception):
            free = await anyio.to_thread.run_sync(free_resources, abandon_on_cancel=True)
        return "" if free is None else f"; of the cluster's resources, {free}"

    async def _close(self) -> None:
        try:
            await self._link.ask("close", group=HOOKS)
        except ReplicaDied:
            pass  # `serve` checks
        except Exception:
            logger.exception("%s: close() failed", self.tag)

    async def _remove_group(self) -> None:
        # The next replica may need its resources.
        with anyio.move_on_after(self.blueprint.options.cancel_grace_s, shield=True):
            await anyio.to_thread.run_sync(self._group.remove, abandon_on_cancel=True)

    async def _packed(self, method: str, items: list[Any]) -> tuple[int, Any]:
        self._check_ready()
        call = next(self._calls)
        batch = running_batch.get(None)
        data = None if batch is None else batch_as_data(batch, anyio.current_time())
        load = await put_if_large((call, method, items, data), items, self.tag)
        self._check_ready()
        return call, load

    def _leave(self) -> None:
        self._to_end.set()
        self._starting.cancel()

    def _check_ready(self) -> None:
        if not self._is_ready or self._link.end is not None:
            raise self._link.died()
