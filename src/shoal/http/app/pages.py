"""The application's own pages under ``/-/``, for operators.

========================  ==========================================================================
``/-/healthz``            200 while the process answers at all
``/-/readyz``             200 while every backend can take calls and nothing drains, else 503; with
                          the state of each endpoint
``/-/metrics``            the metrics, for Prometheus
``/-/routes``             the endpoints and mounted applications, and their paths
========================  ==========================================================================
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import orjson

from shoal.http.requests.exchange import JSON
from shoal.http.requests.routing import Page
from shoal.serving.backends.status import state_of
from shoal.serving.names import RESERVED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from prometheus_client import CollectorRegistry

    from shoal.core.counters import BatcherStatistics
    from shoal.http.app.declarations import Declarations
    from shoal.http.requests.dispatch import RouteDispatcher
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.payload import Reader
    from shoal.http.requests.routing import Mounts, PathTable, Route
    from shoal.serving.controller.controller import Controller
    from shoal.serving.endpoints.endpoint import Endpoint
    from shoal.serving.http_options import HttpOptions
    from shoal.serving.status import Status

Phase = Literal["not open", "opening", "open", "draining", "closed"]
"""The phase of an application's life."""

_FRESH = ((b"cache-control", b"no-store"),)


class Pages:
    """The pages of an application.

    Args:
        mounts: The application's mounted applications.
        declared: The application's declarations.
        dispatcher: The dispatcher that counts answers and times streams.
        settings: The application's settings.
        now: Returns the application's phase, and its controller, or None if it has had none.
    """

    def __init__(
        self,
        mounts: Mounts,
        declared: Declarations,
        dispatcher: RouteDispatcher,
        settings: HttpOptions,
        now: Callable[[], tuple[Phase, Controller | None]],
    ) -> None:
        self._mounts = mounts
        self._declared = declared
        self._settings = settings
        self._now = now
        self._dispatcher = dispatcher

    def add_to(self, table: PathTable[Route]) -> None:
        """Adds the pages to a table of routes."""
        pages: dict[str, Callable[[Exchange], Awaitable[None]]] = {
            "healthz": self._answer_alive,
            "readyz": self._answer_ready,
            "metrics": self._answer_metrics,
            "routes": self._answer_routes,
        }
        for name, answer in pages.items():
            table.add(f"{RESERVED}/{name}", ("GET",), Page(answer))

    def _statistics(self) -> Iterator[tuple[str, BatcherStatistics]]:
        _, controller = self._now()
        if controller is not None:
            for backend in controller.backends.values():
                for method_batcher in backend.method_batchers.values():
                    yield method_batcher.batcher.name, method_batcher.batcher.statistics()

    def _status(self) -> Status | None:
        _, controller = self._now()
        return None if controller is None else controller.status_now()

    async def _answer_alive(self, exchange: Exchange) -> None:
        await exchange.answer(200, JSON, b'{"status":"alive"}', _FRESH)

    async def _answer_ready(self, exchange: Exchange) -> None:
        phase, controller = self._now()
        endpoints: Mapping[str, Endpoint] = {} if controller is None else controller.endpoints
        debug = self._settings.debug
        states = {name: _state(endpoint, debug=debug) for name, endpoint in endpoints.items()}
        stopped = [name for name, state in states.items() if not state["alive"]]
        if phase == "open" and stopped:
            status = f"not ready: {', '.join(stopped)}"
        else:
            status = "ready" if phase == "open" else phase
        body = orjson.dumps({"status": status, "endpoints": states})
        await exchange.answer(200 if status == "ready" else 503, JSON, body, _FRESH)

    @cached_property
    def _registry(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry

        from shoal.observe.collector import ShoalCollector

        registry = CollectorRegistry()
        counted = self._dispatcher
        registry.register(
            ShoalCollector(self._statistics, counted.answers, counted.streams, self._status)
        )
        return registry

    async def _answer_metrics(self, exchange: Exchange) -> None:
        from prometheus_client.exposition import choose_encoder

        accept = exchange.headers.get(b"accept", b"").decode("latin-1")
        encode, media_type = choose_encoder(accept)
        await exchange.answer(200, media_type.encode("ascii"), encode(self._registry), _FRESH)

    async def _answer_routes(self, exchange: Exchange) -> None:
        phase, controller = self._now()
        if controller is None or phase not in ("open", "draining"):
            routes = [
                _route(e.name, e.path, e.methods, e.reader, streams=bool(e.code and e.code.streams))
                for e in self._declared.endpoints.values()
            ]
        else:
            routes = [_route_of(endpoint) for endpoint in controller.endpoints.values()]
        mounts = [prefix or "/" for prefix in self._mounts.by_prefix]
        body = orjson.dumps({"endpoints": routes, "mounts": mounts})
        await exchange.answer(200, JSON, body, _FRESH)


def _route_of(endpoint: Endpoint) -> dict[str, Any]:
    from shoal.http.requests.payload import reader_for

    for backend in endpoint.backends():
        method_batcher = backend.method_batchers.get("__call__")
        if method_batcher is not None:
            try:
                reader = reader_for(method_batcher.batcher.signature)
            except TypeError:  # it can be called by handles only, even if it has a route
                reader = None
            return _route(
                endpoint.name,
                endpoint.route,
                endpoint.methods,
                reader,
                streams=method_batcher.streams,
            )
    return _route(endpoint.name, endpoint.route, endpoint.methods, None, streams=False)


def _route(
    name: str,
    path: str | None,
    methods: Sequence[str],
    reader: Reader | None,
    *,
    streams: bool,
) -> dict[str, Any]:
    return {
        "path": path,
        "methods": methods,
        "name": name,
        "takes": None if reader is None else reader.takes,
        "streams": streams,
    }


def _state(endpoint: Endpoint, *, debug: bool) -> dict[str, Any]:
    backends = {backend.tag: backend for backend in endpoint.backends()}
    words = {tag: state_of(backend) for tag, backend in backends.items()}
    alive = all(word in ("ready", "degraded") for word in words.values())
    state: dict[str, Any] = {
        "path": endpoint.route,
        "state": "held" if not words else "open" if alive else "not ready",
        "alive": alive,
        "queued": endpoint.held + sum([b.queued for b in backends.values()]),
        "running": sum([b.running for b in backends.values()]),
        "backends": words,
    }
    for backend in backends.values():
        failure = backend.failure
        if failure is not None:
            # The text of an error is internal; its type is enough to find it in the log.
            state["failure"] = repr(failure) if debug else type(failure).__name__
    return state
