"""One client's connection: its reader, the application's calls, and the ways in which it ends.

The counterpart of Hypercorn's ``TCPServer`` and ``TaskGroup``, from which it differs where those
let one client harm the rest:

- An error in any of its tasks ends this connection and is logged once. (Stock: it reaches the
  server's nursery and ends the process.)
- Every send has a deadline; then the socket is closed by force. (Stock: sends are shielded without
  one, so a client that stops reading holds its task, and the shutdown, for ever.)
- No step between "the answer is complete" and "the connection is free again" can be cancelled.
  (Stock: Starlette's streamed responses cancel themselves exactly there, and leak the connection.)
- It closes by saying so, then listening for a moment. (Stock: closing at once over unread input
  makes the kernel throw the answer away, so that a refused upload sees no 413.)

One clock serves for everything that a quiet connection waits for: the reader's scope, whose
deadline is the end of keep-alive, of lingering, or of the drain.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import anyio.lowlevel
from hypercorn.events import Closed, Event, RawData, Updated

from shoal.http.server.inbox import Inbox
from shoal.http.server.listeners import host_and_port, spelled
from shoal.http.server.log_errors import contained
from shoal.http.server.protocols import Context, Protocol, time_to_send_s

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from anyio.abc import TaskGroup as AnyioTaskGroup
    from hypercorn.config import Config
    from hypercorn.typing import (
        AppWrapper,
        ASGIReceiveEvent,
        ASGISendEvent,
        ConnectionState,
        Scope,
        TaskGroup,
    )
    from starlette.types import ASGIApp, Receive, Send
    from starlette.types import Scope as AppScope

    from shoal.http.server.client_socket import ClientSocket

_log = logging.getLogger("shoal.server")

_READ_SIZE: Final = 2**16
# How long a connection that we closed may go on talking before we stop listening.
_LINGER_S: Final = 2.0
# How long an idle connection stays when the drain has begun. Its client may be sending its next
# request in this very moment, and can't know whether one that meets a closed door was served.
_LATE_REQUEST_S: Final = 0.5
# A client that opens streams and resets them at once leaves calls behind that never noticed.
_CALLS_PER_STREAM: Final = 2


@dataclass
class Shared:
    """What the connections of one server have in common."""

    app: ASGIApp
    config: Config
    state: dict[str, Any]
    send_timeout_s: float
    context: Context = field(default_factory=Context)
    connections: set[ClientConnection] = field(default_factory=set["ClientConnection"])
    # Calls of the application: under way, and ended since the server started.
    running: int = 0
    finished: int = 0

    @property
    def is_draining(self) -> bool:
        """Whether connections end with the answer under way."""
        return self.context.terminated.is_set()


class ClientConnection:
    """Serves one client until either side has had enough.

    Invariants: ``_finishing`` implies that our side of the socket is shut down: nothing is sent any
    more, and nothing that comes is handled. ``_closed`` implies that, and that all of it is closed.
    """

    def __init__(self, shared: Shared, client: ClientSocket) -> None:
        self._shared = shared
        self._client = client
        self._sending = anyio.Lock(fast_acquire=True)
        self._idle = True
        self._finishing = False
        self._closed = False
        # One for each call of the application that is under way.
        self._inboxes: set[Inbox] = set()
        self._clock = anyio.CancelScope()
        self._tasks: AnyioTaskGroup
        self._protocol: Protocol

    async def run(self) -> None:
        """Serve until the connection has ended and so have the application's calls on it."""
        try:
            peer = self._client.peer
        except OSError:
            self.close()
            return
        self._shared.connections.add(self)
        try:
            with contained("an error ended the connection from %s", spelled(peer)):
                await self._serve(peer)
        finally:
            self.close()
            self._shared.connections.discard(self)

    async def drain(self) -> None:
        """End with the answer that is under way, or with the next if that is about to be asked."""
        self._set_idle(idle=self._idle)
        with contained("saying goodbye to a WebSocket failed"):
            await self._protocol.close_websockets()

    def close(self) -> None:
        """Close the socket; what was sent is still delivered."""
        self._finishing = self._closed = True
        self._client.close()
        # The reader may wait for its turn in the protocol, which the socket's end does not wake.
        self._clock.cancel()

    def abort(self) -> None:
        """Close the socket by force: what the client has not taken is thrown away."""
        if not self._closed:
            self._client.abort()
            self.close()

    async def _serve(self, peer: Any) -> None:
        shared = self._shared
        async with anyio.create_task_group() as self._tasks:
            self._protocol = Protocol(
                cast("AppWrapper", shared.app),
                shared.config,
                shared.context,
                cast("TaskGroup", self),
                cast("ConnectionState", shared.state.copy()),
                host_and_port(peer),
                host_and_port(self._client.name),
                self._take,
                send_timeout_s=shared.send_timeout_s,
            )
            try:
                await self._read_in_time()
                await self._say_goodbye()
            except BaseException:
                # Before the application's calls are cancelled: they have nobody to say it to.
                self.close()
                raise

    async def _read_in_time(self) -> None:
        """Read until the connection's end, or until its deadline has passed, and then close it."""
        while True:
            self._set_idle(idle=True)
            with self._clock:
                await self._read()
            if not self._clock.cancelled_caught:
                return
            # What has come in time may have met an event loop that had no turn to read it.
            if self._finishing or not self._idle or not self._client.has_unread():
                self.close()
                return
            self._clock = anyio.CancelScope()

    async def _read(self) -> None:
        while True:
            try:
                data = await self._client.receive(_READ_SIZE)
            except (OSError, anyio.ClosedResourceError):
                return
            if not self._finishing:
                await self._protocol.handle(RawData(data))
            if not data:
                return

    # The two methods that Hypercorn's protocols know as their task group.

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        """Start one call of the application; gives what hands it its messages."""
        if len(self._inboxes) >= _CALLS_PER_STREAM * config.h2_max_concurrent_streams:
            raise RuntimeError(f"{len(self._inboxes)} calls are under way on one connection")
        inbox = Inbox(scope["type"], config.max_app_queue_size, self._protocol.ask_for_body)
        self._inboxes.add(inbox)
        self._tasks.start_soon(self._call, scope, inbox, send)
        return inbox.put

    def spawn(self, func: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
        """Start a task of the protocol's own."""
        self._tasks.start_soon(func, *args)

    async def _call(
        self,
        scope: Scope,
        inbox: Inbox,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> None:
        app_scope = cast("AppScope", scope)

        async def send_or_stop(message: ASGISendEvent) -> None:
            # The one place where a send can be cancelled: before it has changed any state. And one
            # that is dropped must still be a checkpoint, or an endless stream would spin.
            if inbox.is_over:
                await anyio.lowlevel.checkpoint()
            else:
                await anyio.lowlevel.checkpoint_if_cancelled()
            await send(message)

        self._shared.running += 1
        try:
            try:
                # The raw path is printable ASCII: it can't forge a line of the log.
                with contained("the application failed on %r", app_scope.get("raw_path")):
                    await self._shared.app(
                        app_scope, cast("Receive", inbox.receive), cast("Send", send_or_stop)
                    )
            except BaseException:
                # The server is cancelled. To its client that is no failure of the call.
                self.close()
                raise
            finally:
                inbox.close()
                await send(None)
        finally:
            self._inboxes.discard(inbox)
            self._shared.running -= 1
            self._shared.finished += 1

    async def _take(self, event: Event) -> None:
        # What the protocol wants of the connection. Only the first kind may wait, and it is
        # shielded: see the third point at the top.
        if isinstance(event, RawData):
            await self._send(event.data)
        elif isinstance(event, Closed):
            self._finish()
            await self._say_goodbye()
        elif isinstance(event, Updated):
            self._set_idle(idle=event.idle)

    async def _send(self, data: bytes) -> None:
        if not data or self._finishing:
            return
        # The wait for the lock is shielded, too: bytes that a protocol has given out are part of
        # its state, and a gap would garble what follows. It is bounded by the holder's deadline.
        with anyio.CancelScope(shield=True) as scope:
            async with self._sending:
                if not self._finishing:
                    await self._write(data, scope)
        if scope.cancelled_caught:
            _log.info("closed a connection by force: its client does not read")
            self.abort()
        if self._closed:
            await self._say_goodbye()

    async def _write(self, data: bytes, scope: anyio.CancelScope) -> None:
        allowed_s = time_to_send_s(len(data), self._shared.send_timeout_s)
        scope.deadline = anyio.current_time() + allowed_s
        try:
            await self._client.send(data)
        except (OSError, anyio.ClosedResourceError):
            self.close()

    def _finish(self) -> None:
        """Say that nothing more will come, and listen for a moment if the client still talks."""
        if self._finishing:
            return
        if self._protocol.is_client_done and not self._client.has_unread():
            self.close()
            return
        self._finishing = True
        self._client.end_sending()
        self._clock.deadline = anyio.current_time() + _LINGER_S

    async def _say_goodbye(self) -> None:
        await self._protocol.handle(Closed())
        # A stream that the protocol itself has refused is skipped by it.
        for inbox in self._inboxes:
            inbox.say_goodbye()

    def _set_idle(self, *, idle: bool) -> None:
        self._idle = idle
        if self._finishing:
            return
        if not idle:
            self._clock.deadline = math.inf
        elif self._shared.is_draining:
            self._clock.deadline = anyio.current_time() + _LATE_REQUEST_S
        else:
            self._clock.deadline = anyio.current_time() + self._shared.config.keep_alive_timeout
