"""Hosts and origins of an application on another server than this package's.

This package's server checks them itself, with `shoal.asgi.guard`. Other servers do not, and a
browser lets any page open a WebSocket anywhere, with the cookies of the user. Each WebSocket is
therefore checked here in the same way, and other requests as well if hosts or origins are named.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shoal.asgi.bad_request import BadRequest
from shoal.asgi.extensions import DISCONNECT, GUARDED
from shoal.asgi.guard import RequestGuard
from shoal.http.requests.problem import Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from shoal.http.requests.dispatch import RouteDispatcher
    from shoal.http.websocket.sockets import WebSockets

_MOST_ADDRESSES: Final = 16


class AppGuard:
    """An ASGI application that refuses requests for other hosts, and from other origins."""

    def __init__(self, app: ASGIApp, dispatcher: RouteDispatcher, sockets: WebSockets) -> None:
        self._app = app
        self._dispatcher = dispatcher
        self._sockets = sockets
        options = self._options = dispatcher.settings
        self.checks_all = bool(options.allowed_hosts or options.allowed_origins)
        self._by_address: dict[Any, RequestGuard] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await self._sockets.refuse(scope, send, Problem(refusal.status, "", str(refusal)))
        else:
            await self._dispatcher.answer_by(partial(_refuse, refusal), scope, receive, send)

    def _refusal(self, scope: Scope) -> BadRequest | None:
        """Returns why a request is refused; None if it is not."""
        if not {DISCONNECT, GUARDED}.isdisjoint(scope.get("extensions") or ()):
            return None
        try:
            self._guard_of(scope).check_headers(scope.get("method", ""), scope.get("headers", ()))
        except BadRequest as refused:
            return refused
        return None

    def _guard_of(self, scope: Scope) -> RequestGuard:
        host, port = scope.get("server") or ("", None)
        guard = self._by_address.get(host)
        if guard is None:
            try:
                guard = RequestGuard(self._options, (host, port))
            except ValueError:  # a name, or the path of a UNIX socket
                guard = RequestGuard(self._options, host)
            if len(self._by_address) < _MOST_ADDRESSES:
                self._by_address[host] = guard
        return guard


async def _refuse(refusal: BadRequest, _scope: Scope, _receive: Receive, _send: Send) -> None:
    # Not at the start: it loads a client of HTTP.
    from starlette.exceptions import HTTPException

    raise HTTPException(refusal.status, str(refusal))
