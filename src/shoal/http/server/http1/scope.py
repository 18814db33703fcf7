"""The scope by which ASGI describes a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.observe.connections import SERVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Scope

    from shoal.http.server.http1.carrier import Carrier
    from shoal.http.server.http1.head import HeadParser, RequestLine


def scope_of(
    line: RequestLine,
    headers: list[tuple[bytes, bytes]],
    carrier: Carrier,
    offered: Mapping[str, Any],
) -> Scope:
    """Returns a new scope.

    Args:
        line: The request line.
        headers: A list of the headers, which the application may change.
        carrier: The connection.
        offered: What the call offers beyond ASGI.
    """
    shared = carrier.shared
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1" if line.is_http_1_1 else "1.0",
        "method": line.method,
        "scheme": shared.scheme,
        "path": line.path,
        "raw_path": line.raw_path,
        "query_string": line.query,
        "root_path": "",
        "headers": headers,
        "client": carrier.peer,
        "server": carrier.name,
        "state": shared.state.copy(),
        "extensions": {
            "shoal.disconnect": offered,
            SERVER: shared.counts,
        },
    }
    if shared.proxies is not None:
        shared.proxies.complete(scope)
    return scope


def scope_of_refused(parser: HeadParser, peer: tuple[str, int] | None) -> Scope:
    """Returns what is known of a request that never reaches the application, as a scope.

    ``method`` and ``path`` are None if its head could not be read.

    Args:
        parser: Has parsed its head, as far as that was possible.
        peer: The client's host and port.
    """
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
