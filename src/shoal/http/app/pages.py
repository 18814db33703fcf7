"""The application's own pages: under ``/-/``, and at ``/`` if nothing else is there.

========================  ==========================================================================
``/-/healthz``            200 while the process answers at all, and has not lost Ray for long
``/-/readyz``             200 while every backend can take calls and nothing drains, else 503; with
                          the state of each endpoint
``/-/metrics``            the metrics, for Prometheus
``/-/routes``             the endpoints and mounted applications, and their paths
``/-/openapi.json``       how to call the endpoints, in OpenAPI
``/-/docs``               the same as a page, with its files
``/-/dashboard``          a live page about the server, with its files and its feed
``/``                     links to these, and how to call each endpoint
========================  ==========================================================================

The first four are for operators and their probes. Middleware wraps the others as it does the
endpoints: most are for callers, and the operator's middleware also limits who sees a public
dashboard.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from shoal.asgi.extensions import SERVER
from shoal.errors import ReplicaNotStarted
from shoal.failures.held import shown
from shoal.http.app.lifespan import unwrapped
from shoal.http.dashboard.dashboard import DASHBOARD, Dashboard
from shoal.http.openapi.served import Documented, ServedEndpoint, text_of
from shoal.http.requests.dispatch import Page
from shoal.http.requests.exchange import FRESH, JSON
from shoal.http.requests.protocol import protocol_objects
from shoal.serving.names import RESERVED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from prometheus_client import CollectorRegistry
    from starlette.types import Scope

    from shoal.asgi.extensions import CountedConnections
    from shoal.core.counters import BatcherStatistics
    from shoal.core.histogram import RequestTimes
    from shoal.http.app.declarations import Declarations
    from shoal.http.openapi.document import Document
    from shoal.http.requests.dispatch import PathTable, Route
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.shared_parts import SharedParts
    from shoal.observe.collector import ShoalCollector
    from shoal.serving.backends.managed import ReplicaFailures
    from shoal.serving.controller.controller import Controller
    from shoal.serving.endpoint import Endpoint
    from shoal.status import Status

# The pages that middleware does not wrap: probes send no credentials.
OUTSIDE: Final = frozenset(
    f"{RESERVED}/{name}" for name in ("healthz", "readyz", "metrics", "routes")
)

VIEWER_FILES: Final = ("swagger-ui-bundle.js", "swagger-ui.css", "start.js")


class Pages:
    """The pages of an application; `now` returns its phase, and its controller if there is one."""

    def __init__(
        self,
        declared: Declarations,
        shared: SharedParts,
        now: Callable[[], tuple[Phase, Controller | None]],
    ) -> None:
        self._declared = declared
        self._options = options = shared.options
        self._now = now
        self._shared = shared
        self.dashboard = Dashboard(options, lambda: now()[1])

    def add_to(self, table: PathTable[Route]) -> None:
        pages: dict[str, Callable[[Exchange], Awaitable[None]]] = {
            "healthz": self._handle_alive,
            "readyz": self._handle_ready,
            "metrics": self._handle_metrics,
            "routes": self._handle_routes,
        }
        if self._options.openapi:
            pages["openapi.json"] = self._handle_document
            pages["docs"] = self._handle_viewer
            pages |= {f"docs/{name}": self._handle_file for name in VIEWER_FILES}
        for name, handle in pages.items():
            table.add(f"{RESERVED}/{name}", ("GET",), Page(handle))
        if self._options.dashboard is not False:
            public = self.dashboard.pages(self.dashboard.check_public, is_public=True)
            for path, page in public.items():
                table.add(path, ("GET",), page)
        if self._options.landing_page:
            table.add("/", ("GET",), Page(self._handle_landing))

    def loading(self) -> list[str]:
        return [*self._declared.loading]

    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = orjson.loads(self._document.as_json(self._endpoints(), ""))
        return document

    @property
    def _controller(self) -> Controller | None:
        return self._now()[1]

    def _statistics(self) -> Iterator[tuple[str, str, BatcherStatistics]]:
        if self._controller is not None:
            yield from self._controller.statistics()

    def _times(self) -> Iterator[RequestTimes]:
        yield self._shared.times
        if self._controller is not None:
            yield self._controller.times

    def _starts(self) -> dict[str, ReplicaFailures]:
        if self._controller is None:
            return {}
        return {tag: one.supervisor.failures for tag, one in self._controller.backends.items()}

    def _status(self) -> Status | None:
        return None if self._controller is None else self._controller.status_now()

    async def _handle_alive(self, exchange: Exchange) -> None:
        controller = self._controller
        if controller is not None:
            for tag, backend in controller.backends.items():
                supervisor = backend.supervisor
                if not supervisor.wanted or supervisor.ready:
                    continue  # its last failure may be an old one
                failure = supervisor.failures.last
                if isinstance(failure, ReplicaNotStarted) and failure.needs_restart:
                    body = orjson.dumps({"status": f"lost: the backend {tag} can't reach Ray"})
                    await exchange.respond(503, JSON, body, FRESH)
                    return
        await exchange.respond(200, JSON, b'{"status":"alive"}', FRESH)

    async def _handle_ready(self, exchange: Exchange) -> None:
        phase, controller = self._now()
        endpoints: Mapping[str, Endpoint] = {} if controller is None else controller.endpoints
        debug = self._options.debug
        states = {name: _state(endpoint, debug=debug) for name, endpoint in endpoints.items()}
        stopped = [name for name, state in states.items() if not state["alive"]]
        if phase == "open" and stopped:
            status = f"not ready: {', '.join(stopped)}"
        else:
            status = "ready" if phase == "open" else phase
        described: dict[str, Any] = {"status": status, "endpoints": states}
        if phase == "opening":
            described["loading"] = self.loading()
        body = orjson.dumps(described)
        await exchange.respond(200 if status == "ready" else 503, JSON, body, FRESH)

    @cached_property
    def _collector(self) -> ShoalCollector:
        from shoal.observe.collector import ShoalCollector

        streams = self._shared.streams
        return ShoalCollector(self._statistics, self._times, streams, self._status, self._starts)

    @cached_property
    def registry(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry, ProcessCollector

        registry = CollectorRegistry()
        registry.register(self._collector)
        ProcessCollector(registry=registry)
        return registry

    async def _handle_metrics(self, exchange: Exchange) -> None:
        from prometheus_client.exposition import choose_encoder

        collector, controller = self._collector, self._controller
        if controller is not None:
            self._shared.keep_counts_of(controller.endpoints)
            controller.times.keep(controller.endpoints)
            readings = await controller.devices.meter.read()
            collector.gpus = controller.devices.status(readings)
        accept = exchange.headers.get(b"accept", b"").decode("latin-1")
        encode, media_type = choose_encoder(accept)
        extensions: dict[str, Any] = exchange.scope.get("extensions") or {}
        listeners: Mapping[str, CountedConnections] = extensions.get(SERVER, {})
        for listener in listeners.values():
            await listener.refresh()
        collector.listeners = listeners
        await exchange.respond(200, media_type.encode("ascii"), encode(self.registry), FRESH)

    async def _handle_routes(self, exchange: Exchange) -> None:
        body = orjson.dumps({"endpoints": self._routes(), "mounts": self._prefixes()})
        await exchange.respond(200, JSON, body, FRESH)

    def _endpoints(self) -> list[ServedEndpoint]:
        phase, controller = self._now()
        if controller is None or phase not in ("open", "draining"):
            return [_of_declaration(self._declared, name) for name in self._declared.endpoints]
        documented = self._declared.documented
        return [
            _of_endpoint(endpoint, documented.get(name, _NOTHING))
            for name, endpoint in controller.endpoints.items()
        ]

    def _routes(self) -> list[dict[str, Any]]:
        return [_route_of(endpoint) for endpoint in self._endpoints()]

    def _prefixes(self) -> list[str]:
        return [prefix or "/" for prefix in self._declared.mounts]

    async def _handle_document(self, exchange: Exchange) -> None:
        body = self._document.as_json(self._endpoints(), root_of(exchange.scope))
        await exchange.respond(200, JSON, body, FRESH)

    @cached_property
    def _document(self) -> Document:
        from shoal.http.openapi.document import Document

        return Document(self._options)

    async def _handle_viewer(self, exchange: Exchange) -> None:
        from shoal.http.openapi.pages import viewer_page

        root = root_of(exchange.scope)
        mounted = {prefix: unwrapped(app) for prefix, app in self._declared.mounts.items()}
        await exchange.respond(200, *viewer_page(self._options.title, mounted, root))

    async def _handle_file(self, exchange: Exchange) -> None:
        from shoal.http.openapi.pages import page_file

        accept = exchange.headers.get(b"accept-encoding", b"")
        name = exchange.scope["path"].rpartition("/")[2]
        await exchange.respond(200, *page_file("shoal.http.openapi", name, accept, 3600))

    async def _handle_landing(self, exchange: Exchange) -> None:
        from shoal.http.openapi.pages import landing_page

        scope = exchange.scope
        host = exchange.headers.get(b"host", b"")
        page = landing_page(
            self._options.title,
            dict(self._links(scope)),
            self._routes(),
            self.document()["paths"] if self._options.openapi else {},
            (scope.get("scheme", "http"), host, root_of(scope)),
        )
        await exchange.respond(200, *page)

    def _links(self, scope: Scope) -> Iterator[tuple[str, str]]:
        """Yields the name and the path of each page that the client may see."""
        if self._options.openapi:
            yield from (("docs", f"{RESERVED}/docs"), ("openapi", f"{RESERVED}/openapi.json"))
        if self.dashboard.is_public_to(scope):
            yield "dashboard", DASHBOARD
        for name, page in (("health", "readyz"), ("metrics", "metrics"), ("routes", "routes")):
            yield name, f"{RESERVED}/{page}"
        for protocol in protocol_objects(self._options.protocols):
            if start := getattr(protocol, "start", ""):
                yield getattr(protocol, "title", "") or type(protocol).__name__, start
        for prefix in self._prefixes():
            yield prefix, prefix


def root_of(scope: Scope) -> str:
    """Returns the path at which the application is mounted, without a slash at its end."""
    root: str = scope.get("root_path", "")
    return root.rstrip("/")


def _route_of(endpoint: ServedEndpoint) -> dict[str, Any]:
    return {
        "path": endpoint.path,
        "methods": endpoint.methods,
        "name": endpoint.name,
        "takes": _takes(endpoint),
        "streams": endpoint.streams,
    }


def _takes(endpoint: ServedEndpoint) -> str | None:
    """Returns None if the kind of an endpoint's input is not known here."""
    if endpoint.decodes:
        return "request"
    if endpoint.signature is None:
        return None
    from shoal.http.json.payload import reader_for

    try:
        return reader_for(endpoint.signature).takes
    except TypeError:  # only handles can call it, even if it has a route
        return None


def _state(endpoint: Endpoint, *, debug: bool) -> dict[str, Any]:
    backends = endpoint.backends
    words = {tag: backend.state for tag, backend in backends.items()}
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
            state["failure"] = shown(failure) if debug else type(failure).__name__
    return state


Phase = Literal["not open", "opening", "open", "draining", "closed"]

_NOTHING: Final = Documented()


def _of_declaration(declared: Declarations, name: str) -> ServedEndpoint:
    endpoint, code = declared.endpoints[name], declared.code.get(name)
    return ServedEndpoint(
        name=name,
        path=endpoint.route,
        methods=endpoint.methods,
        signature=None if code is None else code.signature,
        streams=code is not None and code.streams,
        priority_levels=1 if code is None else code.config.given().get("priority_levels", 1),
        text="" if code is None else text_of(code.definition.target),
        documented=declared.documented[name],
        decodes=code is not None and code.config.decode is not None,
        encodes=code is not None and code.config.encode is not None,
    )


def _of_endpoint(endpoint: Endpoint, documented: Documented) -> ServedEndpoint:
    """Describes an endpoint by the first of its backends with known code."""
    served = ServedEndpoint(
        name=endpoint.name, path=endpoint.route, methods=endpoint.methods, documented=documented
    )
    if (known := endpoint.known()) is None:
        return served
    backend, method_batcher = known
    return replace(
        served,
        signature=method_batcher.batcher.signature,
        streams=method_batcher.streams,
        priority_levels=method_batcher.batcher.options.priority_levels,
        text=text_of(backend.definition.target),
        decodes=backend.config.decode is not None,
        encodes=backend.config.encode is not None,
    )
