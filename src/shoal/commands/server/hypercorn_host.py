"""``shoal serve --server hypercorn``: an application on stock Hypercorn, over its public API.

Hypercorn listens, speaks HTTP and drains, with a `Config` made from our options. To Shoal's own
server it is a listener, as worker processes are. That server binds the sockets before the
application loads, runs the lifespan, which Hypercorn would ignore if it fails, serves the admin
socket, and asks for the drain. Middleware does what Hypercorn has no option for: it checks hosts
and origins, reads the headers of proxies, writes the access log, cuts off requests that outlast the
drain, and ends a response over HTTP/2 only after its request.

Since Hypercorn is not patched, the hazards of its connections remain: on trio an error in one
connection ends the process, and a client that does not read blocks the shutdown. Therefore Shoal's
own server is the default.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import anyio
from hypercorn.config import Config

from shoal.asgi.extensions import GUARDED
from shoal.asgi.headers import PROBLEM_JSON, BadRequest
from shoal.failures.exceptions import alone, first_of
from shoal.server.access_log import AccessLogLine
from shoal.server.run import FrontEndListener

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from shoal.asgi.http_options import HttpOptions
    from shoal.server.connection_limit import LimitedListener
    from shoal.server.run import StartFrontEnds
    from shoal.serving.app_file.server import EventLoopName

NAME: Final = f"Hypercorn {version('hypercorn')}"

_log: Final = logging.getLogger("shoal.server")

# How long requests that are cut off may take to send an error, until Hypercorn cancels them.
_LAST_WORDS_S: Final = 0.75
_SERVICE_RESTART: Final = 1012  # a close code of WebSocket


def on_hypercorn(event_loop: EventLoopName) -> StartFrontEnds:
    return partial(_HypercornListener, hypercorn=import_module(f"hypercorn.{event_loop}"))


def _config(options: HttpOptions, bound: LimitedListener) -> Config:
    """Returns Hypercorn's configuration, which owns the socket from now on."""
    config = Config()
    config.bind = [f"fd://{bound.bound_socket.socket.detach()}"]
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
        config.errorlog.setLevel(logging.WARNING)  # Shoal reports the address
    return config


@dataclass(eq=False)
class _HypercornListener(FrontEndListener):
    """Hypercorn at one socket: to the server a listener, and all of its connections at once."""

    hypercorn: Any  # its module for the event loop

    is_for_each_address = True

    def __post_init__(self) -> None:
        self._may_serve = anyio.Event()
        self._is_up = anyio.Event()
        self._draining = anyio.Event()
        self._run = anyio.CancelScope()
        self._calls: set[anyio.CancelScope] = set()

    async def run(self) -> None:
        try:
            with self._run:
                await self._may_serve.wait()
                self.shared.connections.add(self)
                config = _config(self.shared.options, self.bound)
                await self.hypercorn.serve(
                    self, config, shutdown_trigger=self._until_drain, mode="asgi"
                )
        except Exception as error:
            has_drained = self._draining.is_set() and not (self._calls or self.lost)
            level = logging.INFO if has_drained else logging.ERROR
            _log.log(level, "Hypercorn has ended with an error", exc_info=error)
            if not has_drained:
                cause = alone(error)
                self.failure = f"Hypercorn has ended: {type(cause).__name__}: {cause}"
                self.failed()
        finally:
            self.shared.remove(self)

    async def _until_drain(self) -> None:  # which Hypercorn calls once it listens
        self._is_up.set()
        await self._draining.wait()

    async def open(self) -> None:
        self._may_serve.set()
        await self._is_up.wait()

    def announce_end(self) -> None:
        self._draining.set()
        if not self._may_serve.is_set():
            self._run.cancel()

    def end_early(self) -> None:
        for call in tuple(self._calls):
            call.cancel()

    def abort(self) -> None:
        self._run.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for stage in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{stage}.complete"})
            return
        shared = self.shared
        app = shared.app
        try:
            shared.guard.check_headers(scope.get("method", ""), scope["headers"])
        except BadRequest as refused:
            app = partial(_answer, refused)
        extensions: dict[str, Any] = {**scope["extensions"], GUARDED: {}}
        scope = {**scope, "state": shared.state.copy(), "extensions": extensions}
        if shared.proxies is not None:
            shared.proxies.complete(scope)
        messages = _Messages(scope, receive, send)
        status = 500  # of Hypercorn's response, if the application sends none
        with anyio.CancelScope() as call:
            self._calls.add(call)
            shared.calls_started += 1
            try:
                await app(scope, messages.receive, messages.send)
            except anyio.get_cancelled_exc_class():
                status = 503
                if not call.cancel_called:  # Hypercorn has cancelled it
                    status = 0
                    self.lost += 1
                raise
            finally:
                self._calls.remove(call)
                shared.calls_finished += 1
                if shared.options.access_log:
                    messages.log.note_refusal(0 if messages.has_begun else status)
                    messages.log.write(scope)
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
        self.log = AccessLogLine()
        if scope["type"] != "http" or scope["http_version"] != "2":
            self._request_ended.set()

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):  # the last message, or a disconnect
            self._request_ended.set()
        return message

    async def send(self, message: Message) -> None:
        self.has_begun = True
        self.log.note(message)
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if is_last and not self._request_ended.is_set():
            # Another task may receive the end.
            await first_of(self._drop_rest, self._request_ended.wait)
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
