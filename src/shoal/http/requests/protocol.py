"""The contract of a protocol: its routes, beside Shoal's own at each endpoint's path.

An `App` speaks the protocols in its option ``protocols``, as names or as objects. Each protocol of
this package has a folder of its own, with a codec and its routes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING

from shoal.asgi.option_checks import PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.requests.dispatch import Route
    from shoal.serving.controller.controller import Controller
    from shoal.serving.endpoint import Endpoint


class ProtocolRoutes:
    """The routes of one protocol for one controller; `of` or `besides` yields them."""

    def of(self, endpoint: Endpoint) -> Iterable[tuple[str, str, Route]]:
        """Yields the path, the method and the route of each way to call an endpoint.

        Nothing if requests name the endpoint in their body.
        """
        return ()

    def besides(self) -> Iterable[tuple[str, str, Route]]:
        """Yields the routes that belong to no endpoint, such as a list of models."""
        return ()

    def elsewhere(self, path: str) -> Route | None:
        """Returns the route that refuses requests at a path that has no route.

        None if the path is not the protocol's, so that Shoal's own refuses them. What the user has
        mounted at the path comes first.
        """
        return None


class HttpProtocol(ABC):
    """A protocol that an application speaks.

    Attributes:
        title: Its name for people, such as ``"OpenAI's HTTP API"``; the name of the class by
            default.
        start: A path with an overview of the protocol, for the page at ``/``; empty for none.
    """

    title: str = ""
    start: str = ""

    @abstractmethod
    def routes(self, controller: Controller, options: HttpOptions) -> ProtocolRoutes:
        """Returns the protocol's routes.

        Args:
            controller: The controller whose endpoints are called.
            options: The options of the server.
        """


def protocol_objects(protocols: Sequence[str | HttpProtocol]) -> list[HttpProtocol]:
    """Returns the protocol objects; names were checked before."""
    objects: list[HttpProtocol] = []
    for one in protocols:
        if isinstance(one, str):
            module, _, cls = PROTOCOLS[one].partition(":")
            objects.append(getattr(import_module(module), cls)())
        else:
            objects.append(one)
    return objects
