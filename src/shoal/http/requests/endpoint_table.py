"""The current endpoints of a controller as routes, in each protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.http.requests.codec import Codecs
from shoal.http.requests.endpoint import EndpointRoute
from shoal.http.requests.json_codec import JsonCodec
from shoal.http.requests.routing import PathTable, Route

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.http.requests.routing import Found
    from shoal.serving.controller.controller import Controller
    from shoal.serving.endpoints.endpoint import Endpoint
    from shoal.serving.http_options import HttpOptions


class JsonRoutes:
    """The routes of Shoal's own protocol: each endpoint is at the path that it was given."""

    def __init__(self, options: HttpOptions) -> None:
        self._codecs = Codecs(JsonCodec)
        self._options = options

    def of(self, endpoint: Endpoint) -> Iterable[tuple[str, str, Route]]:
        """Yields the path, the method and the route of each way to call an endpoint."""
        if endpoint.route is not None:
            route = EndpointRoute(endpoint, self._codecs, self._options)
            for method in endpoint.methods:
                yield endpoint.route, method, route


PROTOCOLS = (JsonRoutes,)
"""The protocols in which endpoints are served; if two have a route at a path, the first counts."""


class EndpointTable:
    """The routes of one controller's endpoints, rebuilt when the endpoints change."""

    def __init__(self, controller: Controller, options: HttpOptions) -> None:
        self._protocols = [make(options) for make in PROTOCOLS]
        self._controller = controller
        self._version = -1
        self._routes = PathTable[Route]()

    def at(self, path: str, method: str) -> Found[Route] | None:
        """Returns the routes for a request; see `PathTable.at`."""
        controller = self._controller
        if controller.version != self._version:
            self._version = controller.version
            self._routes = PathTable[Route]()
            for protocol in self._protocols:
                for endpoint in controller.endpoints.values():
                    for of_path, of_method, route in protocol.of(endpoint):
                        self._routes.add(of_path, (of_method,), route)
        return self._routes.at(path, method)
