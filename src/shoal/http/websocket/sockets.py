"""Which WebSockets an application accepts: those at the paths of its endpoints.

A WebSocket has no method. Where several endpoints are at one path, it is for the one that answers
``GET``, else for the first.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from shoal.http.requests.codec import Codecs, problem_json
from shoal.http.requests.problem import Problem, not_found, not_open
from shoal.http.requests.routing import PathTable
from shoal.observe.metrics import NO_ENDPOINT

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from shoal.http.requests.dispatch import RouteDispatcher
    from shoal.serving.controller.controller import Controller
    from shoal.serving.endpoints.endpoint import Endpoint

_METHOD = "GET"


class WebSockets:
    """Answers the WebSockets of an application.

    Args:
        dispatcher: What all requests to the application share.
    """

    def __init__(self, dispatcher: RouteDispatcher) -> None:
        self._dispatcher = dispatcher
        self._table: _SocketTable | None = None

    def set_controller(self, controller: Controller | None) -> None:
        """Sets the controller whose endpoints are called; None while the application is closed."""
        self._table = None if controller is None else _SocketTable(controller, self._dispatcher)

    def is_at(self, path: str) -> bool:
        """Returns whether an endpoint is at a path."""
        return self._table is not None and self._table.at(path) is not None

    async def answer(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        """Answers one WebSocket: refuses it, or answers its requests.

        Args:
            scope: The ASGI scope.
            receive: The ASGI callable.
            send: The ASGI callable.
            path: The path below the application's mount point.
        """
        if (await receive())["type"] != "websocket.connect":
            return
        if self._table is None:
            await self.refuse(scope, send, not_open(self._dispatcher.settings))
            return
        found = self._table.at(path)
        if found is None:
            await self.refuse(scope, send, not_found())
            return
        if found.params:
            params = {**scope.get("path_params", {}), **found.params}
            scope = {**scope, "path_params": params}
        route: _SocketRoute = found.routes[_METHOD]
        if route.subprotocol not in scope["subprotocols"]:
            await self.refuse(scope, send, _other_subprotocol(route.subprotocol), route.name)
            return
        await route.connection(scope, receive, send).run()

    async def refuse(
        self, scope: Scope, send: Send, problem: Problem, endpoint: str = NO_ENDPOINT
    ) -> None:
        """Refuses a WebSocket by an answer of HTTP; by 403 where the server allows no other.

        Args:
            scope: The ASGI scope; its first message was received.
            send: The ASGI callable.
            problem: Why it is refused.
            endpoint: The name that the answer is counted under.
        """
        self._dispatcher.answers.count(endpoint, problem.status)
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": problem.title})
            return
        request_id = self._dispatcher.new_id()
        media_type, body = problem_json(problem, request_id.decode("ascii"))
        headers = [
            (b"content-type", media_type),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", request_id),
            *problem.headers,
        ]
        await send(
            {"type": "websocket.http.response.start", "status": problem.status, "headers": headers}
        )
        await send({"type": "websocket.http.response.body", "body": body})


class _SocketRoute:
    """Makes the connections to one endpoint."""

    def __init__(self, endpoint: Endpoint, dispatcher: RouteDispatcher, codecs: Codecs) -> None:
        # Only with an endpoint: these load pydantic.
        from shoal.http.requests.call import EndpointCalls
        from shoal.http.requests.endpoint import call_headers
        from shoal.http.websocket.connection import SocketConnection
        from shoal.http.websocket.messages import SUBPROTOCOL

        self.name = endpoint.name
        self.subprotocol = SUBPROTOCOL
        self._calls = EndpointCalls(endpoint, dispatcher.settings)
        self._make = SocketConnection
        self._call_headers = call_headers
        self._dispatcher = dispatcher
        self._codecs = codecs

    def connection(self, scope: Scope, receive: Receive, send: Send) -> Any:
        headers = self._call_headers(dict(scope["headers"]))
        dispatcher, codecs = self._dispatcher, self._codecs
        return self._make(scope, receive, send, self._calls, codecs, dispatcher, headers)


class _SocketTable:
    """The endpoints of one controller by their paths, rebuilt when they change."""

    def __init__(self, controller: Controller, dispatcher: RouteDispatcher) -> None:
        self._controller = controller
        self._dispatcher = dispatcher
        self._version = controller.version
        self._routes = self._current()

    def at(self, path: str) -> Any:
        """Returns what is `Found` at a path."""
        if self._controller.version != self._version:
            self._version = self._controller.version
            self._routes = self._current()
        return self._routes.at(path, _METHOD)

    @cached_property
    def _codecs(self) -> Codecs:
        from shoal.http.requests.json_codec import JsonCodec

        return Codecs(JsonCodec)

    def _current(self) -> PathTable[_SocketRoute]:
        routes = PathTable[_SocketRoute]()
        placed = [one for one in self._controller.endpoints.values() if one.route is not None]
        for endpoint in sorted(placed, key=lambda one: _METHOD not in one.methods):
            assert endpoint.route is not None
            route = _SocketRoute(endpoint, self._dispatcher, self._codecs)
            routes.add(endpoint.route, (_METHOD,), route)
        return routes


def _other_subprotocol(known: str) -> Problem:
    return Problem(
        400,
        "no-such-subprotocol",
        "The endpoint does not speak that sub-protocol",
        f"It speaks {known}: new WebSocket(url, {known!r}).",
    )
