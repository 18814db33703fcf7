"""What the pages for browsers have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.types import Scope

HTML: Final = b"text/html; charset=utf-8"

FILES: Final = ("swagger-ui-bundle.js", "swagger-ui.css", "start.js")
"""The names of the files of the viewer."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A page, or a file of one.

    Attributes:
        media_type: Its media type.
        body: Its body.
        headers: Its other headers.
    """

    media_type: bytes
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def page_headers(policy: str) -> tuple[tuple[bytes, bytes], ...]:
    """Returns the headers of a page.

    Args:
        policy: What the page may load, as of ``Content-Security-Policy``; nothing else.
    """
    rest = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return (
        (b"cache-control", b"no-store"),
        (b"content-security-policy", f"default-src 'none'; {policy}; {rest}".encode("ascii")),
        (b"referrer-policy", b"no-referrer"),
        (b"x-content-type-options", b"nosniff"),
    )


def root_of(scope: Scope) -> str:
    """Returns the path at which the application is mounted, without a slash at its end."""
    root: str = scope.get("root_path", "")
    return root.rstrip("/")
