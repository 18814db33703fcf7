"""What a request of HTTP/1.1 asks for, where it says so as to a proxy: with a whole URL.

A server has to take that (RFC 9112, section 3.2.2), and to go by the URL's host rather than by the
``Host`` header: whoever decides by the host must decide by the one that was asked for.
"""

from __future__ import annotations

import re
from typing import Final

import h11

_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)


def in_origin_form(request: h11.Request) -> h11.Request:
    """Returns the request with the path alone for its target, and the target's host for its own.

    A request whose target is no URL is given back as it is.

    Raises:
        h11.RemoteProtocolError: The URL names no host, or a user.
    """
    found = _ABSOLUTE.fullmatch(request.target)
    if found is None or request.method == b"CONNECT":
        return request
    host, path = found.groups()
    if not host or host.startswith(b":") or b"@" in host:
        raise h11.RemoteProtocolError("a target without a host, or with a user")
    if not path.startswith(b"/"):
        path = b"*" if request.method == b"OPTIONS" and not path else b"/" + path
    headers = [header for header in request.headers if header[0] != b"host"]
    return h11.Request(
        method=request.method,
        target=path,
        headers=[(b"host", host), *headers],
        http_version=request.http_version,
    )
