"""The front ends of a server: starts them, replaces those that end, and ends them with the server.

To the server they are one of its listeners: the public one. The difference is that clients are
accepted by other processes, from the same socket. Its backlog belongs to no process, so a client
that waits in it is not lost with one of them.

What stock servers do wrong here: Hypercorn's ends all of them when one is killed, and cuts off the
drain of the others as soon as the first has ended.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from shoal.core.replicas.restarts import Restarts
from shoal.front_ends.connections import FrontEndConnections
from shoal.front_ends.remote_front_end import RemoteFrontEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.server.connection_limit import LimitedListener
    from shoal.server.shared import Shared

_log: Final = logging.getLogger("shoal.server")

# How long a front end may take to close its connections by force.
_ENDS_WITHIN_S: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class FrontEndOptions:
    """How the front ends of a server are started.

    Attributes:
        count: How many there are.
        command: What starts one; file descriptors are appended.
        start: The content of its first frame, for that program.
    """

    count: int
    command: Sequence[str]
    start: bytes


class FrontEnds:
    """The front ends at the public address.

    Args:
        options: How they are started.
        bound: The socket that they accept clients from.
        shared: What their requests share.
        started: Called with the URL once clients can connect.
        url: The URL.
        failed: Called if none of them can serve any more, or one could not start before the server
            has served, unless it was killed.

    Attributes:
        bound, shared, started, url: As above.
        connections: The connections of all of them.
        failure: Why none can serve any more; None as long as one may.
        ended: Set when all have ended, after a drain.
    """

    def __init__(
        self,
        options: FrontEndOptions,
        bound: LimitedListener,
        shared: Shared,
        started: Callable[[str], object],
        url: str,
        failed: Callable[[], object],
    ) -> None:
        self.bound = bound
        self.shared = shared
        self.started = started
        self.url = url
        self.connections = FrontEndConnections(shared.options.max_connections)
        self.failure: str | None = None
        self.ended = anyio.Event()
        self._options = options
        self._failed = failed
        self._restarts = Restarts()
        self._front_ends: set[RemoteFrontEnd] = set()
        self._may_serve = False
        self._drains = anyio.Event()
        self._is_up = anyio.Event()
        self._is_aborted = anyio.Event()

    async def run(self) -> None:
        """Keeps as many front ends as wanted, until the server drains and they have ended.

        Cancellation: kills them.
        """
        async with anyio.create_task_group() as tasks:
            kills = anyio.CancelScope()
            tasks.start_soon(self._kill_late, kills)
            async with anyio.create_task_group() as keepers:
                for number in range(1, self._options.count + 1):
                    keepers.start_soon(self._keep_one, number)
            kills.cancel()
        self.ended.set()

    async def _kill_late(self, scope: anyio.CancelScope) -> None:
        with scope:
            await self._is_aborted.wait()
            await anyio.sleep(_ENDS_WITHIN_S)
            for front_end in self._front_ends:
                front_end.kill()

    async def open(self) -> None:
        """Waits until all front ends can serve, and has them accept clients.

        Raises:
            OSError: Another process listens at the address.
        """
        await self._is_up.wait()
        if self._ends():
            return
        self.bound.listen()
        self._may_serve = True
        for front_end in self._front_ends:
            front_end.serve()

    async def accept(self) -> None:
        """Waits: the front ends accept."""
        await anyio.sleep_forever()

    def announce_end(self) -> None:
        """Has the front ends drain."""
        self._drains.set()
        # Before they close theirs: a client that connects after that would wait for nobody.
        self.bound.close()
        self.shared.drain()
        for front_end in self._front_ends:
            front_end.drain()

    def drain(self) -> None:
        """Does nothing: each front end closes its own socket."""

    def abort(self) -> None:
        """Has the front ends close all connections by force; kills those that do not end soon."""
        for front_end in tuple(self._front_ends):
            front_end.abort()
        self._is_aborted.set()

    async def _keep_one(self, number: int) -> None:
        while not self._ends():
            began_at = anyio.current_time()
            was_ready = was_killed = False
            try:
                front_end = RemoteFrontEnd(
                    number,
                    self.shared,
                    self._options.command,
                    self.bound.fileno,
                    self._options.start,
                )
            except OSError as error:
                how = f"can't be started: {error.strerror or error}"
            else:
                await self._serve_by(front_end)
                if self._ends():
                    return
                how, was_ready = front_end.how_it_ended(), front_end.was_ready
                if not was_ready:
                    how += " before it could serve"
                was_killed = front_end.was_killed
            await self._deal_with(how, began_at, was_ready=was_ready, was_killed=was_killed)

    def _ends(self) -> bool:
        """Returns whether no front end is started any more."""
        return self._drains.is_set() or self.failure is not None

    async def _serve_by(self, front_end: RemoteFrontEnd) -> None:
        self._front_ends.add(front_end)
        self.connections.began(front_end)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._welcome, front_end)
                await front_end.run()
        finally:
            self._front_ends.discard(front_end)
            self.connections.ended(front_end)

    async def _welcome(self, front_end: RemoteFrontEnd) -> None:
        await front_end.is_ready.wait()
        if not front_end.was_ready:
            return
        self._restarts.started(anyio.current_time())
        if self._may_serve:
            front_end.serve()
        elif sum(one.was_ready for one in self._front_ends) == self._options.count:
            self._is_up.set()

    async def _deal_with(
        self, how: str, began_at: float, *, was_ready: bool, was_killed: bool
    ) -> None:
        """Handles that a front end has ended by itself; returns when the next may be started."""
        now = anyio.current_time()
        point = random.random()  # noqa: S311 - no secret
        if was_ready:
            next_at = self._restarts.died(now, point)
        else:
            next_at = self._restarts.failed(now, point, began_at=began_at)
        if self._may_serve:
            is_last = not any(one.was_ready for one in self._front_ends)
            ends = self._restarts.is_open and is_last
        else:  # one that could not start has said why, and another one could not either
            ends = self._restarts.is_open or not (was_ready or was_killed)
        if ends:
            self.failure = f"a worker {how}"
            self._failed()
            return
        _log.error("a worker %s; another one is started in its place", how)
        with anyio.CancelScope(deadline=next_at):
            await self._drains.wait()
