"""The admin API as an ASGI application, with another application behind it.

It is served at its own listener, such as a UNIX socket that only the operator's user can open, or
at the public one with a token.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shoal.asgi.extensions import DISCONNECT
from shoal.asgi.http_options import HttpOptions
from shoal.http.admin.api import API, AdminApi
from shoal.http.requests.dispatch import Page, PathMatch, Route, RouteDispatcher
from shoal.http.requests.exchange import split_path
from shoal.http.requests.shared_parts import SharedParts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from shoal.http.app.app import App
    from shoal.http.requests.exchange import Exchange


class AdminListener:
    # It does not run the lifespan of the application behind.

    def __init__(
        self,
        api: AdminApi,
        behind: ASGIApp | None = None,
        settings: HttpOptions | None = None,
        pages: Mapping[str, Page] | None = None,
        is_public_to: Callable[[Scope], bool] | None = None,
    ) -> None:
        # Pages for callers with access to the API, and whether the application behind answers them.
        self._pages = {
            path: Page(partial(self._answer_page, page)) for path, page in (pages or {}).items()
        }
        self._is_public_to = is_public_to
        self._behind = behind
        self._settings = HttpOptions() if settings is None else settings
        self._dispatcher = RouteDispatcher(SharedParts(self._settings))
        self._api = api
        self._api_page = Page(api.answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_http = scope["type"] == "http"
        path = split_path(scope)[1] if is_http else ""
        if path.startswith(API):
            # The API checks the methods of its paths itself.
            match = PathMatch[Route]({scope["method"]: self._api_page}, {})
            await self._answer(scope, receive, send, match)
        elif path in self._pages and not (self._is_public_to and self._is_public_to(scope)):
            match = PathMatch[Route]({"GET": self._pages[path]}, {})
            await self._answer(scope, receive, send, match)
        elif self._behind is not None:
            await self._behind(scope, receive, send)
        else:
            await self._dispatcher.answer(scope, receive, send, None)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, match: PathMatch[Route]
    ) -> None:
        if DISCONNECT in scope.get("extensions", ()):
            await self._dispatcher.answer(scope, receive, send, match)
            return
        # There is no lifespan to watch from, so each request has a watching task of its own.
        dispatcher = RouteDispatcher(SharedParts(self._settings))
        async with dispatcher.shared.departures.watching():
            await dispatcher.answer(scope, receive, send, match)

    async def _answer_page(self, page: Page, exchange: Exchange) -> None:
        self._api.check_reader(exchange)
        await page.answer(exchange)


class AppAdmin:
    """The admin API of an `App`, as an ASGI application with the `App` behind it."""

    # Until the application is open, and for lifespan messages, the application itself answers.

    def __init__(
        self,
        app: App,
        *,
        token: str | None,
        allowed_modules: Sequence[str],
        behind: ASGIApp | None = None,
    ) -> None:
        self._app = app
        self._behind: ASGIApp = app if behind is None else behind
        self._token = token
        self._allowed_modules = allowed_modules
        self._admin_listener: AdminListener | None = None

    def count_refusal(self, status: int, took_s: float) -> None:
        self._app.count_refusal(status, took_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        admin = self._admin_listener or self._open()
        if scope["type"] == "lifespan" or admin is None:
            await self._behind(scope, receive, send)
        else:
            await admin(scope, receive, send)

    def _open(self) -> AdminListener | None:
        controller = self._app.controller
        if controller is not None:
            settings, modules = self._app.settings, self._allowed_modules
            api = AdminApi(
                controller, token=self._token, allowed_modules=modules, settings=settings
            )
            dashboard = self._app.own_pages.dashboard
            self._admin_listener = AdminListener(
                api, self._behind, settings, dashboard.pages, dashboard.is_public_to
            )
        return self._admin_listener
