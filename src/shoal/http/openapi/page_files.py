"""The files of a page for browsers, which are in this package; large ones are compressed there."""

from __future__ import annotations

import gzip
from functools import lru_cache
from importlib.resources import files
from typing import Final

from shoal.http.openapi.page import Sent

_MEDIA_TYPES: Final = {"js": b"text/javascript; charset=utf-8", "css": b"text/css; charset=utf-8"}


class PageFiles:
    """The files of one page.

    Args:
        package: The package that has them in its folder ``static``.
    """

    def __init__(self, package: str) -> None:
        self._package = package

    def sent(self, name: str, accept_encoding: bytes, max_age_s: int) -> Sent:
        """Returns a file; compressed, if it is stored so and the client accepts that.

        Args:
            name: Its name, which must be that of a file of the page.
            accept_encoding: The request's ``Accept-Encoding``.
            max_age_s: How long the client may keep it, in seconds; 0 for not at all.
        """
        media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
        body, is_compressed = _file(self._package, name)
        headers = (
            (b"cache-control", b"max-age=%d" % max_age_s if max_age_s else b"no-store"),
            (b"vary", b"accept-encoding"),
            (b"x-content-type-options", b"nosniff"),
        )
        if not is_compressed:
            return Sent(media_type, body, headers)
        if _accepts_gzip(accept_encoding):
            return Sent(media_type, body, (*headers, (b"content-encoding", b"gzip")))
        return Sent(media_type, gzip.decompress(body), headers)


@lru_cache(maxsize=16)
def _file(package: str, name: str) -> tuple[bytes, bool]:
    """Returns a file of a package, and whether it is compressed."""
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
