"""The link of a replica to its actor: the connections to it, and its end.

Ray says how an actor has ended, but late if a node was lost: then the end of a connection is the
first sign. Ray reports with callbacks in a thread of its own. Such a callback may only schedule a
function in the event loop: if it waited for the loop, it would block all other reports.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.replicas.ray.actor import STOPPED
from shoal.replicas.ray.cluster import death_of, ray
from shoal.replicas.remote.sockets import allow_pauses, connect

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from shoal.core.addresses import ModelServerAddress
    from shoal.replicas.ending import Ending
    from shoal.replicas.ray.placing import NewActor

# How long Ray may take to say why a connection has ended.
_REASON_S: Final = 0.5

_DISCONNECTED: Final = "was lost: its connection was closed"


class Link:
    def __init__(self, ending: Ending, cancel_grace_s: float, on_end: Callable[[], object]) -> None:
        # The actor's own report of its end after it was asked to close its code.
        self.report: str | None = None
        self.ended = anyio.Event()
        self.sockets: list[Any] = []
        self._ending = ending
        self._on_end = on_end
        self._grace_s = cancel_grace_s
        self._actor: Any = None
        self._is_gone = anyio.Event()

    def own(self, actor: NewActor, soon: Callable[..., object]) -> None:
        """Takes a new actor, in the thread that has made it, which may be abandoned by then."""
        self._actor = actor.handle
        actor.lifeline.add_done_callback(partial(soon, self._has_gone))
        actor.ending.add_done_callback(partial(soon, self._is_to_end))
        if self.ended.is_set():
            self._kill()

    async def attach(self, actor: NewActor, soon: Callable[..., object]) -> str:
        """Waits until Ray has placed an actor, connects to it, and returns the id of its node."""
        placed = anyio.Event()
        actor.ready.add_done_callback(lambda _: soon(placed.set))
        await placed.wait()
        address: ModelServerAddress | None = None
        try:
            node, address = actor.ready.result()
            for _ in range(2):
                self.sockets.append(await connect(address, actor.token))
            allow_pauses(self.sockets[0])
        except Exception as error:
            if address is None:
                self.finish(f"died: {death_of(error) or error!r}", error)
            else:
                self.finish(f"can't be reached at {address}: {error}", error)
            raise self._ending.death() from None
        return node

    async def lose(self) -> None:
        """Ends the link, since a connection has ended; Ray may say the reason in time."""
        with anyio.move_on_after(_REASON_S):
            await self.ended.wait()
        self.finish(_DISCONNECTED)

    def finish(self, how: str | None = None, cause: BaseException | None = None) -> None:
        """Ends the link, and kills the actor. Idempotent. `how` is that of a death, if any."""
        if self.ended.is_set():
            return
        if how is not None:
            self._ending.die(how, cause)
        self._kill()
        self.ended.set()
        self._on_end()

    async def wait_gone(self) -> None:
        """Waits until the actor is gone, at most for the grace period, even when cancelled."""
        if self._actor is not None:
            # The actor holds resources of its node, which the next actor may need.
            self._kill()  # the link may have ended before the actor existed
            with anyio.move_on_after(self._grace_s, shield=True):
                await self._is_gone.wait()

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()

    def _is_to_end(self, report: Future[str]) -> None:
        if report.exception() is not None:
            return
        how = report.result()
        if self._ending.was_stopped:
            self.report = how
            self.finish()
        else:  # code that has lost its connection is closed as well
            self.finish(_DISCONNECTED if how.startswith(STOPPED) else how)

    def _has_gone(self, lifeline: Future[None]) -> None:
        error = lifeline.exception()
        self._is_gone.set()
        said = None if error is None else death_of(error)
        self.finish(f"died: {said or repr(error)}", error)

    def _kill(self) -> None:
        # After `ray.shutdown` there are no actors, and `kill` would connect again.
        if self._actor is not None and ray.is_initialized():
            with suppress(Exception):  # the program may have joined another cluster
                ray.kill(self._actor)
