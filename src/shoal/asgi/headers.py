"""Checks of headers: the hosts and origins of requests, and the headers that an application sends.

A page in a browser can send requests to a server on the same machine: to an address that the page's
own name resolves to (DNS rebinding), or with a form or a script (cross-site requests). The first
kind has the page's host in ``Host``, the second the page in ``Origin``. Therefore a server at a
loopback address accepts only loopback names, and those that the operator adds. It refuses
WebSockets and unsafe methods from other origins. At other addresses, the operator sets both.

The headers of an application are checked against header injection.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from shoal.asgi.http_options import HttpOptions


PROBLEM_JSON: Final = b"application/problem+json"
_LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_ALL: Final = frozenset("*")
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LONGEST_SHOWN: Final = 64
WRONG_LENGTH: Final = "the length of the body differs from the Content-Length"
is_value: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch
# Only the server decides where a message and its connection end.
FRAMING: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade"),
    }
)
_OF_THE_SERVER: Final = FRAMING | {b"content-length", b"x-request-id"}
_http_log: Final = logging.getLogger("shoal.http")
_MOST_SHOWN: Final = 253  # characters; the longest name of a host

_log: Final = logging.getLogger("shoal.server")
_HOST: Final = re.compile(r"(?:\[([^\]]*)\]|([^:\[]*))(?::[0-9]*)?")


def may_be_decoded_early(headers: Mapping[bytes, bytes]) -> bool:
    """Returns whether a front end may decode the item, by the headers."""
    # They are checked on both sides, as middleware may change them. A compressed body may cost much
    # more than its size, and middleware may refuse the request.
    return (
        headers.get(b"content-type", b"").startswith(b"application/json")
        and b"content-encoding" not in headers
        and b"x-serve-call-method" not in headers
    )


class RequestGuard:
    """Refuses requests for other hosts, and from other origins."""

    def __init__(self, options: HttpOptions, name: Any) -> None:
        is_unix = isinstance(name, (str, bytes))
        is_loopback = not is_unix and _is_loopback(name[0])
        hosts = _names(options.allowed_hosts)
        # Whether only clients on this machine can reach the server, as far as is known. A proxy
        # that forwards public hosts may forward a forged ``localhost`` as well.
        self.is_local = (is_unix or is_loopback) and hosts <= _LOOPBACK | _ALL
        origins = _names(options.allowed_origins)
        # Those allowed; None for all. No page can have a loopback name by DNS rebinding.
        self._hosts = _unless_all(hosts | _LOOPBACK if is_loopback else hosts or _ALL)
        self._origins = _unless_all(origins if is_loopback else origins or _ALL)
        self._logged: set[int] = set()

    def check(self, method: str, host: bytes, origin: bytes | None) -> None:
        """Raises `BadRequest` with 421 or 403; a WebSocket's method is empty."""
        if self._hosts is not None and host_of(host) not in self._hosts:
            raise self._refusal(421, "host", host, "allowed_hosts (--allow-host)")
        if origin is None or self._origins is None or method in _SAFE_METHODS:
            return
        if not self._is_from(origin, host):
            raise self._refusal(403, "origin", origin, "allowed_origins (--allow-origin)")

    def _refusal(self, status: int, what: str, sent: bytes, option: str) -> BadRequest:
        if status not in self._logged:
            self._logged.add(status)
            shown = sent[:_MOST_SHOWN].decode("latin-1")
            _log.warning(
                "a request was refused with %d for its %s %r; to allow it, name it in %s. This is "
                "logged once.",
                *(status, what, shown, option),
            )
        return BadRequest(
            status,
            f"The server refuses requests with that {what}. Its operator can allow more with "
            f"{option}.",
        )

    def check_headers(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Checks a request from its headers; two different hosts are refused."""
        found: dict[bytes, bytes] = {}
        for name, value in headers:
            if name in (b"host", b"origin") and found.setdefault(name, value) != value:
                found[name] = b""
        self.check(method, found.get(b"host", b""), found.get(b"origin"))

    def _is_from(self, origin: bytes, host: bytes) -> bool:
        assert self._origins is not None
        sent = origin.decode("latin-1").lower()
        return sent.partition("://")[2] == host.decode("latin-1").lower() or sent in self._origins


def _names(allowed: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower().rstrip("/") for name in allowed)


def _unless_all(names: frozenset[str]) -> frozenset[str] | None:
    return None if names >= _ALL else names


def host_of(host: bytes) -> str:
    """Returns a host without its port and brackets, in lower case; empty if it is malformed."""
    match = _HOST.fullmatch(host.decode("latin-1").lower())
    return "" if match is None else match[1] or match[2]


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


class BadRequest(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def body(self) -> bytes:
        # A problem of RFC 9457, without an id.
        title = HTTPStatus(self.status).phrase
        problem = {"type": "about:blank", "title": title, "status": self.status}
        return json.dumps({**problem, "detail": str(self)}).encode()


def headers_of_code(
    chosen: Iterable[tuple[object, object]], without: Container[bytes] = ()
) -> list[tuple[bytes, bytes]]:
    """Returns the headers that user code chose, in lower case; raises `ValueError`."""
    # Headers that the server sets are left out. Values that are not text are left out and logged.
    headers: list[tuple[bytes, bytes]] = []
    for name, value in chosen:
        if not isinstance(name, (str, bytes)) or not isinstance(value, (str, bytes, int, float)):
            kinds = f"{type(name).__name__} and {type(value).__name__}"
            _http_log.error("a header of %s is left out: its name and value must be text", kinds)
            continue
        pair = _octets(name).lower(), _octets(value)
        if pair[0] not in _OF_THE_SERVER and pair[0] not in without:
            headers.append(pair)
    length_of(headers)
    return headers


def _octets(text: object) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode("latin-1", "replace")


def length_of(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Checks headers, and returns their Content-Length, if any; raises `ValueError`."""
    # An invalid name or value could inject a header, and not every server and protocol checks this.
    # HTTP/2 carries line breaks, and a proxy that converts to HTTP/1.1 sends the text after a line
    # break as further headers.
    length: int | None = None
    for name, value in headers:
        if not is_sendable(name, value):
            raise not_sendable(name, value)
        if name.lower() == b"content-length":
            if length is not None or not value.isdigit():
                raise not_sendable(name, value)
            length = int(value)
    return length


def is_sendable(name: bytes, value: bytes) -> bool:
    return _NAME.fullmatch(name) is not None and is_value(value) is not None


def not_sendable(name: bytes, value: bytes) -> ValueError:
    """Returns the error, without the value, which may be a caller's secret."""
    return ValueError(
        f"the header {name[:_LONGEST_SHOWN]!r} can't be sent with its value of {len(value)} bytes: "
        "a name consists of letters, digits and hyphens, and a value has no line breaks or control "
        "characters"
    )
