"""The current endpoints of a controller as routes, in each protocol."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from typing_extensions import override

from shoal.http.requests.codec import Codecs
from shoal.http.requests.protocol import HttpProtocol, ProtocolRoutes
from shoal.http.requests.routing import Found, PathTable, Route
from shoal.serving.names import METHODS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.serving.controller.controller import Controller
    from shoal.serving.endpoints.endpoint import Endpoint
    from shoal.serving.http_options import HttpOptions


class JsonProtocol(HttpProtocol):
    """Shoal's own protocol: each endpoint is at the path that it was given."""

    @override
    def routes(self, controller: Controller, options: HttpOptions) -> ProtocolRoutes:
        return _JsonRoutes(options)


class _JsonRoutes(ProtocolRoutes):
    def __init__(self, options: HttpOptions) -> None:
        # Only with an endpoint: these load pydantic.
        from shoal.http.requests.endpoint import EndpointRoute
        from shoal.http.requests.json_codec import JsonCodec

        self._route = partial(EndpointRoute, codecs=Codecs(JsonCodec), options=options)

    @override
    def of(self, endpoint: Endpoint) -> Iterable[tuple[str, str, Route]]:
        if endpoint.route is not None:
            route = self._route(endpoint)
            for method in endpoint.methods:
                yield endpoint.route, method, route


class EndpointTable:
    """The routes of one controller's endpoints, rebuilt when the endpoints change.

    Args:
        controller: The controller.
        options: The options of the server.
        protocols: The protocols besides Shoal's own. If two have a route at a path, the first
            counts, after Shoal's own.
    """

    def __init__(
        self, controller: Controller, options: HttpOptions, protocols: Sequence[HttpProtocol] = ()
    ) -> None:
        self._controller = controller
        self._options = options
        self._spoken = (JsonProtocol(), *protocols)
        self._has_others = bool(protocols)
        self._version = controller.version
        self._routes = self._current_routes()

    def at(self, path: str, method: str) -> Found[Route] | None:
        """Returns the routes for a request; see `PathTable.at`."""
        if self._controller.version != self._version:
            self._version = self._controller.version
            self._routes = self._current_routes()
        return self._routes.at(path, method)

    def elsewhere(self, path: str) -> Found[Route] | None:
        """Returns the route of the protocol to which a path without routes belongs, if any."""
        for protocol in self._protocols if self._has_others else ():
            route = protocol.elsewhere(path)
            if route is not None:
                return Found(dict.fromkeys(METHODS, route), {})
        return None

    @cached_property
    def _protocols(self) -> list[ProtocolRoutes]:
        return [one.routes(self._controller, self._options) for one in self._spoken]

    def _current_routes(self) -> PathTable[Route]:
        routes = PathTable[Route]()
        endpoints = self._controller.endpoints.values()
        for protocol in self._protocols if endpoints or self._has_others else ():
            for endpoint in endpoints:
                for path, method, route in protocol.of(endpoint):
                    routes.add(path, (method,), route)
            for path, method, route in protocol.besides():
                routes.add(path, (method,), route)
        return routes
