"""The page that shows the OpenAPI document with Swagger UI, whose files are in this package.

The page refers to its files by relative paths, so it works wherever the application is mounted.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import orjson

from shoal.http.openapi.page import Content, page, page_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp

# Swagger UI sets styles on elements, and its own pictures are in its style sheet.
_POLICY: Final = (
    "script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src data:; "
    "connect-src 'self'"
)
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


def viewer_page(title: str, mounted: Mapping[str, ASGIApp], root: str) -> Content:
    """Returns the page. It also offers the documents of mounted applications (``openapi_url``)."""
    documents = [{"name": title, "url": "openapi.json"}]
    for prefix, app in mounted.items():
        path: Any = getattr(app, "openapi_url", None)
        if isinstance(path, str) and path.startswith("/"):
            documents.append({"name": prefix or "/", "url": quote(f"{root}{prefix}{path}")})
    text = _PAGE.format(
        title=html.escape(title), documents=html.escape(orjson.dumps(documents).decode())
    )
    return page(text, _POLICY)


def viewer_file(name: str, accept_encoding: bytes) -> Content:
    return page_file("shoal.http.openapi", name, accept_encoding, max_age_s=3600)
