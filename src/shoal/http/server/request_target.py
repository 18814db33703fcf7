"""Targets of HTTP/1.1 requests in absolute form: a whole URL, as sent to a proxy.

A server must accept them, and use the URL's host in place of the ``Host`` header (RFC 9112, section
3.2.2). Otherwise a check of the host would look at another host than the one that was requested.
"""

from __future__ import annotations

import re
from typing import Final

import h11

_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)


def in_origin_form(request: h11.Request) -> h11.Request:
    """Returns the request with only the path as its target, and the URL's host as ``Host``.

    A request whose target is not a URL is returned unchanged.

    Raises:
        h11.RemoteProtocolError: The URL has no host, or has a user.
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
