"""`App`: handlers as HTTP endpoints, in one plain ASGI application.

It is an ASGI application and no framework: a table of paths, and what is mounted under the rest.
Any server that speaks ASGI can run it, on trio or asyncio, and any ASGI framework can mount it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import CollectorRegistry

from shoal.http import health
from shoal.http.asgi import split_path
from shoal.http.declaring import RESERVED, checked_methods, checked_name, checked_path
from shoal.http.dispatch import Dispatcher
from shoal.http.endpoint import Endpoint
from shoal.http.keeping import kept_open
from shoal.http.lifespan import run_lifespan
from shoal.http.routing import Page, Routes
from shoal.http.settings import HttpSettings
from shoal.http.sources import source_of
from shoal.observe.metrics import ShoalCollector

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
    from typing import Unpack

    from starlette.types import ASGIApp, Receive, Scope, Send

    from shoal.batching.handlers import Fill
    from shoal.core.counters import BatcherStatistics
    from shoal.core.option_keywords import OptionKeywords
    from shoal.http.asgi import Exchange
    from shoal.http.settings import OverloadStatus

H = TypeVar("H", bound="Callable[..., Any]")


class App:
    """Serves handlers over HTTP.

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
        send_timeout_s: How long a client may take to accept one message of an answer, in seconds.
        answer_timeout_s: How long a call with one result may take whose endpoint has no
            ``request_timeout_s``, in seconds; None for no limit. A server does not always hear of
            a client that has left, so no call should wait without an end.
        heartbeat_s: How long a stream may be silent before its client is sent a sign of life, in
            seconds.
        overload_status: The status of an answer to a call that met a full line, 503 or 429.
        retry_after_s: After how many seconds such a client is asked to come again.
        debug: Whether an answer to an internal error shows the traceback.

    Raises:
        TypeError: A setting has the wrong type.
        ValueError: A setting is out of its range.
    """

    def __init__(
        self,
        *,
        max_body_bytes: int = 16 * 2**20,
        send_timeout_s: float = 10.0,
        answer_timeout_s: float | None = 60.0,
        heartbeat_s: float = 15.0,
        overload_status: OverloadStatus = 503,
        retry_after_s: int = 1,
        debug: bool = False,
    ) -> None:
        self._settings = HttpSettings(
            max_body_bytes=max_body_bytes,
            send_timeout_s=send_timeout_s,
            answer_timeout_s=answer_timeout_s,
            heartbeat_s=heartbeat_s,
            overload_status=overload_status,
            retry_after_s=retry_after_s,
            debug=debug,
        )
        self._phase: health.Phase = "not open"
        self._endpoints: list[Endpoint] = []
        self._dispatcher = Dispatcher(self._settings)
        self._registry = CollectorRegistry()
        self._registry.register(ShoalCollector(self._statistics, self._dispatcher.answers))
        self._routes = Routes()
        for name, answer in self._pages():
            self._routes.add(f"{RESERVED}/{name}", ("GET", "HEAD"), Page(answer))

    def endpoint(
        self,
        path: str,
        *,
        methods: tuple[str, ...] = ("POST",),
        name: str | None = None,
        fill: Fill = "closed",
        streams: bool = False,
        **options: Unpack[OptionKeywords],
    ) -> Callable[[H], H]:
        """Declares an endpoint; decorates its handler, which stays as it is.

        The handler is whatever `shoal.Batcher` takes; or a class without arguments, which is
        instantiated in a worker thread when the application opens, and whose ``__call__`` is the
        handler; or a function that is decorated with `shoal.batch`, whose options hold under those
        that are given here. Its annotations say what a request's body is; see `shoal.http.payload`.
        A generator handler is answered by a stream; see `shoal.http.streaming`.

        Args:
            path: Where it is; plain text, without parameters.
            methods: The methods that it answers.
            name: What to call it in messages and metrics; the handler's name by default.
            fill: When a batch is complete, as in `shoal.Batcher`.
            streams: Whether calls to an open batch are answered by streams.
            **options: As in `BatchOptions`. ``max_queued_requests`` is 1,024 unless given.

        Raises:
            TypeError: The handler is none, its annotation is none that JSON can be checked against,
                or an argument has the wrong type.
            ValueError: The path or the name is taken or is none, or an option is out of its range.
            RuntimeError: The application is open.
        """
        line = f'@app.endpoint("/{str(path).strip("/")}")'
        checked_path(path, line)
        capitals = checked_methods(methods)
        given: dict[str, Any] = {**options}
        if fill != "closed" or streams:
            given |= {"fill": fill, "streams": streams}

        def declare(handler: H) -> H:
            self._declare(handler, path, capitals, name, given)
            return handler

        return declare

    def mount(self, path: str, app: ASGIApp) -> None:
        """Serves another ASGI application for all paths under one, but for the endpoints'.

        Its lifespan is not run: what it needs open is opened by whoever serves this application.

        Args:
            path: The prefix of its paths; ``"/"`` for all that nothing else answers.
            app: The application.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: The path is none, or is taken by another mount.
        """
        prefix = checked_path(path, 'app.mount("/static", application)').rstrip("/")
        if not callable(app):
            raise TypeError(f"mount() takes an ASGI application, not {app!r}")
        self._routes.mount(prefix, app)

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncGenerator[None]:
        """Opens the application: loads its models and keeps its batchers open.

        Leaving closes them: what is in line is run, and after ``graceful_shutdown_timeout_s``
        fails.

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
            async with kept_open(self._endpoints):
                self._phase = "open"
                yield
        finally:
            self._phase = "closed"

    def begin_drain(self) -> None:
        """Prepares for the end: turns not ready, and has batches wait for company no more.

        Calls are still taken, since clients are sent here until they have heard of it.
        """
        if self._phase == "open":
            self._phase = "draining"
            for endpoint in self._endpoints:
                if endpoint.batcher is not None:
                    endpoint.batcher.drain()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers as an ASGI application."""
        kind = scope["type"]
        if kind == "lifespan":
            await run_lifespan(self.lifespan, receive, send)
            return
        root, path = split_path(scope)
        routes = self._routes.at(path) if kind == "http" else None
        if routes is None and (mounted := self._routes.mounted_at(path)) is not None:
            prefix, app = mounted
            await app({**scope, "root_path": root + prefix}, receive, send)
        elif kind == "http":
            await self._dispatcher.answer(scope, receive, send, routes)
        elif kind == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            raise ValueError(f"a Shoal application has no answer to a scope of type {kind!r}")

    def _declare(
        self,
        handler: Any,
        path: str,
        methods: tuple[str, ...],
        name: str | None,
        options: Mapping[str, Any],
    ) -> None:
        if self._is_up():
            raise RuntimeError(f"{path}: endpoints are declared before the application is opened")
        self._routes.check_free(path, methods)
        for other in self._endpoints:
            if other.source.is_for(handler):
                raise ValueError(
                    f"{handler!r} has one batcher, and {other.path} serves it already; decorate "
                    "the handler a second time for another"
                )
        source = source_of(handler, options)
        taken = {endpoint.name: endpoint.path for endpoint in self._endpoints}
        endpoint = Endpoint(
            checked_name(source.name if name is None else name, path, taken),
            path,
            methods,
            source,
            self._settings,
        )
        self._endpoints.append(endpoint)
        self._routes.add(path, methods, endpoint)

    def _is_up(self) -> bool:
        return self._phase in ("opening", "open", "draining")

    def _statistics(self) -> Iterator[tuple[str, BatcherStatistics]]:
        for endpoint in self._endpoints:
            if endpoint.batcher is not None:
                yield endpoint.name, endpoint.batcher.statistics()

    def _pages(self) -> Iterator[tuple[str, Callable[[Exchange], Awaitable[None]]]]:
        yield "healthz", health.answer_alive
        yield "readyz", self._answer_ready
        yield "metrics", partial(health.answer_metrics, registry=self._registry)
        yield "routes", self._answer_routes

    async def _answer_ready(self, exchange: Exchange) -> None:
        await health.answer_ready(
            exchange, self._phase, self._endpoints, debug=self._settings.debug
        )

    async def _answer_routes(self, exchange: Exchange) -> None:
        await health.answer_routes(exchange, self._endpoints, self._routes.mounts)
