"""The front ends of a server: starts them, replaces failed ones, and ends them with the server.

To the server they are its public listener, but other processes accept the clients from its socket.
The socket's backlog belongs to no process, so a client that waits in it survives the end of one.

Hypercorn's workers are no model: when one is killed, all end, and as soon as the first has drained,
the others are cut off.
"""

from __future__ import annotations

import logging
import math
import os
import random
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from pickle import dumps
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import anyio

from shoal.asgi.extensions import ConnectionTotals, CountedConnections
from shoal.asgi.http_options import HttpOptions, ServerKeywords
from shoal.core.replicas.life import Restarts
from shoal.front_ends.remote_call import RemoteCall, RemoteCalls
from shoal.front_ends.wire import MEMORY, Channel, Head, PassedMessage
from shoal.replicas.process.wire.frames import PROTOCOL, FrameKind, FrameReader, encoded, send
from shoal.replicas.process.wire.shared_memory import SharedMemory, new_memory
from shoal.replicas.process.worker import wait_ended
from shoal.server.run import FrontEndListener

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.server.run import StartFrontEnds
    from shoal.server.shared import Shared


_log: Final = logging.getLogger("shoal.server")
_SOCKET_BUFFER: Final = 2**20

# How often a process must show that it is alive.
_ASKED_EVERY_S: Final = 2.0
_LOOKS: Final = 10
_LOOKS_AT_START: Final = 120
# How often, and how long, to wait for the reply. A single long wait would be wrong: if this event
# loop is held, it ends before the loop has read the reply.
_LOOK_S: Final = 0.5


async def _is_set_within(event: anyio.Event, looks: int) -> bool:
    for _ in range(looks):
        with anyio.move_on_after(_LOOK_S):
            await event.wait()
            return True
    return False


class RemoteFrontEnd:
    """A front end, which the server treats like a connection; raises `OSError`."""

    def __init__(
        self,
        number: int,
        shared: Shared,
        command: Sequence[str],
        listening: int,
        start: bytes,
        on_ready: Callable[[RemoteFrontEnd], object],
    ) -> None:
        self.number = number
        self._shared = shared
        self._on_ready = on_ready
        self.was_ready = False  # it could serve
        self.connections = ConnectionTotals(0, 0, 0, None, None)
        # Set once it shows that it is alive: first when it can serve, then when it sends counts.
        self._asked: anyio.Event | None = anyio.Event()
        self._is_draining = False
        self._heads: dict[int, Head] = {}
        ours, theirs = socket.socketpair()
        memory = new_memory(MEMORY)
        try:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
            passed = [listening, theirs.fileno(), *([] if memory is None else [memory])]
            regions = SharedMemory(memory, MEMORY)
            send(ours, encoded(FrameKind.START, 0, [start]))
            self._process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - ours
                [*command, *map(str, (PROTOCOL, *passed))],
                stdin=subprocess.DEVNULL,
                pass_fds=passed,
                process_group=0,  # Ctrl-C is for this process
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            if memory is not None:
                os.close(memory)
        self.pid = self._process.pid
        self._channel = Channel(
            ours,
            FrameReader(),
            regions.requests,
            regions.replies,
            self._invalid,
        )
        self._calls = RemoteCalls(shared, self._channel)
        shared.connections.add(self)

    async def run(self) -> None:
        """Serves its requests until its process has ended; kills it if cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._channel.run, self._take)
                tasks.start_soon(self._calls.answer)
                tasks.start_soon(self._kill_if_silent)
                await wait_ended(self.pid)
                tasks.cancel_scope.cancel()
        finally:
            self.kill()
            self._process.wait()
            self._channel.close()
            self._calls.disconnected()
            self._reply_arrived()
            self._shared.remove(self)

    async def _kill_if_silent(self) -> None:
        looks = _LOOKS_AT_START
        while await _is_set_within(self.ask_connections(), looks):
            await anyio.sleep(_ASKED_EVERY_S)
            looks = _LOOKS
        silent_s = looks * _LOOK_S
        _log.error("the worker %d did not answer for %g s, and is killed", self.pid, silent_s)
        self.kill()

    def how_it_ended(self) -> str:
        code, when = self._process.returncode, "" if self.was_ready else " before it could serve"
        if self.was_killed:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}{when}"
        return f"exited with code {code}{when}"

    @property
    def was_killed(self) -> bool:
        code = self._process.returncode
        return code is not None and code < 0

    def serve(self) -> None:
        self._channel.post("serve")

    def ask_connections(self) -> anyio.Event:
        """Returns an event that is set once the counts have arrived, or it ended."""
        if self._asked is None:
            self._asked = anyio.Event()
            self._channel.post("count")
        return self._asked

    def _reply_arrived(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.set()

    # The methods of a connection.

    def drain(self) -> None:
        if not self._is_draining:
            self._is_draining = True
            if not self.was_ready:  # it has no clients, and may never read this
                self.kill()
            self._channel.post("drain")
            self._channel.flush()

    def end_early(self) -> None:
        for call in tuple(self._calls.running.values()):
            call.end_early()

    def abort(self) -> None:
        self._channel.post("abort")
        self._channel.flush()

    def kill(self) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _take(self, messages: Sequence[PassedMessage]) -> None:
        calls = self._calls
        for name, id_, content in messages:
            if name == "request":
                number, head, client, decoder, given = content
                if head is None:
                    head = self._heads[number]
                elif number:
                    self._heads[number] = head
                calls.begin(id_, RemoteCall(calls, id_, head, client, decoder, given))
            elif id_:
                call = calls.running.get(id_)
                if call is not None:
                    call.take(name, content)
            elif name == "refused":
                self._shared.count_refusal(*content)
            elif name == "connections":
                self.connections = ConnectionTotals(*content)
                self._reply_arrived()
            elif name == "ready":
                self.was_ready = True
                self._reply_arrived()
                self._on_ready(self)

    def _invalid(self, error: Exception) -> None:
        _log.error("a worker has sent an invalid frame, and is killed", exc_info=error)
        self.kill()


# How long a front end may take to close its connections by force.
_ENDS_WITHIN_S: Final = 1.0


# How long to wait for the counts: a process may be stopped. Then its last counts are used.
_WAIT_S: Final = 0.5


@dataclass(eq=False)
class FrontEnds(FrontEndListener, CountedConnections):
    """Keeps front ends running, and counts the connections of all, including ended ones."""

    # It fails if no front end can serve any more, or if one fails to start before the server has
    # served, unless it was killed.

    count: int
    command: Sequence[str]  # file descriptors are appended
    start: bytes  # the content of the first frame

    is_for_each_address = False

    def __post_init__(self) -> None:
        self._restarts = Restarts()
        self._front_ends: set[RemoteFrontEnd] = set()
        self._before = ConnectionTotals(0, 0, 0, None, None)  # of those that have ended
        self._may_serve = False
        self._draining = anyio.Event()
        self._is_up = anyio.Event()

    async def run(self) -> None:
        """Keeps the front ends running until the server drains; kills them if it is cancelled."""
        async with anyio.create_task_group() as keepers:
            for number in range(1, self.count + 1):
                keepers.start_soon(self._keep_one, number)

    async def open(self) -> None:
        """Waits until all can serve, and lets them accept; raises `OSError` if it can't listen."""
        await self._is_up.wait()
        if self._is_ending():
            return
        self.bound.listen()
        self._may_serve = True
        for front_end in self._front_ends:
            front_end.serve()

    def announce_end(self) -> None:
        self._draining.set()
        # Before they close theirs: otherwise clients could connect to a socket that no one accepts
        # from.
        self.bound.close()
        super().announce_end()
        for front_end in self._front_ends:
            front_end.drain()

    def abort(self) -> None:
        """Lets them close all connections by force; kills those that do not end soon."""
        super().abort()
        timeouts = self.shared.timeouts
        timeouts.add(timeouts.now() + _ENDS_WITHIN_S, self._kill)

    def _kill(self) -> None:
        for front_end in self._front_ends:
            front_end.kill()

    # Only the process that has a connection can read its byte counts from the kernel. So the front
    # ends are asked when the metrics are collected; reporting each change would cost more.

    async def refresh(self) -> None:
        """Asks all front ends, and waits a moment for those that can serve."""
        with anyio.move_on_after(_WAIT_S):
            for reply in [one.ask_connections() for one in self._front_ends if one.was_ready]:
                await reply.wait()

    def pids(self) -> Mapping[int, int]:
        return {one.number: one.pid for one in self._front_ends}

    def totals(self) -> ConnectionTotals:
        totals = reduce(_sum, [one.connections for one in self._front_ends], self._before)
        return totals._replace(limit=self.shared.options.max_connections)

    async def _keep_one(self, number: int) -> None:
        listening = self.bound.bound_socket.socket.fileno()
        while not self._is_ending():
            began_at = anyio.current_time()
            front_end = None
            try:
                front_end = RemoteFrontEnd(
                    number, self.shared, self.command, listening, self.start, self._serve_by
                )
            except OSError as error:
                how = f"can't be started: {error.strerror or error}"
            else:
                self._front_ends.add(front_end)
                try:
                    await front_end.run()
                finally:
                    self._front_ends.discard(front_end)
                    self._before = _sum(self._before, front_end.connections._replace(open=0))
                how = front_end.how_it_ended()
            if not self._is_ending():
                await self._handle_end(front_end, how, began_at)

    def _is_ending(self) -> bool:
        return self._draining.is_set() or self.failure is not None

    def _serve_by(self, front_end: RemoteFrontEnd) -> None:
        """Lets a front end that is ready accept clients, or the server if it waits for this one."""
        self._restarts.started(anyio.current_time())
        if self._may_serve:
            front_end.serve()
        elif sum(one.was_ready for one in self._front_ends) == self.count:
            self._is_up.set()

    async def _handle_end(
        self, front_end: RemoteFrontEnd | None, how: str, began_at: float
    ) -> None:
        """Handles the end of a front end; returns when the next may be started."""
        now = anyio.current_time()
        point = random.random()  # noqa: S311 - no secret is drawn
        was_ready = front_end is not None and front_end.was_ready
        was_killed = front_end is not None and front_end.was_killed
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
            self.failed()
            return
        _log.error("a worker %s; another one is started in its place", how)
        with anyio.CancelScope(deadline=next_at):
            await self._draining.wait()


def _sum(one: ConnectionTotals, other: ConnectionTotals) -> ConnectionTotals:
    pairs = zip(one, other, strict=True)
    # The bytes may be unknown.
    sums: Any = [None if a is None and b is None else (a or 0) + (b or 0) for a, b in pairs]
    return ConnectionTotals(*sums)


# The server's process ends requests that take too long. A worker does so later, if that fails.
_LATER_S: Final = 5.0


class FrontEndStart(NamedTuple):
    options: dict[str, Any]
    event_loop: Literal["trio", "asyncio"]
    log_level: str
    log_format: str


def front_ends(
    program: str,
    count: int,
    options: HttpOptions,
    event_loop: Literal["trio", "asyncio"],
    log_level: str,
    log_format: str = "text",
) -> StartFrontEnds:
    """Returns what starts `count` processes of a program, a module, with these options."""
    server_options = {name: getattr(options, name) for name in ServerKeywords.__annotations__}
    server_options |= {
        "uds": None,
        "max_connections": math.ceil(options.max_connections / count),
        "graceful_timeout_s": options.graceful_timeout_s + _LATER_S,
    }
    # -P: modules in the current directory must not shadow the library's
    command = [sys.executable, "-P", "-m", program]
    start = dumps(FrontEndStart(server_options, event_loop, log_level, log_format)._asdict())
    return partial(FrontEnds, count=count, command=command, start=start)
