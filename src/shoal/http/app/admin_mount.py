"""The admin API of an application that the same server opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.http.admin.api import AdminApi
from shoal.http.admin.mount import AdminListener

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from shoal.http.app.app import App


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
