"""Which WebSockets an application accepts: those at the paths of its endpoints.

A WebSocket has no method. Where several endpoints are at one path, it is for the one that answers
``GET``, else for the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.http.requests.dispatch import PathMatch, PathTable
from shoal.http.requests.problem import Problem, Refused, not_found, not_open, problem_json
from shoal.observe.metrics import NO_ENDPOINT

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from shoal.http.requests.call import EndpointCalls
    from shoal.http.requests.shared_parts import SharedParts
    from shoal.serving.controller.controller import Controller

SUBPROTOCOL: Final = "shoal.v1"
"""The name of the sub-protocol that a client asks for."""

_METHOD: Final = "GET"


class WebSockets:
    def __init__(self, shared: SharedParts) -> None:
        self._shared = shared
        self._controller: Controller | None = None
        # The endpoints by their paths, rebuilt when they change.
        self._table: PathTable[EndpointCalls] = PathTable()
        self._version: object = None

    def set_controller(self, controller: Controller | None) -> None:
        self._controller = controller
        self._version = None

    def _at(self, path: str) -> PathMatch[EndpointCalls] | None:
        controller = self._controller
        if controller is None:
            return None
        if controller.registry.version != self._version:
            self._version = controller.registry.version
            self._table = self._table_of(controller)
        return self._table.at(path, _METHOD)

    def _table_of(self, controller: Controller) -> PathTable[EndpointCalls]:
        table: PathTable[EndpointCalls] = PathTable()
        placed = [one for one in controller.endpoints.values() if one.route is not None]
        for endpoint in sorted(placed, key=lambda one: _METHOD not in one.methods):
            # Here, as an application without endpoints starts sooner without them.
            from shoal.http.requests.call import EndpointCalls

            assert endpoint.route is not None
            calls = EndpointCalls(endpoint, self._shared.settings)
            table.add(endpoint.route, (_METHOD,), calls)
        return table

    def is_at(self, path: str) -> bool:
        return self._at(path) is not None

    async def answer(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        """Refuses a WebSocket, or answers its requests; `path` is below the mount point."""
        if (await receive())["type"] != "websocket.connect":
            return
        if self._controller is None:
            await self.refuse(scope, send, not_open(self._shared.settings))
            return
        found = self._at(path)
        if found is None:
            await self.refuse(scope, send, not_found())
            return
        if found.params:
            params = {**scope.get("path_params", {}), **found.params}
            scope = {**scope, "path_params": params}
        calls = found.routes[_METHOD]
        name = calls.endpoint.name
        if SUBPROTOCOL not in scope["subprotocols"]:
            await self.refuse(scope, send, _other_subprotocol(), name)
            return
        # Here, since this loads pydantic, as the endpoints do.
        from shoal.http.websocket.connection import SocketConnection

        try:
            connection = SocketConnection(scope, receive, send, calls, self._shared)
        except Refused as refused:  # a header of the handshake can't be read
            await self.refuse(scope, send, refused.problem, name)
            return
        await connection.run(SUBPROTOCOL)

    async def refuse(
        self, scope: Scope, send: Send, problem: Problem, endpoint: str = NO_ENDPOINT
    ) -> None:
        """Refuses a WebSocket, of which the first message was received, with a problem."""
        # Servers that allow no response to a handshake answer with 403.
        self._shared.times.count(endpoint, "websocket", problem.status, 0.0)
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": problem.title})
            return
        request_id = self._shared.new_id()
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


def _other_subprotocol() -> Problem:
    return Problem(
        400,
        "no-such-subprotocol",
        "The endpoint does not speak that sub-protocol",
        f'It speaks {SUBPROTOCOL}: new WebSocket(url, "{SUBPROTOCOL}").',
    )
