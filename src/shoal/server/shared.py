"""The state that the connections at one address share."""

from __future__ import annotations

from collections import deque
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
import anyio.lowlevel

from shoal.server.access_log import AccessLogLine
from shoal.server.log_errors import ClientFaults, contained
from shoal.server.served_call import run_contained

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from anyio.abc import TaskGroup
    from starlette.types import ASGIApp, Receive, Scope, Send

    from shoal.asgi.extensions import CountedConnections
    from shoal.asgi.headers import RequestGuard
    from shoal.asgi.http_options import HttpOptions
    from shoal.loops.parking import Parking
    from shoal.loops.timers import LoopTimers
    from shoal.server.proxies import ProxyHeaders
    from shoal.server.served_call import ServedConnection


@dataclass(eq=False)
class Shared:
    app: ASGIApp  # replaced by `_refuse` when the server cuts off its calls
    options: HttpOptions
    state: dict[str, Any]
    parking: Parking
    timeouts: LoopTimers
    tasks: TaskGroup
    scheme: str
    guard: RequestGuard
    proxies: ProxyHeaders | None = None
    # Of all addresses of the server, by "main" or "admin".
    counts: Mapping[str, CountedConnections] = field(default_factory=dict[str, Any])

    # How long the server goes on reading from a connection after it has shut down its own side.
    linger_s: ClassVar = 2.0
    # How long an idle connection stays open after the drain has begun. Its client may be sending
    # its next request now, and can't know whether one that meets a closed connection was served.
    late_request_s: ClassVar = 0.5
    # How long calls that the server cuts off may take to send their clients an error.
    last_words_s: ClassVar = 1.0

    def __post_init__(self) -> None:
        known: Any = self.app
        self._count = known.count_refusal if hasattr(type(self.app), "count_refusal") else None
        self.context = copy_context()  # each call of the application gets a copy of it
        self.wake = self.parking.wake
        self.turns = Turns(self.tasks, self.timeouts.now)
        self.idle_s = self.options.keep_alive_timeout_s
        self.faults = ClientFaults(self.timeouts.now)
        self.connections: set[Any] = set()
        self.calls_started = 0  # calls of the application since the server started
        self.calls_finished = 0
        self.incomplete = 0  # bytes of WebSocket messages
        self.is_draining = False  # connections close after their current responses
        self._closed: anyio.Event | None = None

    @property
    def running(self) -> int:
        return self.calls_started - self.calls_finished

    async def wait_closed(self) -> None:
        while self.connections:
            if self._closed is None:
                self._closed = anyio.Event()
            await self._closed.wait()

    def start_task(self, connection: ServedConnection) -> None:
        """Starts a task of a connection, outside of the context of the caller's application."""
        self.context.run(self.tasks.start_soon, run_contained, connection, self.parking)

    # The server refuses requests that are malformed, for another host, or too slow. The application
    # never sees them. If it has a method `count_refusal`, this is called with the status and the
    # seconds that the request took.

    def count_refusal(self, status: int, took_s: float = 0.0) -> None:
        if self._count is not None:
            with contained("a refused request could not be counted"):
                self._count(status, took_s)

    def note_refusal(self, scope: Scope, status: int, size: int, took_s: float = 0.0) -> None:
        """Counts and logs a refusal; the scope's ``method`` and ``path`` may be None."""
        self.count_refusal(status, took_s)
        if not self.options.access_log:
            return
        scope = {**scope, "headers": list(scope["headers"])}
        if self.proxies is not None and scope["path"] is not None:
            self.proxies.complete(scope)
        line = AccessLogLine(took_s)
        line.note_refusal(status, size)
        line.write(scope)

    def drain(self) -> None:
        self.is_draining = True
        self.idle_s = self.late_request_s

    def end_early(self) -> None:
        """Answers new requests with 503, and asks all calls to end their responses."""
        self.app = self._refuse
        for connection in tuple(self.connections):
            connection.end_early()

    async def _refuse(self, scope: Scope, _receive: Receive, send: Send) -> None:
        self.count_refusal(503)
        kind = "websocket.http" if scope["type"] == "websocket" else "http"
        headers = [(b"content-length", b"0")]
        await send({"type": f"{kind}.response.start", "status": 503, "headers": headers})
        await send({"type": f"{kind}.response.body", "body": b""})

    def remove(self, connection: Any) -> None:
        self.connections.discard(connection)
        if not self.connections and self._closed is not None:
            self._closed.set()
            self._closed = None


# Parsing a frame of HTTP/2 takes a tenth of a millisecond, and each connection has a task for it. A
# thousand such tasks that are ready in one pass of the event loop would hold up all other tasks for
# a tenth of a second. Therefore they take turns.

# In units of the cost of a small WebSocket message.
_LARGE: Final = 16
_AT_ONCE: Final = 4 * _LARGE
# Turns with more time than this between them do not count as taken at once.
_APART_S: Final = 0.001


class Turns:
    """Calls functions in order: a few at once, the others in later passes of the event loop."""

    def __init__(self, tasks: TaskGroup, now: Callable[[], float]) -> None:
        self._tasks = tasks
        self._now = now
        self._waiting: deque[tuple[Callable[[], object], int]] = deque()
        self._taken = 0
        self._since = now()

    def take(self, turn: Callable[[], object], cost: int = _LARGE) -> None:
        """Calls a function, which must not raise, now or in a later pass; cost: 1 to 16."""
        if not self._waiting:
            now = self._now()
            if now - self._since > _APART_S:
                self._since = now
                self._taken = 0
            if self._taken < _AT_ONCE:
                self._taken += cost
                turn()
                return
            self._tasks.start_soon(self._run)
        self._waiting.append((turn, cost))

    async def _run(self) -> None:
        waiting = self._waiting
        while waiting:
            await anyio.lowlevel.checkpoint()
            taken = 0
            # A turn stays in the queue until it was called, so that turns that it takes wait
            # behind the others.
            for _ in range(len(waiting)):
                turn, cost = waiting[0]
                turn()
                waiting.popleft()
                taken += cost
                if taken >= _AT_ONCE:
                    break
