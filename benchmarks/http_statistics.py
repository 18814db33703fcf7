"""A page with the statistics of the model, for the applications that http.py compares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from benchmarks.http_handlers import work

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


async def statistics_page(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the model's statistics, as an ASGI application."""
    await JSONResponse(work)(scope, receive, send)
