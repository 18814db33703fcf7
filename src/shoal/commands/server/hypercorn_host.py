"""Stock Hypercorn as the server of an application, used through its public API only.

Hypercorn gets bound sockets and its own options. ASGI middleware adds what Hypercorn's options do
not cover: allowed hosts and origins, proxy headers, and the access log. The lifespan runs outside
of Hypercorn, which would give a model 60 seconds to load, and would serve an application whose
startup has raised.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.http.extensions import GUARDED
from shoal.http.server.access_log import AccessLog
from shoal.http.server.config import ServerRun, address_of
from shoal.http.server.guard import RequestGuard
from shoal.http.server.http1.bad_request import BadRequest
from shoal.http.server.lifespan import Lifespan
from shoal.http.server.listeners import AppListener, bind_all
from shoal.http.server.proxies import ProxyHeaders
from shoal.http.server.refusals import Refusals
from shoal.http.server.sockets.tls import tls_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from hypercorn.config import Config
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from shoal.http.server.config import Drained
    from shoal.http.server.listeners import BoundSocket
    from shoal.serving.app_file.server import EventLoop
    from shoal.serving.http_options import HttpOptions

_BACKLOG: Final = 1024
# How long Hypercorn may take to close the connections of calls that were cut off.
_LAST_WORDS_S: Final = 1.0

_log = logging.getLogger("shoal.server")


async def serve_on_hypercorn(
    app: ASGIApp,
    options: HttpOptions,
    *,
    event_loop: EventLoop,
    shutdown: Callable[[], Awaitable[object]],
    started: Callable[[str], object],
    extra_listeners: Sequence[AppListener] = (),
) -> Drained:
    """Serves an ASGI application with Hypercorn until it is shut down.

    Args:
        app: Any ASGI 3 application.
        options: The options of the server.
        event_loop: The event loop that runs this.
        shutdown: Awaited beside the server; when it returns, the server drains and ends.
        started: Called with the URL once clients can connect.
        extra_listeners: Further addresses to listen at, each with its own application.

    Returns:
        The outcome of the run.

    Raises:
        OSError: An address can't be listened at, or a certificate can't be read.
        LifespanFailed: The application did not start.
    """
    main = AppListener(address=address_of(options), app=app, started=started, may_have_tls=True)
    tls_of(options)  # reads the certificate before the application starts
    with ExitStack() as sockets:
        run = _Run(app, options, event_loop)
        for listener in (main, *extra_listeners):
            for number, bound in enumerate(bind_all(listener.address)):
                sockets.callback(bound.close)
                run.add(bound, listener, is_announced=number == 0)
        return await run.to_its_end(shutdown)


class _Run:
    """One run of `serve_on_hypercorn`: its addresses, and the state that they share.

    Args:
        app: The application.
        options: The options of the server.
        event_loop: The event loop that runs this.

    Attributes:
        app, options: As above.
        lifespan: The lifespan of the application.
        calls: The running calls of the applications.
        finished: How many calls have ended, including those cut off.
        cut: How many calls were cut off.
    """

    def __init__(self, app: ASGIApp, options: HttpOptions, event_loop: EventLoop) -> None:
        self.app = app
        self.options = options
        self.lifespan = Lifespan(app)
        self.calls: set[anyio.CancelScope] = set()
        self.finished = 0
        self.cut = 0
        self._event_loop = event_loop
        self._servers: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._announcements: list[Callable[[], object]] = []
        self._listening = 0
        self._draining = anyio.Event()
        self._serving = anyio.CancelScope()
        self._drain_began_at = 0.0
        self._outcome = ServerRun(self.lifespan)

    def add(self, bound: BoundSocket, listener: AppListener, *, is_announced: bool) -> None:
        """Adds an address."""
        has_tls = listener.may_have_tls and self.options.certfile is not None
        url = bound.url.replace("http:", "https:", 1) if has_tls else bound.url
        if is_announced:
            self._announcements.append(partial(listener.started, url))
        front = _Front(self, listener.app, bound)
        self._servers.append(partial(self._serve, front, bound, has_tls=has_tls))

    async def to_its_end(self, shutdown: Callable[[], Awaitable[object]]) -> Drained:
        """Runs the application and the servers; see `serve_on_hypercorn`."""
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.lifespan.run)
            tasks.start_soon(self._drain_after, shutdown)
            with self._serving:
                if await self._outcome.application_started():
                    failure = await self._serve_all()
            now = anyio.current_time()
            self._outcome.took_s = now - (self._drain_began_at or now)
            await self._outcome.end_application(self.options.graceful_timeout_s)
            tasks.cancel_scope.cancel()
        if failure is not None and not self._outcome.is_up:
            raise failure
        self._outcome.cut = self.cut
        drained = self._outcome.drained(self.finished)
        return drained if failure is None else replace(drained, failure=f"Hypercorn: {failure!r}")

    async def _serve_all(self) -> Exception | None:
        """Runs Hypercorn at all addresses until the drain is over; returns why it failed."""
        try:
            # A drain is Hypercorn's from now on: its listening servers wait for the event.
            async with anyio.create_task_group() as servers:
                for serve in self._servers:
                    servers.start_soon(serve)
        except BaseExceptionGroup as group:
            failures, passing = group.split(Exception)
            if passing is not None:
                raise passing from None
            assert failures is not None
            if self._serving.cancel_called:  # on asyncio, Hypercorn fails where it is cancelled
                return None
            if self._outcome.is_up:
                _log.critical("Hypercorn has failed, which ends the server", exc_info=failures)
            return _first_of(failures)
        return None

    async def _serve(self, front: _Front, bound: BoundSocket, *, has_tls: bool) -> None:
        serve: Any
        if self._event_loop == "trio":
            from hypercorn.trio import serve  # pyright: ignore[reportUnknownVariableType]
        else:
            from hypercorn.asyncio import serve  # pyright: ignore[reportUnknownVariableType]
        # Hypercorn owns the socket from now on, and closes it.
        config = _config(self.options, bound.socket.detach(), has_tls=has_tls)
        await serve(front, config, shutdown_trigger=self._listened, mode="asgi")

    async def _listened(self) -> None:
        """Hypercorn's ``shutdown_trigger``, which it awaits once it listens."""
        self._listening += 1
        if self._listening == len(self._servers):
            self._outcome.is_up = True
            for announce in self._announcements:
                announce()
        await self._draining.wait()

    async def _drain_after(self, shutdown: Callable[[], Awaitable[object]]) -> None:
        await shutdown()
        self._drain_began_at = anyio.current_time()
        self._outcome.finished_before = self.finished
        self._draining.set()
        if self._outcome.is_up:
            # Hypercorn's own deadline would log tracebacks on asyncio, and has no effect there from
            # Python 3.12 on: `asyncio.Server.wait_closed` waits for all connections.
            await anyio.sleep(self.options.graceful_timeout_s)
            for call in tuple(self.calls):
                call.cancel()
            await anyio.sleep(_LAST_WORDS_S)
        self._serving.cancel()


class _Front:
    """The ASGI application that Hypercorn calls at one address.

    Args:
        run: The run of the server.
        app: The application at this address.
        bound: The socket.
    """

    def __init__(self, run: _Run, app: ASGIApp, bound: BoundSocket) -> None:
        self._run = run
        is_main = app is run.app
        self._state = run.lifespan.state if is_main else {}
        self._proxies = ProxyHeaders.of(run.options) if is_main else None
        self._guard = RequestGuard(run.options, bound.socket.getsockname())
        is_logged = run.options.access_log
        self._refusals = Refusals(app, self._proxies, is_logged=is_logged)
        # Hypercorn answers 500 in place of an application that does not answer.
        self._app = AccessLog(app, has_left=lambda: False) if is_logged else app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers as an ASGI application."""
        if scope["type"] == "lifespan":
            await _do_nothing_in_lifespan(receive, send)
            return
        has_begun = False

        async def noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        run = self._run
        with anyio.CancelScope() as call:
            run.calls.add(call)
            try:
                await self._answer(scope, receive, noting)
            finally:
                run.calls.discard(call)
                run.finished += 1
        run.cut += call.cancelled_caught
        if call.cancelled_caught and not has_begun:
            await _refuse(BadRequest(503, "The server is shutting down."), scope, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        began_at = perf_counter()
        try:
            self._guard.check_headers(scope.get("method", ""), scope["headers"])
        except BadRequest as refusal:
            size = await _refuse(refusal, scope, send)
            self._refusals.note(scope, refusal.status, size, perf_counter() - began_at)
            return
        scope["extensions"][GUARDED] = {}
        scope["state"] = self._state.copy()
        if self._proxies is not None:
            self._proxies.complete(scope)
        await self._app(scope, receive, send)


def _first_of(failure: Any) -> Exception:
    """Returns the first error in a group of errors."""
    while errors := getattr(failure, "exceptions", ()):
        failure = errors[0]
    return failure  # type: ignore[no-any-return]


async def _do_nothing_in_lifespan(receive: Receive, send: Send) -> None:
    for _ in ("startup", "shutdown"):
        message = await receive()
        await send({"type": f"{message['type']}.complete"})


async def _refuse(refusal: BadRequest, scope: Scope, send: Send) -> int:
    """Answers a request that never reaches the application; returns the size of the body."""
    kind = "websocket.http" if scope["type"] == "websocket" else "http"
    body = f"{refusal}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": f"{kind}.response.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": body})
    return len(body)


def _config(options: HttpOptions, fd: int, *, has_tls: bool) -> Config:
    """Returns Hypercorn's options for one address."""
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"fd://{fd}"]
    config.backlog = _BACKLOG
    if has_tls:
        config.certfile = options.certfile
        config.keyfile = options.keyfile or options.certfile
    config.graceful_timeout = options.graceful_timeout_s + _LAST_WORDS_S
    config.keep_alive_timeout = options.keep_alive_timeout_s
    # After that number of requests Hypercorn closes a connection, and drops running requests.
    config.keep_alive_max_requests = 2**31
    config.h11_max_incomplete_size = options.max_head_bytes
    config.h2_max_header_list_size = options.max_head_bytes
    config.websocket_max_message_size = options.max_message_bytes
    config.websocket_ping_interval = options.ping_interval_s
    config.include_server_header = False
    config.errorlog = logging.getLogger("hypercorn.error")
    config.errorlog.addFilter(_is_news)
    return config


def _is_news(record: logging.LogRecord) -> bool:
    """Returns whether a record says more than where Hypercorn listens."""
    return record.levelno != logging.INFO
