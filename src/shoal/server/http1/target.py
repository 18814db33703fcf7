"""Targets of HTTP/1.1 requests that are not a path.

A server must accept a whole URL, as sent to a proxy, and use the URL's host in place of the
``Host`` header (RFC 9112, section 3.2.2). Otherwise the guard would check another host than the
requested one.
"""

from __future__ import annotations

import re
from typing import Final

from shoal.asgi.bad_request import BadRequest

_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)

Headers = list[tuple[bytes, bytes]]


def in_origin_form(method: str, target: bytes, headers: Headers) -> tuple[bytes, Headers]:
    """Returns path and query, and headers with the URL's host; raises `BadRequest`."""
    if target == b"*":
        return target, headers
    found = _ABSOLUTE.fullmatch(target)
    if found is None or method == "CONNECT":
        raise BadRequest(400, "a target that is no path and no URL")
    host, path = found.groups()
    if not host or host.startswith(b":") or b"@" in host:
        raise BadRequest(400, "a target without a host, or with a user")
    if not path.startswith(b"/"):
        path = b"*" if method == "OPTIONS" and not path else b"/" + path
    return path, [(b"host", host), *(header for header in headers if header[0] != b"host")]
