"""The current endpoints of a controller as routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.http.requests.endpoint import EndpointRoute
from shoal.http.requests.readers import Readers

if TYPE_CHECKING:
    from shoal.http.requests.routing import Route
    from shoal.http.requests.settings import HttpSettings
    from shoal.serving.controller.controller import Controller


class EndpointTable:
    """The routes of one controller's endpoints, rebuilt when the endpoints change.

    Attributes:
        readers: The readers that make items from bodies.
    """

    def __init__(self, controller: Controller, settings: HttpSettings) -> None:
        self.readers = Readers()
        self._controller = controller
        self._settings = settings
        self._version = -1
        self._routes: dict[str, dict[str, Route]] = {}

    def at(self, path: str) -> dict[str, Route] | None:
        """Returns the routes at a path by method; None if there are none."""
        controller = self._controller
        if controller.version != self._version:
            self._version = controller.version
            self._routes = {
                route: {
                    method: EndpointRoute(endpoint, self.readers, self._settings)
                    for method, endpoint in methods.items()
                }
                for route, methods in controller.routes.items()
            }
        return self._routes.get(path)
