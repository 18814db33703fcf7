"""Chooses what answers a request: a page, an endpoint, or a mounted application.

The endpoints of a controller are routes in each protocol, rebuilt when the endpoints change. A
WebSocket has no method. Where several endpoints are at one path, it is for the one that answers
``GET``, else for the first.
"""

from __future__ import annotations

import logging
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from shoal.core.histogram import NO_ENDPOINT
from shoal.http.requests.dispatch import (
    PathMatch,
    PathTable,
    ProblemRoute,
    Route,
    route_for,
    with_params,
)
from shoal.http.requests.exchange import split_path
from shoal.http.requests.problem import (
    NOT_FOUND,
    NOT_OPEN,
    STARTING,
    Problem,
    Refused,
    problem_json,
    with_retry_after,
)
from shoal.http.requests.protocol import HttpProtocol, protocol_objects
from shoal.serving.names import RESERVED

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from starlette.types import Receive, Scope, Send

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.app.declarations import Declarations
    from shoal.http.requests.call import EndpointCalls
    from shoal.http.requests.dispatch import RouteDispatcher
    from shoal.http.requests.shared_parts import SharedParts
    from shoal.serving.controller.controller import Controller
    from shoal.serving.endpoint import Endpoint

_RouteEntry: TypeAlias = "tuple[str, str, Route]"
_log: Final = logging.getLogger("shoal.http")


def _checked(entries: Iterable[_RouteEntry]) -> list[_RouteEntry]:
    listed = list(entries)
    table = PathTable[Route]()
    for path, method, route in listed:
        if not isinstance(cast("object", route), Route):
            raise TypeError(f"a protocol's route at {path!r} is a Route, not {route!r}")
        table.add(path, (method,), route)
    return listed


class EndpointTable:
    """The routes of one controller's endpoints, rebuilt when the endpoints change."""

    # The first protocol with a route at a path wins, after Shoal's own. What a protocol raises for
    # the existing endpoints is raised here; for a later one it is logged, and has no routes.

    def __init__(
        self, controller: Controller, options: HttpOptions, protocols: Sequence[HttpProtocol] = ()
    ) -> None:
        self._controller = controller
        self._options = options
        self._protocols = [one.routes(controller, options) for one in protocols]
        self.registry = controller.registry
        self.rebuild(strict=True)

    def rebuild(self, *, strict: bool = False) -> None:
        self.version = self.registry.version
        self.routes = PathTable[Route]()
        self.sockets: PathTable[EndpointCalls] = PathTable()
        endpoints = self._controller.endpoints.values()
        self._add_own([one for one in endpoints if one.route is not None])
        for protocol in self._protocols:
            for endpoint in (*endpoints, None):
                try:
                    entries = protocol.besides() if endpoint is None else protocol.of(endpoint)
                    for path, method, route in _checked(entries):
                        self.routes.add(path, (method,), route)
                except Exception:
                    if strict:
                        raise
                    _log.exception("the protocol of %s failed", type(protocol).__qualname__)

    def _add_own(self, endpoints: Sequence[Endpoint]) -> None:
        """Adds the routes of Shoal's own protocol: each endpoint is at its declared path."""
        if not endpoints:
            return  # these load pydantic, so an application without endpoints starts sooner
        from shoal.http.json.endpoint import EndpointRoute, JsonCodec

        routes = [EndpointRoute(one, JsonCodec, self._options) for one in endpoints]
        for one, route in zip(endpoints, routes, strict=True):
            self.routes.add(one.route or "", one.methods, route)
        for route in sorted(routes, key=lambda one: "GET" not in one.calls.endpoint.methods):
            self.sockets.add(route.calls.endpoint.route or "", ("GET",), route.calls)

    def elsewhere(self, path: str) -> Route | None:
        """Returns the refusing route of the protocol that a path without routes belongs to."""
        return next(filter(None, [one.elsewhere(path) for one in self._protocols]), None)


# The sub-protocol of WebSockets that a client asks for.
SUBPROTOCOL: Final = "shoal.v1"

# The prefix of the application's own pages.
PAGES: Final = f"{RESERVED}/"


class AppRouter:
    """Passes each request to the part that answers it: pages, endpoints, then mounts."""

    def __init__(self, declared: Declarations, dispatcher: RouteDispatcher) -> None:
        self.pages = PathTable[Route]()
        self._table: EndpointTable | None = None
        self._declared = declared
        self.dispatcher = dispatcher
        self._shared = dispatcher.shared
        self._options = options = self._shared.options
        self._protocols = protocol_objects(options.protocols)

    def set_controller(self, controller: Controller | None) -> None:
        self._table = None
        if controller is not None:
            self._shared.begin()
            self._table = EndpointTable(controller, self._options, self._protocols)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        path = split_path(scope)[1] if scope.get("root_path") else scope["path"]
        if scope["type"] == "http":
            method = scope["method"]
            match = self.at(path, method)
            if match is not None:
                route = match.routes.get(method) or route_for(method, match.routes)
                if match.params:
                    scope = with_params(scope, match)
                return self.dispatcher.dispatch(scope, receive, send, route)
            if self._declared.mounted_at(path) is None:
                route = self._elsewhere(path, method)
                return self.dispatcher.dispatch(scope, receive, send, route)
        return self._dispatch_other(scope, receive, send)

    def _elsewhere(self, path: str, method: str) -> Route:
        """Returns the route for a path at which nothing is declared or mounted."""
        route: Route | None = None
        if path == "/" and method in ("GET", "HEAD"):
            landing = self.pages.at(path, "GET")
            route = landing and landing.routes["GET"]
        elif self._table is not None:
            route = self._table.elsewhere(path)
        return route or ProblemRoute(NOT_FOUND)

    def at(self, path: str, method: str) -> PathMatch[Route] | None:
        if path.startswith(PAGES):  # not even for an endpoint at "/{any:path}"
            return self.pages.at(path, method)
        table = self._table
        if table is None:
            return self._declared.routed_to(ProblemRoute(NOT_OPEN)).at(path, method)
        if table.version != table.registry.version:
            table.rebuild()
        return table.routes.at(path, method)

    async def refuse_while_starting(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.dispatcher.dispatch(scope, receive, send, ProblemRoute(STARTING))
        elif (await receive())["type"] == "websocket.connect":
            await refuse_socket(self._shared, scope, send, STARTING)

    def declared_path(self, path: str, method: str) -> str | None:
        """Returns the declared path, with its parameters, for a request's path."""
        match = self.at(path, method)
        return None if match is None or not match.path else match.path

    async def _dispatch_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        root, path = split_path(scope)
        kind, mounted = scope["type"], self._declared.mounted_at(path)
        match = None
        if kind == "websocket" and self._table is not None:
            self.at(path, "GET")  # rebuilds the table if the endpoints have changed
            match = self._table.sockets.at(path, "GET")
        if kind == "websocket" and (mounted is None or match is not None):
            await self._handle_socket(scope, receive, send, match)
        elif mounted is not None:
            prefix, app = mounted
            below = {**scope, "root_path": root + prefix}
            await self.dispatcher.call_app(app, below, receive, send)
        else:
            raise ValueError(f"a Shoal application can't answer a scope of type {kind!r}")

    async def _handle_socket(
        self, scope: Scope, receive: Receive, send: Send, match: PathMatch[EndpointCalls] | None
    ) -> None:
        """Refuses a WebSocket, or answers its requests."""
        if (await receive())["type"] != "websocket.connect":
            return
        refuse = partial(refuse_socket, self._shared, scope, send)
        if self._table is None:
            await refuse(NOT_OPEN)
            return
        if match is None:
            await refuse(NOT_FOUND)
            return
        scope = with_params(scope, match)
        calls = match.routes["GET"]
        if SUBPROTOCOL not in scope["subprotocols"]:
            title = "The endpoint does not speak that sub-protocol"
            detail = f'It speaks {SUBPROTOCOL}: new WebSocket(url, "{SUBPROTOCOL}").'
            await refuse(Problem(400, "no-such-subprotocol", title, detail), calls.name)
            return
        # Here, since this loads pydantic, as the endpoints do.
        from shoal.http.websocket.connection import SocketConnection

        try:
            connection = SocketConnection(scope, receive, send, calls, self._shared)
        except Refused as refused:  # a header of the handshake can't be read
            await refuse(refused.problem, calls.name)
            return
        await connection.run(SUBPROTOCOL)


async def refuse_socket(
    shared: SharedParts, scope: Scope, send: Send, problem: Problem, endpoint: str = NO_ENDPOINT
) -> None:
    """Refuses a WebSocket, of which the first message was received, with a problem."""
    # Servers that allow no response to a handshake answer with 403.
    shared.times.count(endpoint, "websocket", problem.status, 0.0)
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": problem.title})
        return
    request_id = shared.new_id()
    problem = with_retry_after(problem, shared.options.retry_after_s)
    media_type, body = problem_json(problem, request_id.decode("ascii"))
    headers = [
        (b"content-type", media_type),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id),
        *problem.headers,
    ]
    start = {"type": "websocket.http.response.start", "status": problem.status, "headers": headers}
    await send(start)
    await send({"type": "websocket.http.response.body", "body": body})


_NEEDED_LATER: Final = (
    "shoal.serving.backends.backend",
    "shoal.replicas.local.task",
    "shoal.http.json.endpoint",
    "shoal.observe.collector",
    "shoal.http.openapi.document",
    "shoal.http.openapi.pages",
    "shoal.http.dashboard.feed",
)


def load_the_rest() -> None:
    # What the first requests need; takes half as long as the start of an empty application.
    # A server calls it in a thread, once clients can connect, so that no request waits for it.
    for module in _NEEDED_LATER:
        import_module(module)
