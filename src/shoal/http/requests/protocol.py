"""The contract of a protocol: its routes beside Shoal's own at each endpoint's path.

An `App` speaks the protocols in its option ``protocols``, as names or as objects. Each protocol of
this package has a folder of its own. Its routes make calls with `EndpointCalls`, under which they
count the request (`Exchange.count_under`). A protocol whose requests have one item each needs only
a `Codec`, for an `EndpointRoute`: it reads the item, writes the response, and writes the messages
of a stream and its end. The rest of a call, such as routing, deadlines and cancellation, is the
same for all protocols and lives in `shoal.http.requests.call`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.asgi.option_checks import PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.requests.dispatch import Route
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.problem import Problem
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


class StreamForm(ABC):
    media_type: bytes
    # A message that readers skip.
    heartbeat: bytes
    headers: Sequence[tuple[bytes, bytes]] = ()
    # Sent before the first message.
    start: bytes = b""
    # Whether `item` may run the user's code even for plain items.
    runs_users_code: bool = False
    # Nothing follows the last item: a call that has not ended is cancelled.
    is_over: bool = False
    # A request with ``Last-Event-ID`` gets a 204, which ends the reconnections of an EventSource.
    stops_reconnection: bool = False

    def first_heartbeat(self) -> bytes:
        return self.heartbeat

    @abstractmethod
    def item(self, value: Any) -> bytes:
        """Returns the message of an item, possibly empty; called once for each item."""

    @abstractmethod
    def end(self) -> bytes: ...

    @abstractmethod
    def error(self, problem: Problem, request_id: str) -> bytes: ...


class Codec(ABC):
    """Reads the requests, and writes the responses, of one endpoint's code in one protocol."""

    # Yields the items of a body that has many; None if the protocol has one in each.
    lines: Callable[[Exchange, bytes], Iterator[Any]] | None = None
    # Makes an item of a body without its request; None if it can't.
    read_alone: Callable[[Any, bytes], Any] | None = None
    decoder = 0  # the number of a front end's decoder for it, once it was described

    @abstractmethod
    def item(self, exchange: Exchange, body: bytes) -> Any:
        """Returns a tuple for several parameters; raises `Refused` if the request does not fit."""

    @abstractmethod
    def respond(self, exchange: Exchange, result: Any) -> Awaitable[None]:
        """Raises TypeError if the result can't be written."""

    @abstractmethod
    def stream(self, exchange: Exchange) -> StreamForm: ...


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
