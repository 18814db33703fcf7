"""Pages for browsers, and their files, which are in packages; large ones are compressed there."""

from __future__ import annotations

import gzip
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from starlette.types import Scope

Content: TypeAlias = tuple[bytes, bytes, tuple[tuple[bytes, bytes], ...]]
"""The media type, the body, and other headers of a response."""

HTML: Final = b"text/html; charset=utf-8"

VIEWER_FILES: Final = ("swagger-ui-bundle.js", "swagger-ui.css", "start.js")

_MEDIA_TYPES: Final = {"js": b"text/javascript; charset=utf-8", "css": b"text/css; charset=utf-8"}


def page(text: str, policy: str) -> Content:
    """Returns a page that may load only what a ``Content-Security-Policy`` allows."""
    rest = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    headers = (
        (b"cache-control", b"no-store"),
        (b"content-security-policy", f"default-src 'none'; {policy}; {rest}".encode("ascii")),
        (b"referrer-policy", b"no-referrer"),
        (b"x-content-type-options", b"nosniff"),
    )
    return HTML, text.encode("utf-8", "replace"), headers


def page_file(package: str, name: str, accept_encoding: bytes, max_age_s: int) -> Content:
    """Returns a file of a package's folder ``static``; browsers may keep it for ``max_age_s``."""
    body, is_compressed = _read(package, name)
    headers: tuple[tuple[bytes, bytes], ...] = (
        (b"cache-control", b"max-age=%d" % max_age_s if max_age_s else b"no-store"),
        (b"vary", b"accept-encoding"),
        (b"x-content-type-options", b"nosniff"),
    )
    if is_compressed and _accepts_gzip(accept_encoding):
        headers = (*headers, (b"content-encoding", b"gzip"))
    elif is_compressed:
        body = gzip.decompress(body)
    return _MEDIA_TYPES[name.rpartition(".")[2]], body, headers


def root_of(scope: Scope) -> str:
    """Returns the path at which the application is mounted, without a slash at its end."""
    root: str = scope.get("root_path", "")
    return root.rstrip("/")


@lru_cache(maxsize=16)
def _read(package: str, name: str) -> tuple[bytes, bool]:
    """Returns a file, and whether it is compressed."""
    folder = files(package) / "static"
    compressed = folder / f"{name}.gz"
    if compressed.is_file():
        return compressed.read_bytes(), True
    return (folder / name).read_bytes(), False


def _accepts_gzip(accept_encoding: bytes) -> bool:
    for one in accept_encoding.lower().split(b","):
        coding, _, weight = (part.strip() for part in one.partition(b";"))
        if coding in (b"gzip", b"*"):
            return weight.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False
