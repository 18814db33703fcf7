"""The options that name the hosts and origins that a server accepts.

They are compared as whole strings with the headers of clients. A name that no client sends in that
form would never match, so it is refused.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Final

from shoal.asgi.proxy_options import texts

_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?\.?")
_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[^\]]*\]|[^:\[\]/?#@]+)(?::([0-9]{1,5}))?/?")
_DEFAULT_PORTS: Final = {"http": "80", "ws": "80", "https": "443", "wss": "443"}


def checked_hosts(name: str, value: Any) -> tuple[str, ...]:
    """Returns hosts in lower case, without brackets; raises `TypeError` or `ValueError`."""
    return tuple(one if one == "*" else _host(name, one) for one in texts(name, value))


def checked_origins(name: str, value: Any) -> tuple[str, ...]:
    """Returns origins in lower case; raises `TypeError` or `ValueError`."""
    return tuple(one if one in ("*", "null") else _origin(name, one) for one in texts(name, value))


def _host(name: str, given: str) -> str:
    host = given.lower()
    if (address := _ipv6(host)) is not None:
        return address
    if _HOST.fullmatch(host):
        return host
    if host.count(":") == 1 and "/" not in host:
        why = f"leave out the port: {host.partition(':')[0]!r}"
    elif "*" in host:
        why = '"*" is for all hosts, and there are no other patterns; name each host'
    elif not host.isascii():
        why = 'clients send such a name in ASCII, as "xn--..."'
    else:
        why = 'a host is a name or an address, such as "example.com" or "::1"'
    raise ValueError(f"{name}: no request has the host {given!r}; {why}")


def _origin(name: str, given: str) -> str:
    origin = given.lower()
    found = _ORIGIN.fullmatch(origin)
    if found is not None and origin.isascii() and "*" not in origin:
        scheme, host, port = found.groups()
        if host.startswith("["):
            address = _ipv6(host)
            host = None if address is None else f"[{address}]"
        if host is not None and (port is None or _DEFAULT_PORTS.get(scheme) != port):
            return f"{scheme}://{host}{f':{port}' if port else ''}"
    if "*" in origin:
        why = '"*" is for all origins, and there are no other patterns; name each origin'
    elif not origin.isascii():
        why = 'browsers send such a name in ASCII, as "https://xn--..."'
    elif found is not None and found[3] is not None:
        why = f"browsers leave out the port of the scheme: {origin.rpartition(':')[0]!r}"
    else:
        why = 'an origin is a scheme, a host and perhaps a port, such as "https://example.com"'
    raise ValueError(f"{name}: no page has the origin {given!r}; {why}")


def _ipv6(host: str) -> str | None:
    """Returns an IPv6 address as clients write it; None if it is another name."""
    try:
        return str(ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]")))
    except ValueError:
        return None
