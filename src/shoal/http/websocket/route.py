"""Makes the connections to one endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.http.requests.call import EndpointCalls
from shoal.http.requests.endpoint import call_headers
from shoal.http.websocket.connection import SocketConnection

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from shoal.http.requests.dispatch import RouteDispatcher
    from shoal.serving.endpoints.endpoint import Endpoint


class SocketRoute:
    """What the connections to one endpoint share.

    Args:
        endpoint: The endpoint.
        dispatcher: What all requests to the application share.

    Attributes:
        name: The endpoint's name.
    """

    def __init__(self, endpoint: Endpoint, dispatcher: RouteDispatcher) -> None:
        self.name = endpoint.name
        self._calls = EndpointCalls(endpoint, dispatcher.settings)
        self._dispatcher = dispatcher

    def connection(self, scope: Scope, receive: Receive, send: Send) -> SocketConnection:
        """Returns a connection, which is yet to be accepted."""
        headers = call_headers(dict(scope["headers"]))
        return SocketConnection(scope, receive, send, self._calls, self._dispatcher, headers)
