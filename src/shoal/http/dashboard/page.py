"""The files of the dashboard. Its page may load these and its feed, and nothing else."""

from __future__ import annotations

import html
from importlib.resources import files
from typing import Final

from shoal.http.openapi.page import HTML, Sent, page_headers
from shoal.http.openapi.page_files import PageFiles

# Its scripts set styles on elements by the object model, which needs no permission.
_POLICY: Final = (
    "script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "require-trusted-types-for 'script'"
)
_FILES: Final = PageFiles("shoal.http.dashboard")
_KEPT_S: Final = 3600  # how long browsers may keep the files of others, which rarely change


def dashboard_page(title: str) -> Sent:
    text = (files("shoal.http.dashboard") / "static" / "index.html").read_text("utf-8")
    body = text.replace("{title}", html.escape(title)).encode("utf-8", "replace")
    return Sent(HTML, body, page_headers(_POLICY))


def file_of_dashboard(name: str, accept_encoding: bytes) -> Sent:
    """Returns a file of the page; compressed, if it is stored so and the client accepts that."""
    return _FILES.sent(name, accept_encoding, _KEPT_S if name.startswith("uPlot") else 0)
