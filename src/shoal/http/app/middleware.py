"""The layers around an application: middleware, and checks of hosts and origins.

This package's server checks hosts and origins itself, with `shoal.asgi.headers`. Other servers do
not, and a browser lets any page open a WebSocket anywhere, with the cookies of the user. Each
WebSocket is therefore checked here in the same way, and other requests as well if hosts or origins
are named.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from shoal.asgi.extensions import DISCONNECT, GUARDED
from shoal.asgi.headers import BadRequest, RequestGuard
from shoal.http.app.pages import OUTSIDE
from shoal.http.app.router import refuse_socket
from shoal.http.requests.dispatch import ProblemRoute
from shoal.http.requests.exchange import split_path
from shoal.http.requests.problem import Problem
from shoal.serving.names import RESERVED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from shoal.http.app.router import AppRouter
    from shoal.http.app.traced import RequestTracer
    from shoal.http.requests.dispatch import RouteDispatcher

T = TypeVar("T")

_DEEPEST: Final = 100


def with_middleware(layers: Sequence[Callable[[ASGIApp], ASGIApp] | Any], app: ASGIApp) -> ASGIApp:
    """Puts Starlette's `Middleware`, or functions, around an application, the first outermost."""
    listed: list[Any] = list(layers)
    for one in reversed(listed):
        cls = getattr(one, "cls", None)
        make = one if cls is None else partial(cls, *one.args, **one.kwargs)
        app = cast("ASGIApp", make(app))
    return app


def within(app: Any, kind: type[T]) -> T | None:
    """Returns the application of a type inside its middleware; None if there is none."""
    # Middleware must keep the application that it wraps as its attribute `app`, as Starlette's do.
    for _ in range(_DEEPEST):
        if app is None or isinstance(app, kind):
            return app
        app = getattr(app, "app", None)
    return None


class Layers:
    """The middleware of an application around its router."""

    def __init__(self, middleware: Sequence[Any], router: AppRouter) -> None:
        self._router = router
        self.is_bare = not middleware
        entered = with_middleware(middleware, router)
        self._guarded = AppGuard(entered, router.dispatcher)
        self._entered = self._guarded if self._guarded.checks_all else entered

    def apps(self, tracer: RequestTracer | None, *, is_opening: bool) -> dict[str, ASGIApp]:
        """Returns what answers each type of scope; the router answers unknown ones."""
        http: ASGIApp = self._entered
        websocket: ASGIApp = self._guarded
        if is_opening:
            http = websocket = self._router.refuse_while_starting
        elif tracer is not None:
            http, websocket = partial(tracer.call_app, http), partial(tracer.call_app, websocket)
        if http is not self._router:
            http = partial(self._call_within, http)
        return defaultdict(lambda: self._router, http=http, websocket=websocket)

    async def _call_within(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if RESERVED in scope["path"] and split_path(scope)[1] in OUTSIDE:
            app = self._router
        await app(scope, receive, send)


class AppGuard:
    """An ASGI application that refuses requests for other hosts, and from other origins."""

    def __init__(self, app: ASGIApp, dispatcher: RouteDispatcher) -> None:
        self._app = app
        self._dispatcher = dispatcher
        options = self._options = dispatcher.shared.options
        self.checks_all = bool(options.allowed_hosts or options.allowed_origins)
        # A guard remembers the hosts and origins that it allows.
        self._guard_of = lru_cache(maxsize=16)(self._new_guard)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            problem = Problem(refusal.status, "", str(refusal))
            await refuse_socket(self._dispatcher.shared, scope, send, problem)
        else:
            title = HTTPStatus(refusal.status).phrase
            route = ProblemRoute(Problem(refusal.status, "", title, str(refusal)))
            await self._dispatcher.dispatch(scope, receive, send, route)

    def _refusal(self, scope: Scope) -> BadRequest | None:
        if not {DISCONNECT, GUARDED}.isdisjoint(scope.get("extensions") or ()):
            return None
        try:
            guard = self._guard_of(tuple(scope.get("server") or ("", None)))
            guard.check_headers(scope.get("method", ""), scope.get("headers", ()))
        except BadRequest as refused:
            return refused
        return None

    def _new_guard(self, address: tuple[str, int | None]) -> RequestGuard:
        try:
            return RequestGuard(self._options, address)
        except ValueError:  # a name, or the path of a UNIX socket
            return RequestGuard(self._options, address[0])
