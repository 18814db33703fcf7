"""A page with the statistics of the model, for the applications that http.py compares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from benchmarks.http_handlers import work

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


def with_statistics(app: ASGIApp) -> ASGIApp:
    """Adds ``/statistics``: the model's statistics."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/statistics":
            await JSONResponse(work)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return application
