"""The admin API as an ASGI application, with another application behind it.

It is served at its own listener, such as a UNIX socket that only the operator's user can open, or
at the public one with a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.asgi.extensions import DISCONNECT
from shoal.http.admin.api import API, AdminApi
from shoal.http.requests.dispatch import (
    Page,
    ProblemRoute,
    Route,
    RouteDispatcher,
    route_for,
)
from shoal.http.requests.exchange import split_path
from shoal.http.requests.problem import NOT_FOUND
from shoal.http.requests.shared_parts import SharedParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from shoal.http.app.app import App
    from shoal.http.dashboard.dashboard import Dashboard


class AdminMount:
    # It does not run the lifespan of the application behind. The dashboard is for callers with
    # access to the API, unless the application behind shows it to all.

    def __init__(
        self, api: AdminApi, behind: ASGIApp | None = None, dashboard: Dashboard | None = None
    ) -> None:
        self._dashboard = dashboard
        self._pages = {} if dashboard is None else dashboard.pages(api.check_reader)
        self._behind = behind
        self._dispatcher = RouteDispatcher(SharedParts(api.options))
        self._api = api
        self._api_page = Page(api.handle)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_http = scope["type"] == "http"
        path = split_path(scope)[1] if is_http else ""
        page = self._pages.get(path)
        if path.startswith(API):
            # The API checks the methods of its paths itself.
            route: Route = self._api_page
        elif page and self._dashboard and not self._dashboard.is_public_to(scope):
            route = page if scope["method"] == "GET" else route_for(scope["method"], {"GET": page})
        elif self._behind is not None:
            await self._behind(scope, receive, send)
            return
        else:
            route = ProblemRoute(NOT_FOUND)
        if DISCONNECT in scope.get("extensions", ()):
            await self._dispatcher.dispatch(scope, receive, send, route)
            return
        # There is no lifespan to watch from, so each request has a watching task of its own.
        dispatcher = RouteDispatcher(SharedParts(self._api.options))
        async with dispatcher.shared.disconnects.watching():
            await dispatcher.dispatch(scope, receive, send, route)


@dataclass(eq=False, repr=False)  # the token is a secret
class AppAdmin:
    """The admin API of an `App`, as an ASGI application with the `App` behind it."""

    # Until the application is open, and for lifespan messages, the application itself answers.

    app: App
    token: str | None
    allowed_modules: Sequence[str]
    behind: ASGIApp | None = None
    _mount: AdminMount | None = None

    def count_refusal(self, status: int, took_s: float) -> None:
        self.app.count_refusal(status, took_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._mount is None:
            self._mount = self._opened()
        if scope["type"] == "lifespan" or self._mount is None:
            await (self.behind or self.app)(scope, receive, send)
        else:
            await self._mount(scope, receive, send)

    def _opened(self) -> AdminMount | None:
        app, controller = self.app, self.app.controller
        if controller is None:
            return None
        token, modules = self.token, self.allowed_modules
        api = AdminApi(controller, token=token, allowed_modules=modules, options=app.settings)
        return AdminMount(api, self.behind or app, app.own_pages.dashboard)
