"""`App`: backends and endpoints over HTTP, declared in a program, in one plain ASGI application.

It is an ASGI application and no framework: a table of paths, and what is mounted under the rest.
Any server that speaks ASGI can run it, on trio or asyncio, and any ASGI framework can mount it.

What it declares is given to a `Controller` when it is opened, and from then on it answers for that
controller: what is changed there, by whomever, is answered from that moment on.
"""

from __future__ import annotations

from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from shoal.batching.decorator.block import BatcherBlock
from shoal.batching.failures.exceptions import own_copy
from shoal.core.options.names import suggested
from shoal.http.admin.imports import ImportRule
from shoal.http.app.declarations import Declarations
from shoal.http.app.declaring import DeclaringApp
from shoal.http.app.lifespan import run_lifespan
from shoal.http.app.middleware import check_middleware, with_middleware
from shoal.http.app.pages import Pages
from shoal.http.requests.dispatch import Dispatcher
from shoal.http.requests.endpoint_table import EndpointTable
from shoal.http.requests.exchange import split_path
from shoal.http.requests.routing import NotOpenRoute, Routes
from shoal.http.requests.settings import HttpSettings
from shoal.serving.controller.controller import Controller

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from typing import Never

    from starlette.middleware import Middleware
    from starlette.types import ASGIApp, Receive, Scope, Send

    from shoal.http.app.health import Phase
    from shoal.http.requests.routing import Route
    from shoal.http.requests.settings import OverloadStatus
    from shoal.serving.state.file import StateFile


class App(DeclaringApp):
    """Serves backends and endpoints over HTTP.

    ::

        app = shoal.App()

        @app.endpoint("/embed", max_batch_size=64)
        def embed(texts: list[str]) -> list[Vector]: ...

    Run it with ``shoal serve module:app``, or with any ASGI server. Mounted in another
    application, it is opened by that one's lifespan: ``Starlette(lifespan=app.lifespan,
    routes=[Mount("/ml", app=app)])``. Its own routes are under ``/-/``: ``healthz``, ``readyz``,
    ``metrics``, ``routes``.

    Args:
        max_body_bytes: The largest body that a request may have, in bytes.
        max_json_elements: How many values, keys and containers a body may have that is JSON; fewer
            where most are small arrays and objects, which take more while they are parsed.
        send_timeout_s: How long a client may take to accept one message of an answer, in seconds.
        answer_timeout_s: How long a call with one result may take whose endpoint has no
            ``request_timeout_s``, in seconds; None for no limit. A server does not always hear of
            a client that has left, so no call should wait without an end.
        heartbeat_s: How long a stream may be silent before its client is sent a sign of life, in
            seconds.
        overload_status: The status of an answer to a call that met a full line, 503 or 429.
        retry_after_s: After how many seconds such a client is asked to come again.
        debug: Whether an answer to an internal error shows the traceback.
        middleware: What stands before the endpoints and what is mounted: Starlette's `Middleware`,
            or functions of an ASGI application that give another, the first outermost. The
            application's own routes, under ``/-/``, are not behind it.

    Attributes:
        settings: All of these, as one record.

    Raises:
        TypeError: A setting is unknown, or has the wrong type.
        ValueError: A setting is out of its range.
    """

    def __init__(
        self,
        *,
        max_body_bytes: int = 16 * 2**20,
        max_json_elements: int = 2**18,
        send_timeout_s: float = 10.0,
        answer_timeout_s: float | None = 60.0,
        heartbeat_s: float = 15.0,
        overload_status: OverloadStatus = 503,
        retry_after_s: int = 1,
        debug: bool = False,
        middleware: Sequence[Middleware | Callable[[ASGIApp], ASGIApp]] = (),
        **unknown: Never,
    ) -> None:
        for name in unknown:
            known = (*HttpSettings.__slots__, "middleware")
            hint = suggested(name, known) or f"there are {', '.join(known)}"
            raise TypeError(f"{name!r} is not an option of shoal.App; {hint}")
        self.settings = HttpSettings(
            max_body_bytes=max_body_bytes,
            max_json_elements=max_json_elements,
            send_timeout_s=send_timeout_s,
            answer_timeout_s=answer_timeout_s,
            heartbeat_s=heartbeat_s,
            overload_status=overload_status,
            retry_after_s=retry_after_s,
            debug=debug,
        )
        self.controller: Controller | None = None
        self.state: StateFile | None = None
        self.allowed_modules: Sequence[str] | None = None
        self._phase: Phase = "not open"
        self._declared = Declarations()
        self._dispatcher = Dispatcher(self.settings)
        self._table: EndpointTable | None = None
        self._not_open = NotOpenRoute(self.settings)
        self._routes = Routes()
        check_middleware("middleware", middleware)
        self._entered = with_middleware(middleware, self._respond)
        Pages(self._routes, self._declared, self._dispatcher, self.settings, self._now)

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncGenerator[None]:
        """Opens the application: makes what it declares, and keeps it open.

        Its backends start side by side, but for those of batched functions, which are there before
        what is declared after them starts.

        Leaving closes it: what is in line is run, and after ``graceful_shutdown_timeout_s`` fails.

        Args:
            _app: The application that this one is mounted in, as Starlette passes it; unused.

        Raises:
            RuntimeError: It is open already.
            Exception: What a class raised when it was instantiated, or a batcher when opened.
        """
        if self._is_up():
            raise RuntimeError("the application is open already")
        self._phase = "opening"
        try:
            async with (
                BatcherBlock(told=own_copy),  # a handler must not end the server
                self._controller() as controller,
                self.answering(controller),
            ):
                yield
                # Before the batched functions are taken back: who is in line may call them.
                await controller.shutdown()
        finally:
            self._phase = "closed"

    def _controller(self) -> Controller:
        if self.state is None or self.allowed_modules is None:
            return Controller(self.state)
        return Controller(self.state, ImportRule(self.allowed_modules), self._declared.as_program())

    @asynccontextmanager
    async def answering(self, controller: Controller) -> AsyncGenerator[None]:
        """Answers for a controller that is open already, with what it declares added to that.

        Raises:
            Exception: What was declared could not be made.
        """
        with ExitStack() as lending:
            await self._declared.apply(controller, lending)
            self.controller = controller
            self._table = EndpointTable(controller, self.settings)
            self._phase = "open"
            try:
                yield
            finally:
                self._phase = "closed"

    def begin_drain(self) -> None:
        """Prepares for the end: turns not ready, and has batches wait for company no more.

        Calls are still taken, since clients are sent here until they have heard of it.
        """
        if self._phase == "open":
            self._phase = "draining"
            assert self.controller is not None
            self.controller.drain()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers as an ASGI application."""
        kind = scope["type"]
        if kind == "lifespan":
            await run_lifespan(self.lifespan, receive, send)
        elif kind == "http" and self._routes.at(split_path(scope)[1]) is not None:
            await self._respond(scope, receive, send)
        else:
            await self._entered(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        root, path = split_path(scope)
        routes = self._at(path) if kind == "http" else None
        if routes is None and (mounted := self._routes.mounted_at(path)) is not None:
            prefix, app = mounted
            below = {**scope, "root_path": root + prefix}
            await self._dispatcher.answer_by(app, below, receive, send)
        elif kind == "http":
            await self._dispatcher.answer(scope, receive, send, routes)
        elif kind == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            raise ValueError(f"a Shoal application has no answer to a scope of type {kind!r}")

    def _at(self, path: str) -> dict[str, Route] | None:
        """Returns what answers at a path, by method; None if nothing does."""
        if (page := self._routes.at(path)) is not None:
            return page
        if self._table is not None and self._phase != "closed":
            return self._table.at(path)
        found: dict[str, Route] = {}
        for endpoint in self._declared.endpoints.values():
            if endpoint.path == path:
                found |= dict.fromkeys(endpoint.methods, self._not_open)
        return found or None

    def _is_up(self) -> bool:
        return self._phase in ("opening", "open", "draining")

    def _now(self) -> tuple[Phase, Controller | None]:
        return self._phase, self.controller
