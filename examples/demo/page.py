"""The demo's page: static files, with headers that forbid loading anything from elsewhere."""

import os
from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).with_name("page")

_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class Page(StaticFiles):
    """Serves the files of the page, with `index.html` at the root.

    `watch.js`, which connects again to a server that was away, is that of Shoal's own dashboard.
    """

    def __init__(self) -> None:
        super().__init__(directory=FOLDER, packages=[("shoal.http.dashboard", "static")], html=True)

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """Returns the response with a file, with the page's headers added."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(_HEADERS)
        return response
