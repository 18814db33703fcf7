"""The ASGI scope of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Scope

    from shoal.server.http1.head import HeadParser, RequestLine
    from shoal.server.shared import Shared


def scope_at(
    shared: Shared,
    peer: tuple[str, int] | None,
    name: tuple[str, int] | None,
    kind: str,
    version: str,
    line: RequestLine,
) -> Scope:
    """Returns the part of a scope that requests with the same head share."""
    return {
        "type": kind,
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": version,
        "method": line.method,
        "scheme": shared.scheme,
        "path": line.path,
        "raw_path": line.raw_path,
        "query_string": line.query,
        "root_path": "",
        "client": peer,
        "server": name,
    }


def scope_of_refused(parser: HeadParser, peer: tuple[str, int] | None) -> Scope:
    """Returns the known part of a refused request's scope; method and path may be None."""
    line = parser.line
    return {
        "type": "http",
        "http_version": "1.1" if line.is_http_1_1 else "1.0",
        "method": line.method or None,
        "path": line.path or None,
        "raw_path": line.raw_path,
        "headers": parser.headers if line.method else [],
        "client": peer,
        "scheme": "http",
    }
