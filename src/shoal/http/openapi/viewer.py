"""The page that shows the OpenAPI document, by Swagger UI, whose files are in this package.

The page refers to its files by relative paths, so it works wherever the application is mounted.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import orjson

from shoal.http.openapi.page import HTML, Sent, page_headers
from shoal.http.openapi.page_files import PageFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp

# Swagger UI sets styles on elements, and its own pictures are in its style sheet.
_POLICY: Final = (
    "script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src data:; "
    "connect-src 'self'"
)
_FILES: Final = PageFiles("shoal.http.openapi")
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<noscript>This page needs JavaScript. The same as data: <a href="openapi.json">openapi.json</a>\
</noscript>
<main id="viewer" data-documents="{documents}"></main>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""


def viewer_page(title: str, mounted: Mapping[str, ASGIApp], root: str) -> Sent:
    """Returns the page.

    Args:
        title: The name of the application.
        mounted: The mounted applications, by prefix. The page also offers the documents of those
            that have a path of one as ``openapi_url``, as FastAPI's do.
        root: The path at which the application is mounted.
    """
    documents = [{"name": title, "url": "openapi.json"}]
    for prefix, app in mounted.items():
        path: Any = getattr(app, "openapi_url", None)
        if isinstance(path, str) and path.startswith("/"):
            documents.append({"name": prefix or "/", "url": quote(f"{root}{prefix}{path}")})
    text = _PAGE.format(
        title=html.escape(title), documents=html.escape(orjson.dumps(documents).decode())
    )
    return Sent(HTML, text.encode("utf-8", "replace"), page_headers(_POLICY))


def file_of_viewer(name: str, accept_encoding: bytes) -> Sent:
    """Returns one of `FILES`; compressed, if the client accepts that."""
    return _FILES.sent(name, accept_encoding, max_age_s=3600)
