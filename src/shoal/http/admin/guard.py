"""Who may use the admin API: decided from a request's headers, before its body is read.

A door with a token is for who knows the token. A door without one is for who can reach it, which is
right only on a UNIX socket that one user can open: what comes to a port may have come through a
relay, and a relay need not say so. A relay of that user's own is known by what most of them add.

A browser can be led to a door by a page of somebody else's. Such a page can't set the token's
header. On an open door it is known by the name that it had to ask for (DNS rebinding makes that
name lead here, but can't make it ours), and on every door by its ``Origin``.
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import TYPE_CHECKING, Final

from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Scope


_OF_PROXIES: Final = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via")


class Guard:
    """Lets requests in, or refuses them.

    Args:
        token: What they must present; None for an open door.
        hosts: Names, besides those of the loopback, by which an open door may be asked for.

    Raises:
        TypeError: The token is no text.
        ValueError: The token is empty, or can't stand in a header.
    """

    def __init__(self, token: str | None, hosts: Iterable[str] = ()) -> None:
        self._token = None if token is None else _checked(token)
        self._hosts = frozenset(host.lower() for host in hosts)

    def check(self, scope: Scope, *, changes: bool) -> None:
        """Lets a request in.

        Args:
            scope: Its ASGI scope.
            changes: Whether its method is one that changes something.

        Raises:
            Refused: It is not let in.
        """
        if self._token is None:
            self._check_host(scope)
            self._check_not_forwarded(scope)
        else:
            self._check_token(scope, self._token)
        if changes and _values(scope, b"origin"):
            raise Refused(
                Problem(
                    403,
                    "cross-origin",
                    "Pages of a browser can't change anything here",
                    "The request has an Origin header, which programs don't send.",
                )
            )

    def _check_token(self, scope: Scope, token: bytes) -> None:
        given = _values(scope, b"authorization")
        scheme, _, presented = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        is_right = hmac.compare_digest(presented.strip(), token)
        if scheme.lower() == b"bearer" and is_right:
            return
        detail = "The token is wrong." if given else "Send Authorization: Bearer, and the token."
        challenge = ((b"www-authenticate", b'Bearer realm="shoal"'),)
        raise Refused(
            Problem(401, "wrong-token", "The admin API asks for a token", detail, challenge)
        )

    def _check_host(self, scope: Scope) -> None:
        given = _values(scope, b"host")
        if given and all(self._is_allowed(host) for host in given):
            return
        raise Refused(
            Problem(
                421,
                "misdirected",
                "The admin API does not go by this name",
                "Ask for localhost, 127.0.0.1 or [::1].",
            )
        )

    def _check_not_forwarded(self, scope: Scope) -> None:
        # A proxy that stands before the port asks for it by a loopback name, whoever asked that.
        if any(_values(scope, name) for name in _OF_PROXIES):
            raise Refused(
                Problem(
                    403,
                    "forwarded",
                    "The admin API is not to be had through a proxy",
                    "It asks for no token here, so only programs of this machine may use it.",
                )
            )

    def _is_allowed(self, given: bytes) -> bool:
        host = given.decode("latin-1").strip().lower()
        if host.startswith("["):
            name, _, port = host[1:].partition("]")
            port = port.removeprefix(":") if port else "0"
        else:
            name, colon, port = host.partition(":")
            port = port if colon else "0"
        if not (port.isascii() and port.isdigit()):
            return False
        name = name.removesuffix(".")
        return name == "localhost" or name in self._hosts or _is_loopback(name)


def _checked(token: str) -> bytes:
    if not isinstance(token, str):  # pyright: ignore[reportUnnecessaryIsInstance] (users' mistakes)
        raise TypeError(f"a token is text, not of type {type(token).__name__}")
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            "a token is made of printable ASCII characters, without spaces; "
            "python -c 'import secrets; print(secrets.token_urlsafe())' makes a good one"
        )
    return token.encode("ascii")


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _values(scope: Scope, wanted: bytes) -> list[bytes]:
    headers: Final[Iterable[tuple[bytes, bytes]]] = scope["headers"]
    return [value for name, value in headers if name.lower() == wanted]
