"""What the connections at one address share."""

from __future__ import annotations

import time
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.server.client_faults import ClientFaults
from shoal.server.refusals import Refusals
from shoal.server.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anyio.abc import TaskGroup
    from starlette.types import ASGIApp, Receive, Scope, Send

    from shoal.asgi.connections import CountedConnections
    from shoal.asgi.guard import RequestGuard
    from shoal.asgi.http_options import HttpOptions
    from shoal.loops.parking import Parking
    from shoal.server.proxies import ProxyHeaders
    from shoal.server.sockets.timeouts import Timeouts


NO_COUNTS: Final[Mapping[str, CountedConnections]] = {}
"""The connections of no server."""

_WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)


class Shared:
    """What the connections at one address share.

    Args:
        app: The application.
        options: The options of the server.
        state: What the application's lifespan has put into its state.
        parking: The event loop's way to wait.
        timeouts: The timeouts of the server.
        tasks: The tasks of the connections.
        scheme: The scheme of its URLs, "http" or "https".
        guard: Refuses requests; None if none is refused.
        proxies: Completes scopes by what proxies say; None if no proxy is known.
        counts: The connections of all addresses of the server, by a word for each.
        is_local: Whether it listens at a loopback address or a UNIX socket.

    Attributes:
        app: The application; once the server cuts off its calls, one that refuses all requests.
        state, timeouts, tasks, scheme, guard, proxies, counts, is_local: As above.
        options: The options of the server.
        context: The context that each call of the application gets a copy of.
        parking: As above.
        new_waiter, wake: Its functions.
        idle_s: How long a connection may be idle, in seconds.
        turns: The turns of the connections that speak HTTP/2 or WebSocket.
        faults: Logs the errors that end connections.
        refusals: Notes the requests that never reach the application.
        connections: The open connections.
        started: How many calls of the application have begun since the server started.
        finished: How many of these have ended.
        is_draining: Whether connections close after their current answer.
    """

    # How long the server goes on reading from a connection after it has shut down its own side.
    linger_s = 2.0
    # How long an idle connection stays open after the drain has begun. Its client may be sending
    # its next request now, and can't know whether one that meets a closed connection was served.
    late_request_s = 0.5
    # How long calls that the server cuts off may take to tell their clients so.
    last_words_s = 1.0

    def __init__(
        self,
        app: ASGIApp,
        options: HttpOptions,
        state: dict[str, Any],
        parking: Parking,
        timeouts: Timeouts,
        tasks: TaskGroup,
        scheme: str,
        guard: RequestGuard | None = None,
        proxies: ProxyHeaders | None = None,
        counts: Mapping[str, CountedConnections] = NO_COUNTS,
        is_local: bool = False,
    ) -> None:
        self.app = app
        self.refusals = Refusals(app, proxies, is_logged=options.access_log)
        self.state = state
        self.timeouts = timeouts
        self.tasks = tasks
        self.options = options
        self.context = copy_context()
        self.parking = parking
        self.new_waiter = parking.new_waiter
        self.wake = parking.wake
        self.turns = Turns(tasks, timeouts.now)
        self.scheme = scheme
        self.guard = guard
        self.proxies = proxies
        self.counts = counts
        self.is_local = is_local
        self.idle_s = options.keep_alive_timeout_s
        self.head_timeout_s = options.head_timeout_s
        self.body_timeout_s = options.body_timeout_s
        self.ping_interval_s = options.ping_interval_s
        self.send_timeout_s = options.send_timeout_s
        self.faults = ClientFaults(timeouts.now)
        self.connections: set[Any] = set()
        self.started = 0
        self.finished = 0
        self.is_draining = False
        self._closed: anyio.Event | None = None
        self._date = b""
        self._date_at = 0

    @property
    def running(self) -> int:
        """How many calls of the application are running."""
        return self.started - self.finished

    async def wait_closed(self) -> None:
        """Waits until all connections are closed."""
        while self.connections:
            if self._closed is None:
                self._closed = anyio.Event()
            await self._closed.wait()

    def drain(self) -> None:
        """Lets connections end after their current answers."""
        self.is_draining = True
        self.idle_s = self.late_request_s

    def end_early(self) -> None:
        """Answers requests with 503 from now on, and asks all calls to end their answers."""
        self.app = self._refuse
        for connection in tuple(self.connections):
            connection.end_early()

    async def _refuse(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answers 503, as an application."""
        self.refusals.count(503)
        kind = "websocket.http" if scope["type"] == "websocket" else "http"
        headers = [(b"content-length", b"0")]
        await send({"type": f"{kind}.response.start", "status": 503, "headers": headers})
        await send({"type": f"{kind}.response.body", "body": b""})

    def remove(self, connection: Any) -> None:
        """Removes a connection that was closed."""
        self.connections.discard(connection)
        if not self.connections and self._closed is not None:
            self._closed.set()
            self._closed = None

    def date_now(self) -> bytes:
        """Returns the header line with the current date, and a line break before it."""
        at = int(time.time())
        if at != self._date_at:
            self._date_at = at
            self._date = f"\r\ndate: {http_date(at)}".encode("ascii")
        return self._date


def http_date(at: int) -> str:
    """Returns a time as HTTP writes it.

    The locale has no effect, as it would on `time.strftime`. `email.utils` can do this too, and
    takes longer to load than all that speaks HTTP/1.1.

    Args:
        at: The time, in seconds since the epoch.
    """
    year, month, day, hour, minute, second, weekday, *_ = time.gmtime(at)
    return (
        f"{_WEEKDAYS[weekday]}, {day:02} {_MONTHS[month - 1]} {year:04}"
        f" {hour:02}:{minute:02}:{second:02} GMT"
    )
