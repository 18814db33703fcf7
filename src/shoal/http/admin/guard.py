"""Authorization of requests to the admin API, from their headers, before the body is read.

With a token, a request must send it. Without one, every client that can connect may use the API.
That is safe only on a UNIX socket that a single user can open: a request to a port may have passed
through a relay, which need not announce itself. Requests through a relay of that user's own are
detected by the headers that most relays add.

A foreign web page can make the user's browser send requests. Such a page can't set the token's
header. Without a token it is detected by the ``Host`` header: with DNS rebinding a foreign name
resolves to this server, but the header still has that foreign name. In both cases a request that
changes something is detected by its ``Origin`` header.
"""

from __future__ import annotations

import binascii
import hmac
import ipaddress
from typing import TYPE_CHECKING, Final

from shoal.asgi.headers import host_of
from shoal.core.options.option import checked_token
from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Scope


_OF_PROXIES: Final = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via")


class Guard:
    """Authorizes requests; without a token only for a host of the loopback."""

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else checked_token(token).encode("ascii")

    def check(self, scope: Scope, *, changes: bool, is_page: bool = False) -> None:
        # For a page, which is read-only, a browser asks its user for the token, as the password of
        # any name.
        if self._token is None:
            self._check_host(scope)
            self._check_not_forwarded(scope)
        else:
            self._check_token(scope, self._token, is_page=is_page)
        if changes and _values(scope, b"origin"):
            title = "Requests of web pages can't change anything here"
            detail = "The request has an Origin header, which browsers send and programs don't."
            raise Refused(Problem(403, "cross-origin", title, detail))

    def _check_token(self, scope: Scope, token: bytes, *, is_page: bool) -> None:
        sent = _values(scope, b"authorization")
        scheme, _, presented = sent[0].partition(b" ") if len(sent) == 1 else (b"", b"", b"")
        scheme, presented = scheme.lower(), presented.strip()
        # Browsers send a password unasked, also for another site's page, so it is for reading only.
        if is_page and scheme == b"basic":
            scheme, presented = b"bearer", _password(presented)
        is_right = hmac.compare_digest(presented, token)
        if scheme == b"bearer" and is_right:
            return
        detail = "The token is wrong." if sent else "Send Authorization: Bearer, and the token."
        kind = b"Basic" if is_page else b"Bearer"
        challenge = ((b"www-authenticate", kind + b' realm="shoal"'),)
        raise Refused(Problem(401, "wrong-token", "The admin API needs a token", detail, challenge))

    def _check_host(self, scope: Scope) -> None:
        hosts = _values(scope, b"host")
        if hosts and all(map(_is_local, hosts)):
            return
        title = "The admin API does not accept this host name"
        detail = "Use localhost, 127.0.0.1 or [::1] as the host."
        raise Refused(Problem(421, "misdirected", title, detail))

    def _check_not_forwarded(self, scope: Scope) -> None:
        # A proxy on this machine uses a loopback name, wherever its own client is.
        if any(_values(scope, name) for name in _OF_PROXIES):
            title = "The admin API can't be used through a proxy"
            detail = "It needs no token here, so only programs on this machine may use it."
            raise Refused(Problem(403, "forwarded", title, detail))


def _is_local(header: bytes) -> bool:
    name = host_of(header.strip()).removesuffix(".")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _password(credentials: bytes) -> bytes:
    """Returns the password of ``Authorization: Basic``; empty if it is malformed."""
    try:
        return binascii.a2b_base64(credentials, strict_mode=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _values(scope: Scope, wanted: bytes) -> list[bytes]:
    headers: Final[Iterable[tuple[bytes, bytes]]] = scope["headers"]
    return [value for name, value in headers if name.lower() == wanted]
