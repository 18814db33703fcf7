"""Replicas on other machines: Ray places them, and they run as actors.

Ray provides the cluster: it places actors, starts them, and reports deaths. Batches go over Shoal's
own connections to the actor (`shoal.replicas.ray.actor`), as to a worker process. Ray does not
restart a dead actor or retry its work, since Shoal's supervisor does both, by the same rules for
all replicas. Ray's own restart was measured to take longer, and its retries know nothing of the
requests in a batch.

The death of an actor is noticed by its connections, which end at once. A call of the actor that
never returns, its lifeline, then says why. An actor that is frozen does not answer pings.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from shoal.errors import ReplicaNotStarted
from shoal.failures.hints import constructor_hint
from shoal.loops.event_loop import EventLoop
from shoal.loops.this_loop import parking_of_this_loop
from shoal.replicas.placements import RayOptions
from shoal.replicas.process.calls import Conversation
from shoal.replicas.process.conversing import ConversingReplica
from shoal.replicas.process.wire.start import StartMessage, pickled_code
from shoal.replicas.ray.actor import STOPPED
from shoal.replicas.ray.cluster import (
    draining_nodes,
    end_use,
    has_lost_node,
    join,
    lost_for_s,
    ray,
)
from shoal.replicas.ray.link import Link
from shoal.replicas.ray.placing import (
    ReplicaGroup,
    actor_options,
    asked_of_ray,
    free_resources,
    new_actor,
)
from shoal.replicas.remote.keep_alive import keep_alive

if TYPE_CHECKING:
    from shoal.replicas.code.instance import Description
    from shoal.replicas.contract import Blueprint

logger: Final = logging.getLogger("shoal.replicas")
# How long Ray may take to place an actor before the log says that it waits.
_PATIENCE_S: Final = 10.0
# How often it looks whether its node is being drained.
_LOOK_PERIOD_S: Final = 2.0
# How long the program may be without a Ray node before it fails its liveness check.
_LOST_S: Final = 60.0
# How long Ray may take to say what it has free.
_ROOM_S: Final = 2.0
# Ray notices a frozen node after 66 s by default, and then says so. An actor that does not answer
# for ten periods counts as dead. Its code may hold the GIL for nearly as long.
_PING_PERIOD_S: Final = 4.5


class RayReplica(ConversingReplica):
    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        self._link = Link(self._ending, blueprint.options.cancel_grace_s, self._ended)
        self._starting = anyio.CancelScope()
        self._group = ReplicaGroup()
        # The current stage of the start, for messages, and its limit.
        self._doing = ""
        self._limit_s = math.inf
        self._limited_by = ""

    def kill(self, reason: str) -> None:
        self._link.finish(f"was killed: {reason}")

    async def _start(self) -> Description:
        cause: BaseException | None = None
        try:
            with self._starting:
                return await self._begin()
        except Exception as error:
            cause = error.with_traceback(None)  # its frames would keep the link alive
        if self._ending.begun.is_set():
            why, cause = str(self._ending), self._ending.cause
        elif cause is not None:
            why = f"could not be started: {cause!r}{constructor_hint(cause)}"
        else:
            why = f"was not ready within {self._limit_s:g} s ({self._limited_by}): {self._doing}"
            if self._is_unplaced:
                why += await self._room()
        try:
            is_lost = lost_for_s() > _LOST_S
            raise ReplicaNotStarted(f"{self.tag} {why}", needs_restart=is_lost) from cause
        finally:
            del cause  # its traceback holds this frame

    async def _begin(self) -> Description:
        blueprint = self.blueprint
        start_timeout_s = blueprint.options.start_timeout_s
        self._limit("Ray could not be joined", "start_timeout_s", start_timeout_s)
        await anyio.to_thread.run_sync(join, self._link, abandon_on_cancel=True)
        asked = asked_of_ray(actor_options(blueprint))
        doing = f"Ray has not placed its actor, which asks for {asked}"
        place_timeout_s = RayOptions(**blueprint.placement_options).place_timeout_s
        self._limit(doing, "place_timeout_s", place_timeout_s)
        self._run_beside(self._watch_wait)
        soon = EventLoop.here().soon
        # If this is abandoned, the link kills the actor. Ray would not, as it has calls.
        make = partial(new_actor, blueprint, self._group, partial(self._link.own, soon=soon))
        actor = await anyio.to_thread.run_sync(make, abandon_on_cancel=True)
        node = await self._link.attach(actor, soon)
        self._run_beside(self._watch_nodes, node)
        self._limit("its code was still starting", "start_timeout_s", start_timeout_s)
        # Like all that Ray carries, classes of the main script are sent with their code.
        dumps = ray.cloudpickle.dumps
        grace_s = blueprint.options.cancel_grace_s
        conversation = self._converse(
            Conversation(self, self.tag, self._link.sockets, grace_s, dumps=dumps)
        )
        code = pickled_code(blueprint.definition, blueprint.user_config, dumps)
        loop = parking_of_this_loop().name
        start_message = StartMessage(*blueprint.identity, loop, None, None, None, code)
        description = await self._started(conversation, start_message)
        self._run_beside(keep_alive, conversation.control, self._has_frozen, _PING_PERIOD_S)
        return description

    @property
    def _is_unplaced(self) -> bool:
        return self._limited_by == "place_timeout_s"

    def _limit(self, doing: str, option: str, limit_s: float | None) -> None:
        self._doing, self._limited_by = doing, option
        self._limit_s = math.inf if limit_s is None else limit_s
        self._starting.deadline = anyio.current_time() + self._limit_s

    async def _watch_wait(self) -> None:
        """Logs once that the cluster has no place for it yet; ends if that can't change."""
        has_said = False
        while True:
            await anyio.sleep(_PATIENCE_S)
            if not self._is_unplaced:
                return
            if not ray.is_initialized():  # Ray does not say so, and a question would connect again
                self._link.finish("was lost: the program has called ray.shutdown()")
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

    async def _read_control(self, conversation: Conversation) -> None:
        await super()._read_control(conversation)
        await self._link.lose()

    def _has_frozen(self, why: str) -> None:
        self._link.finish(f"died: its process did not answer: {why}")

    async def _close(self) -> None:
        link = self._link
        await self._close_code(link.ended)
        if link.report is not None and link.report != STOPPED:
            why = link.report.removeprefix(f"{STOPPED}:")
            logger.error("%s: close() failed: %s", self.tag, why)

    async def _leave(self) -> None:
        self._link.finish()
        await self._link.wait_gone()

    async def _release(self) -> None:
        self._link.close()
        if self._group.end():
            await self._remove_group()
        end_use(self._link)

    async def _remove_group(self) -> None:
        # The next replica may need its resources.
        with anyio.move_on_after(self.blueprint.options.cancel_grace_s, shield=True):
            await anyio.to_thread.run_sync(self._group.remove, abandon_on_cancel=True)

    def _ended(self) -> None:
        """Ends the start and all work, because the actor has died."""
        self._starting.cancel()
        if self._conversation is not None:
            self._conversation.end()
