"""``shoal serve --server hypercorn``: an application on stock Hypercorn, over its public API.

Hypercorn listens, speaks HTTP and drains, with a `Config` made from our options. This module adds
features that need no part of Hypercorn:

- Sockets are bound as for Shoal's own server, before the application loads.
- The lifespan runs here. Hypercorn would serve an application whose startup raises, and would end
  with a lifespan that fails later.
- Middleware does what Hypercorn has no option for: it checks hosts and origins, reads the headers
  of proxies, writes the access log, cuts off requests that outlast the drain, and ends a response
  over HTTP/2 only after its request.

Since Hypercorn is not patched, the hazards of its connections remain: on trio an error in one
connection ends the process, and a client that does not read blocks the shutdown. Therefore Shoal's
own server is the default, and it serves the admin socket here as well.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio import TASK_STATUS_IGNORED
from hypercorn.config import Config

from shoal.asgi.extensions import GUARDED
from shoal.asgi.headers import PROBLEM_JSON, BadRequest, RequestGuard
from shoal.asgi.http_options import HttpOptions
from shoal.asgi.lifespan import AppLifespan
from shoal.failures.exceptions import alone
from shoal.server.access_log import AccessLog
from shoal.server.config import Drained, ServerRun, address_of
from shoal.server.listeners import AppListener, BoundSocket, Tcp, Unix, bind_all, host_and_port
from shoal.server.proxies import ProxyHeaders
from shoal.server.server import serve
from shoal.server.tls import tls_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.abc import TaskGroup, TaskStatus
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from shoal.serving.app_file.server import EventLoopName

NAME: Final = f"Hypercorn {version('hypercorn')}"

_log: Final = logging.getLogger("shoal.server")

# How long requests that are cut off may take to send an error, until Hypercorn cancels them.
_LAST_WORDS_S: Final = 0.75
_SERVICE_RESTART: Final = 1012  # a close code of WebSocket


async def serve_on_hypercorn(
    app: ASGIApp,
    options: HttpOptions,
    *,
    event_loop: EventLoopName,
    shutdown: Callable[[], Awaitable[object]],
    started: Callable[[str], object],
    extra_listeners: Sequence[AppListener] = (),
) -> Drained:
    """Serves an application as `serve` does; the admin socket is on Shoal's own server."""
    tls_of(options)  # before a model is loaded
    first = AppListener(address=address_of(options), app=app, started=started)
    public = [first, *(one for one in extra_listeners if one.app is app)]
    with ExitStack() as open_sockets:
        bound: list[BoundSocket] = []
        announce: list[Callable[[], object]] = []
        for listener in public:
            found = bind_all(listener.address)
            for one in found:
                open_sockets.callback(one.close)
            bound += found
            scheme = "http:" if options.certfile is None else "https:"
            url = found[0].url.replace("http:", scheme, 1)
            announce.append(partial(listener.started, url))
        host = _Host(app, options, bound, announce)
        await host.run(event_loop, shutdown, [one for one in extra_listeners if one.app is not app])
    return host.drained()


def _config(options: HttpOptions, bound: Sequence[BoundSocket]) -> Config:
    """Returns Hypercorn's configuration, which owns the sockets from now on."""
    config = Config()
    config.bind = [f"fd://{one.socket.detach()}" for one in bound]
    config.certfile, config.keyfile = options.certfile, options.keyfile or options.certfile
    config.keep_alive_timeout = options.keep_alive_timeout_s
    config.graceful_timeout = options.graceful_timeout_s + _LAST_WORDS_S
    config.h11_max_incomplete_size = options.max_head_bytes
    config.h2_max_header_list_size = options.max_head_bytes
    config.websocket_max_message_size = options.max_message_bytes
    config.websocket_ping_interval = options.ping_interval_s
    config.include_server_header = False
    # At this number of requests Hypercorn ends a connection, and drops requests in flight.
    config.keep_alive_max_requests = 2**31
    config.errorlog = logging.getLogger("hypercorn.error")
    if config.errorlog.level == logging.NOTSET:
        config.errorlog.setLevel(logging.WARNING)  # `started` reports the address
    return config


class _Host:
    """The application that Hypercorn calls, which wraps the served one, and Hypercorn's run."""

    def __init__(
        self,
        app: ASGIApp,
        options: HttpOptions,
        bound: Sequence[BoundSocket],
        announce: Sequence[Callable[[], object]],
    ) -> None:
        self._app = app
        self._options = options
        self._bound = bound
        self._announce = announce
        self._lifespan = AppLifespan(app)
        self._outcome = ServerRun(self._lifespan)
        self._proxies = ProxyHeaders.of(options)
        names = [one.socket.getsockname() for one in bound]
        self._guards = {host_and_port(name): RequestGuard(options, name) for name in names}
        # Connections to 0.0.0.0 have another server address.
        guards = tuple(self._guards.values())
        self._other_guard = next((one for one in guards if not one.is_local), guards[0])
        self._starting = anyio.CancelScope()
        self._draining = anyio.Event()
        self._running: set[anyio.CancelScope] = set()
        self._finished = 0
        self._lost = 0  # calls that Hypercorn has cancelled
        self._failure: str | None = None

    async def run(
        self,
        event_loop: EventLoopName,
        shutdown: Callable[[], Awaitable[object]],
        admin: Sequence[AppListener],
    ) -> None:
        outcome, drain_began_at = self._outcome, anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._lifespan.run)
            tasks.start_soon(self._wait_for, shutdown)
            async with anyio.create_task_group() as serving:
                for one in admin:
                    await serving.start(self._serve_admin, one)
                with self._starting:
                    if outcome.refused is None and await outcome.application_started():
                        serving.start_soon(self._run_hypercorn, event_loop)
                        await self._draining.wait()
                self._draining.set()
                tasks.start_soon(self._cut_off, serving)
                drain_began_at = anyio.current_time()
            outcome.took_s = anyio.current_time() - drain_began_at
            await outcome.end_application(self._options.graceful_timeout_s)
            tasks.cancel_scope.cancel()

    def drained(self) -> Drained:
        self._outcome.cut += self._lost
        drained = self._outcome.drained(self._finished)
        return drained if self._failure is None else replace(drained, failure=self._failure)

    async def _wait_for(self, shutdown: Callable[[], Awaitable[object]]) -> None:
        await shutdown()
        self._outcome.finished_before = self._finished - self._lost
        self._draining.set()
        self._starting.cancel()

    async def _run_hypercorn(self, event_loop: EventLoopName) -> None:
        async def until_drain() -> None:  # which Hypercorn calls once it listens
            self._outcome.is_up = True
            for announce in self._announce:
                announce()
            await self._draining.wait()

        config = _config(self._options, self._bound)
        module: Any = import_module(f"hypercorn.{event_loop}")
        try:
            await module.serve(self, config, shutdown_trigger=until_drain, mode="asgi")
        except Exception as error:
            cause = alone(error)
            if isinstance(cause, OSError) and not self._outcome.is_up:
                self._outcome.refused = cause
                return
            has_drained = self._draining.is_set() and not (self._running or self._lost)
            level = logging.INFO if has_drained else logging.ERROR
            _log.log(level, "Hypercorn has ended with an error", exc_info=error)
            if not has_drained:
                self._failure = f"Hypercorn has ended: {type(cause).__name__}: {cause}"
        finally:
            self._draining.set()

    async def _serve_admin(
        self, listener: AppListener, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED
    ) -> None:
        at = listener.address
        assert not isinstance(at, Tcp), "the admin API has no port of its own"
        where: dict[str, Any] = {"uds": at.path} if isinstance(at, Unix) else {"fd": at.fd}

        def started(url: str) -> None:
            listener.started(url)
            task_status.started()

        options = HttpOptions(
            **where,
            access_log=self._options.access_log,
            graceful_timeout_s=self._options.graceful_timeout_s,
        )
        try:
            drained = await serve(
                listener.app, options, shutdown=self._draining.wait, started=started, lifespan=False
            )
        except OSError as error:
            self._outcome.refused = error
            task_status.started()
        else:
            self._finished += drained.served
            self._outcome.finished_before += drained.served - drained.finished

    async def _cut_off(self, serving: TaskGroup) -> None:
        await anyio.sleep(self._options.graceful_timeout_s)
        self._outcome.cut = len(self._running)
        for call in tuple(self._running):
            call.cancel()
        # On asyncio Hypercorn waits longer for a client of TLS that does not read.
        await anyio.sleep(2 * _LAST_WORDS_S)
        serving.cancel_scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for stage in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{stage}.complete"})
            return
        app = self._app
        guard = self._guards.get(scope["server"], self._other_guard)
        try:
            guard.check_headers(scope.get("method", ""), scope["headers"])
        except BadRequest as refused:
            app = partial(_answer, refused)
        if self._options.access_log:
            app = AccessLog(app, is_answered_for=True)
        extensions: dict[str, Any] = {**scope["extensions"], GUARDED: {}}
        scope = {**scope, "state": self._lifespan.state.copy(), "extensions": extensions}
        if self._proxies is not None:
            self._proxies.complete(scope)
        messages = _Messages(scope, receive, send)
        with anyio.CancelScope() as call:
            self._running.add(call)
            try:
                await app(scope, messages.receive, messages.send)
            except anyio.get_cancelled_exc_class():
                self._lost += not call.cancel_called
                raise
            finally:
                self._running.remove(call)
                self._finished += 1
        if call.cancelled_caught:
            if not messages.has_begun:
                error = BadRequest(503, "The server is shutting down.")
                await _answer(error, scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": _SERVICE_RESTART})


class _Messages:
    # The last message of a response over HTTP/2 waits for the end of the request. Data for a closed
    # stream is an error in Hypercorn, which would end the process on trio.
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._request_ended = anyio.Event()
        self.has_begun = False
        if scope["type"] != "http" or scope["http_version"] != "2":
            self._request_ended.set()

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):  # the last message, or a disconnect
            self._request_ended.set()
        return message

    async def send(self, message: Message) -> None:
        self.has_begun = True
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if is_last and not self._request_ended.is_set():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._drop_rest)
                await self._request_ended.wait()  # another task may receive it
                tasks.cancel_scope.cancel()
        await self._send(message)

    async def _drop_rest(self) -> None:
        while not self._request_ended.is_set():
            await self.receive()


async def _answer(error: BadRequest, scope: Scope, _receive: Receive, send: Send) -> None:
    body = error.body
    kind = "websocket.http" if scope["type"] == "websocket" else "http"
    headers = [(b"content-type", PROBLEM_JSON), (b"content-length", b"%d" % len(body))]
    if scope["http_version"] == "1.1":  # the connection ends, since the body was not read
        headers.append((b"connection", b"close"))
    await send({"type": f"{kind}.response.start", "status": error.status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": body})
