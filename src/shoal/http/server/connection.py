"""One client's connection: its reader, the application's calls, and how it is closed.

The counterpart of Hypercorn's ``TCPServer`` and ``TaskGroup``. It differs where those allow one
client to harm others:

- An error in any of its tasks ends this connection and is logged once. (Stock: it reaches the
  server's nursery and ends the process.)
- Every send has a deadline, after which the socket is closed by force. (Stock: sends are shielded
  and have no deadline, so a client that stops reading blocks its task, and the shutdown, for ever.)
- No step between "the answer is complete" and "the connection is free again" can be cancelled.
  (Stock: Starlette's streamed responses cancel themselves exactly there, and leak the connection.)
- It shuts down its side of the socket first, and reads for a moment before it closes it. (Stock:
  closing at once with unread input makes the kernel discard the answer, so that a client whose
  upload is refused sees no 413.)

One cancel scope, that of the reader, has the deadline for all that an idle connection waits for:
the end of keep-alive, of lingering, or of the drain.
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
# How long the server goes on reading from a connection after it has shut down its own side.
_LINGER_S: Final = 2.0
# How long an idle connection stays open after the drain has begun. Its client may be sending its
# next request now, and can't know whether a request that meets a closed connection was served.
_LATE_REQUEST_S: Final = 0.5
# A client that opens streams and resets them at once leaves calls that have not noticed the reset.
_CALLS_PER_STREAM: Final = 2


@dataclass
class Shared:
    """The state that the connections of one address share."""

    app: ASGIApp
    config: Config
    state: dict[str, Any]
    send_timeout_s: float
    context: Context = field(default_factory=Context)
    connections: set[ClientConnection] = field(default_factory=set["ClientConnection"])
    # Calls of the application: running, and ended since the server started.
    running: int = 0
    finished: int = 0

    @property
    def is_draining(self) -> bool:
        """Whether connections close after their current answer."""
        return self.context.terminated.is_set()


class ClientConnection:
    """Serves one client until either side closes the connection.

    Invariants: ``_finishing`` implies that the server's side of the socket is shut down: nothing
    more is sent, and input is discarded. ``_closed`` implies that and that the socket is closed.
    """

    def __init__(self, shared: Shared, client: ClientSocket) -> None:
        self._shared = shared
        self._client = client
        self._sending = anyio.Lock(fast_acquire=True)
        self._idle = True
        self._finishing = False
        self._closed = False
        # One for each running call of the application.
        self._inboxes: set[Inbox] = set()
        self._read_scope = anyio.CancelScope()
        self._tasks: AnyioTaskGroup
        self._protocol: Protocol

    async def run(self) -> None:
        """Serves until the connection and the application's calls on it have ended."""
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
        """Closes after the current answer, or after a request that arrives very soon."""
        self._set_idle(idle=self._idle)
        with contained("closing a WebSocket failed"):
            await self._protocol.close_websockets()

    def close(self) -> None:
        """Closes the socket; data that was sent is still delivered."""
        self._finishing = self._closed = True
        self._client.close()
        # The reader may wait in the protocol, and closing the socket does not wake it there.
        self._read_scope.cancel()

    def abort(self) -> None:
        """Closes the socket by force; data that the client has not received is discarded."""
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
                self._handle_event,
                send_timeout_s=shared.send_timeout_s,
            )
            try:
                await self._read_until_deadline()
                await self._disconnect()
            except BaseException:
                # Before the application's calls are cancelled, so that they don't answer.
                self.close()
                raise

    async def _read_until_deadline(self) -> None:
        """Reads until the connection ends, or closes it when its deadline has passed."""
        while True:
            self._set_idle(idle=True)
            with self._read_scope:
                await self._read()
            if not self._read_scope.cancelled_caught:
                return
            # A busy event loop may not yet have read what arrived before the deadline.
            if self._finishing or not self._idle or not self._client.has_unread():
                self.close()
                return
            self._read_scope = anyio.CancelScope()

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

    # The two methods that Hypercorn's protocols call on their task group.

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        """Starts one call of the application; returns the function that passes it messages."""
        if len(self._inboxes) >= _CALLS_PER_STREAM * config.h2_max_concurrent_streams:
            raise RuntimeError(f"{len(self._inboxes)} calls are running on one connection")
        inbox = Inbox(scope["type"], config.max_app_queue_size, self._protocol.ask_for_body)
        self._inboxes.add(inbox)
        self._tasks.start_soon(self._call, scope, inbox, send)
        return inbox.put

    def spawn(self, func: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
        """Starts a task for the protocol."""
        self._tasks.start_soon(func, *args)

    async def _call(
        self,
        scope: Scope,
        inbox: Inbox,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> None:
        app_scope = cast("AppScope", scope)

        async def send_or_stop(message: ASGISendEvent) -> None:
            # A send can be cancelled here only, before it has changed any state. A send that is
            # dropped is still a checkpoint, so that an endless stream does not block the loop.
            if inbox.is_over:
                await anyio.lowlevel.checkpoint()
            else:
                await anyio.lowlevel.checkpoint_if_cancelled()
            await send(message)

        self._shared.running += 1
        try:
            try:
                # The raw path is printable ASCII, so it can't forge a line of the log.
                with contained("the application failed on %r", app_scope.get("raw_path")):
                    await self._shared.app(
                        app_scope, cast("Receive", inbox.receive), cast("Send", send_or_stop)
                    )
            except BaseException:
                # The server is cancelled: the client must not be told that the call failed.
                self.close()
                raise
            finally:
                inbox.close()
                await send(None)
        finally:
            self._inboxes.discard(inbox)
            self._shared.running -= 1
            self._shared.finished += 1

    async def _handle_event(self, event: Event) -> None:
        # Called by the protocol. Only the first kind of event may wait, and it is shielded: see the
        # third point in the module's docstring.
        if isinstance(event, RawData):
            await self._send(event.data)
        elif isinstance(event, Closed):
            self._finish()
            await self._disconnect()
        elif isinstance(event, Updated):
            self._set_idle(idle=event.idle)

    async def _send(self, data: bytes) -> None:
        if not data or self._finishing:
            return
        # The wait for the lock is shielded as well: the protocol counts these bytes as sent, and a
        # gap would garble the rest. The wait is bounded by the deadline of the lock's holder.
        with anyio.CancelScope(shield=True) as scope:
            async with self._sending:
                if not self._finishing:
                    await self._write(data, scope)
        if scope.cancelled_caught:
            _log.info("closed a connection by force: its client does not read")
            self.abort()
        if self._closed:
            await self._disconnect()

    async def _write(self, data: bytes, scope: anyio.CancelScope) -> None:
        allowed_s = time_to_send_s(len(data), self._shared.send_timeout_s)
        scope.deadline = anyio.current_time() + allowed_s
        try:
            await self._client.send(data)
        except (OSError, anyio.ClosedResourceError):
            self.close()

    def _finish(self) -> None:
        """Shuts down the server's side; goes on reading for a moment if the client still sends."""
        if self._finishing:
            return
        if self._protocol.is_client_done and not self._client.has_unread():
            self.close()
            return
        self._finishing = True
        self._client.end_sending()
        self._read_scope.deadline = anyio.current_time() + _LINGER_S

    async def _disconnect(self) -> None:
        await self._protocol.handle(Closed())
        # The protocol skips streams that it has refused itself.
        for inbox in self._inboxes:
            inbox.disconnect()

    def _set_idle(self, *, idle: bool) -> None:
        self._idle = idle
        if self._finishing:
            return
        if not idle:
            self._read_scope.deadline = math.inf
        elif self._shared.is_draining:
            self._read_scope.deadline = anyio.current_time() + _LATE_REQUEST_S
        else:
            keep_alive_s = self._shared.config.keep_alive_timeout
            self._read_scope.deadline = anyio.current_time() + keep_alive_s
