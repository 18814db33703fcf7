"""Chooses what answers a request: a page, an endpoint, or a mounted application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shoal.http.requests.endpoint_table import EndpointTable
from shoal.http.requests.exchange import split_path
from shoal.http.requests.problem import not_open, starting
from shoal.http.requests.protocol import spoken
from shoal.http.requests.routing import Found, Mounts, PathTable, ProblemRoute, Route
from shoal.serving.names import RESERVED

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.types import Receive, Scope, Send

    from shoal.http.app.declarations import Declarations
    from shoal.http.requests.dispatch import RouteDispatcher
    from shoal.http.websocket.sockets import WebSockets
    from shoal.serving.controller.controller import Controller

PAGES: Final = f"{RESERVED}/"
"""What the paths of the application's own pages begin with."""


class AppRouter:
    """Passes each request to the part that answers it: pages, endpoints, then mounts."""

    def __init__(
        self, declared: Declarations, dispatcher: RouteDispatcher, sockets: WebSockets
    ) -> None:
        self.mounts = Mounts()
        self.pages = PathTable[Route]()
        self.table: EndpointTable | None = None
        self._declared = declared
        self._dispatcher = dispatcher
        self._sockets = sockets
        self._protocols = spoken(dispatcher.settings.protocols)
        self._not_open = ProblemRoute(not_open(dispatcher.settings))
        self._starting = ProblemRoute(starting(dispatcher.settings))

    def set_controller(self, controller: Controller | None) -> None:
        """Sets the controller of the endpoints; None while the application is closed."""
        if controller is not None:
            self._dispatcher.begin()
        self.table = (
            None
            if controller is None
            else EndpointTable(controller, self._dispatcher.settings, self._protocols)
        )
        self._sockets.set_controller(controller)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        root, path = split_path(scope) if scope.get("root_path") else ("", scope["path"])
        if scope["type"] == "http":
            found = self.at(path, scope["method"])
            if found is not None or self.mounts.at(path) is None:
                if found is None and path == "/" and scope["method"] in ("GET", "HEAD"):
                    found = self.pages.at(path, "GET")
                elif found is None and self.table is not None:
                    found = self.table.elsewhere(path)
                return self._dispatcher.answer(scope, receive, send, found)
        return self._answer_besides(scope, receive, send, root, path)

    def at(self, path: str, method: str) -> Found[Route] | None:
        if path.startswith(PAGES):  # not even for an endpoint at "/{any:path}"
            return self.pages.at(path, method)
        return (self.table or self._declared.routed_to(self._not_open)).at(path, method)

    async def answer_starting(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request to an application that is starting."""
        if scope["type"] == "http":
            found = Found[Route]({scope["method"]: self._starting}, {})
            await self._dispatcher.answer(scope, receive, send, found)
        elif (await receive())["type"] == "websocket.connect":
            await self._sockets.refuse(scope, send, starting(self._dispatcher.settings))

    def declared_path(self, path: str, method: str) -> str | None:
        """Returns the declared path, with its parameters, for a request's path."""
        found = self.at(path, method)
        return None if found is None or not found.path else found.path

    async def _answer_besides(
        self, scope: Scope, receive: Receive, send: Send, root: str, path: str
    ) -> None:
        kind, mounted = scope["type"], self.mounts.at(path)
        if kind == "websocket" and (mounted is None or self._sockets.is_at(path)):
            await self._sockets.answer(scope, receive, send, path)
        elif mounted is not None:
            prefix, app = mounted
            below = {**scope, "root_path": root + prefix}
            await self._dispatcher.answer_by(app, below, receive, send)
        else:
            raise ValueError(f"a Shoal application can't answer a scope of type {kind!r}")
