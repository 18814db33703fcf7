"""The files of the dashboard. Its page may load these and its feed, and nothing else."""

from __future__ import annotations

import html
from importlib.resources import files
from typing import Final

from shoal.http.openapi.page import Content, page, page_file

# Its scripts set styles on elements by the object model, which needs no permission.
_POLICY: Final = (
    "script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "require-trusted-types-for 'script'"
)
_PACKAGE: Final = "shoal.http.dashboard"
_KEPT_S: Final = 3600  # how long browsers may keep the files of others, which rarely change


def dashboard_page(title: str) -> Content:
    text = (files(_PACKAGE) / "static" / "index.html").read_text("utf-8")
    return page(text.replace("{title}", html.escape(title)), _POLICY)


def dashboard_file(name: str, accept_encoding: bytes) -> Content:
    max_age_s = _KEPT_S if name.startswith("uPlot") else 0
    return page_file(_PACKAGE, name, accept_encoding, max_age_s)
