"""One front end, in the server's process: its process, and the requests that it has forwarded."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from shoal.asgi.extensions import ConnectionTotals
from shoal.front_ends.remote_call import RemoteCall, RemoteCalls
from shoal.front_ends.wire import MEMORY, Channel, FrontKind, Head, PassedMessage
from shoal.replicas.process.wire.frames import PROTOCOL, FrameReader, encoded, send
from shoal.replicas.process.wire.shared_memory import SharedMemory, new_memory
from shoal.replicas.process.worker import wait_ended

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        self, number: int, shared: Shared, command: Sequence[str], listening: int, start: bytes
    ) -> None:
        self.number = number
        self._shared = shared
        self.is_ready = anyio.Event()  # it can serve, or has ended
        self.was_ready = False  # it could serve
        self.connections = ConnectionTotals(0, 0, 0, None, None)
        self._asked: anyio.Event | None = None
        self._is_draining = False
        self._heads: dict[int, Head] = {}
        ours, theirs = socket.socketpair()
        memory = new_memory(MEMORY)
        try:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
            passed = [listening, theirs.fileno(), *([] if memory is None else [memory])]
            regions = None if memory is None else SharedMemory(memory, MEMORY)
            send(ours, encoded(FrontKind.START, 0, [start]))
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
            FrameReader[FrontKind](FrontKind),
            None if regions is None else regions.requests,
            None if regions is None else regions.replies,
            self._invalid,
        )
        self._calls = RemoteCalls(shared, self._channel)
        shared.connections.add(self)

    async def run(self) -> None:
        """Serves its requests until its process has ended; kills it if cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._channel.run, self._take)
                tasks.start_soon(self._kill_if_silent)
                await wait_ended(self.pid)
                tasks.cancel_scope.cancel()
        finally:
            self.kill()
            self._process.wait()
            self._channel.close()
            self._calls.disconnected()
            self.is_ready.set()
            self._reply_arrived()
            self._shared.remove(self)

    async def _kill_if_silent(self) -> None:
        answered, looks = self.is_ready, _LOOKS_AT_START
        while await _is_set_within(answered, looks):
            await anyio.sleep(_ASKED_EVERY_S)
            answered, looks = self.ask_connections(), _LOOKS
        silent_s = looks * _LOOK_S
        _log.error("the worker %d did not answer for %g s, and is killed", self.pid, silent_s)
        self.kill()

    def how_it_ended(self) -> str:
        code = self._process.returncode
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"

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

    # Messages of the front end.

    def _take(self, messages: Sequence[PassedMessage]) -> None:
        calls = self._calls
        for name, id_, content in messages:
            if name == "request":
                number, head, client, body, decoded = content
                if head is None:
                    head = self._heads[number]
                elif number:
                    self._heads[number] = head
                calls.begin(id_, RemoteCall(calls, id_, head, client, body, decoded))
            elif id_:
                call = calls.running.get(id_)
                if call is not None:
                    call.take(name, content)
            elif name == "refused":
                self._shared.refusals.count(*content)
            elif name == "connections":
                self.connections = ConnectionTotals(*content)
                self._reply_arrived()
            elif name == "ready":
                self.was_ready = True
                self.is_ready.set()

    def _invalid(self, error: Exception) -> None:
        _log.error("a worker has sent an invalid frame, and is killed", exc_info=error)
        self.kill()
