"""The front ends of a server: starts them, replaces failed ones, and ends them with the server.

To the server they are its public listener, but other processes accept the clients from its socket.
The socket's backlog belongs to no process, so a client that waits in it survives the end of one.

Hypercorn's workers are no model: when one is killed, all end, and as soon as the first has drained,
the others are cut off.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from shoal.asgi.extensions import ConnectionTotals
from shoal.core.replicas.life import Restarts
from shoal.front_ends.remote_front_end import RemoteFrontEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.server.connection_limit import LimitedListener
    from shoal.server.shared import Shared


_log: Final = logging.getLogger("shoal.server")

# How long a front end may take to close its connections by force.
_ENDS_WITHIN_S: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class FrontEndOptions:
    count: int
    command: Sequence[str]  # file descriptors are appended
    start: bytes  # the content of the first frame


class FrontEnds:
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
        # Called if no front end can serve any more, or one fails to start before the server has
        # served, unless it was killed.
        self._failed = failed
        self._restarts = Restarts()
        self._front_ends: set[RemoteFrontEnd] = set()
        self._may_serve = False
        self._draining = anyio.Event()
        self._is_up = anyio.Event()
        self._is_aborted = anyio.Event()

    async def run(self) -> None:
        """Keeps the front ends running until the server drains; kills them if it is cancelled."""
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
        """Waits until all can serve, and lets them accept; raises `OSError` if it can't listen."""
        await self._is_up.wait()
        if self._is_ending():
            return
        self.bound.listen()
        self._may_serve = True
        for front_end in self._front_ends:
            front_end.serve()

    async def accept(self) -> None:
        await anyio.sleep_forever()

    def announce_end(self) -> None:
        self._draining.set()
        # Before they close theirs: otherwise clients could connect to a socket that no one accepts
        # from.
        self.bound.close()
        self.shared.drain()
        for front_end in self._front_ends:
            front_end.drain()

    def drain(self) -> None:
        """Does nothing: each front end closes its own socket."""

    def abort(self) -> None:
        """Lets them close all connections by force; kills those that do not end soon."""
        for front_end in tuple(self._front_ends):
            front_end.abort()
        self._is_aborted.set()

    async def _keep_one(self, number: int) -> None:
        while not self._is_ending():
            began_at = anyio.current_time()
            was_ready = was_killed = False
            try:
                front_end = RemoteFrontEnd(
                    number,
                    self.shared,
                    self._options.command,
                    self.bound.bound_socket.socket.fileno(),
                    self._options.start,
                )
            except OSError as error:
                how = f"can't be started: {error.strerror or error}"
            else:
                await self._serve_by(front_end)
                if self._is_ending():
                    return
                how, was_ready = front_end.how_it_ended(), front_end.was_ready
                if not was_ready:
                    how += " before it could serve"
                was_killed = front_end.was_killed
            await self._handle_end(how, began_at, was_ready=was_ready, was_killed=was_killed)

    def _is_ending(self) -> bool:
        return self._draining.is_set() or self.failure is not None

    async def _serve_by(self, front_end: RemoteFrontEnd) -> None:
        self._front_ends.add(front_end)
        self.connections.began(front_end)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._start_serving, front_end)
                await front_end.run()
        finally:
            self._front_ends.discard(front_end)
            self.connections.ended(front_end)

    async def _start_serving(self, front_end: RemoteFrontEnd) -> None:
        await front_end.is_ready.wait()
        if not front_end.was_ready:
            return
        self._restarts.started(anyio.current_time())
        if self._may_serve:
            front_end.serve()
        elif sum(one.was_ready for one in self._front_ends) == self._options.count:
            self._is_up.set()

    async def _handle_end(
        self, how: str, began_at: float, *, was_ready: bool, was_killed: bool
    ) -> None:
        """Handles the end of a front end; returns when the next may be started."""
        now = anyio.current_time()
        point = random.random()  # noqa: S311 - no secret is drawn
        if was_ready:
            next_at = self._restarts.died(now, point)
        else:
            next_at = self._restarts.failed(now, point, began_at=began_at)
        if self._may_serve:
            is_last = not any(one.was_ready for one in self._front_ends)
            ends = self._restarts.is_open and is_last
        else:  # it has printed why it could not start, and another one would fail as well
            ends = self._restarts.is_open or not (was_ready or was_killed)
        if ends:
            self.failure = f"a worker {how}"
            self._failed()
            return
        _log.error("a worker %s; another one is started in its place", how)
        with anyio.CancelScope(deadline=next_at):
            await self._draining.wait()


# How long to wait for the counts: a process may be stopped. Then its last counts are used.
_WAIT_S: Final = 0.5


class FrontEndConnections:
    """Counts the connections of all front ends, including those that have ended."""

    # Only the process that has a connection can read its byte counts from the kernel. Therefore the
    # front ends are asked when the metrics are collected; reporting each change would cost more.

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: set[RemoteFrontEnd] = set()
        self._ended = ConnectionTotals(0, 0, 0, None, None)

    def began(self, front_end: RemoteFrontEnd) -> None:
        self._running.add(front_end)

    def ended(self, front_end: RemoteFrontEnd) -> None:
        """Keeps the last counts of a front end, so that no count ever falls. Idempotent."""
        if front_end in self._running:
            self._running.discard(front_end)
            last = front_end.connections
            self._ended = _sum(self._ended, last._replace(open=0))

    async def refresh(self) -> None:
        """Asks all front ends, and waits a moment for those that can serve."""
        with anyio.move_on_after(_WAIT_S):
            for reply in [one.ask_connections() for one in self._running if one.was_ready]:
                await reply.wait()

    def pids(self) -> Mapping[int, int]:
        return {one.number: one.pid for one in self._running}

    def totals(self) -> ConnectionTotals:
        totals = self._ended
        for one in self._running:
            totals = _sum(totals, one.connections)
        return totals._replace(limit=self._limit)


def _sum(one: ConnectionTotals, other: ConnectionTotals) -> ConnectionTotals:
    return ConnectionTotals(
        one.limit + other.limit,
        one.open + other.open,
        one.accepted + other.accepted,
        _sum_if_known(one.received, other.received),
        _sum_if_known(one.sent, other.sent),
    )


def _sum_if_known(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)
