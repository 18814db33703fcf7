"""The options of a server behind proxies: trusted peers, their headers, and the path prefix."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

UNIX: Final = "unix"
"""The name of the peers at a UNIX socket, which have no address."""

FORWARDED: Final = "forwarded"
"""The header of RFC 7239, in place of the first three of `PROXY_HEADERS`."""

PROXY_HEADERS: Final = (
    *("x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-prefix"),
    FORWARDED,
)

_MAPPED_BITS: Final = 96  # of ::ffff:0:0/96, the mapped IPv4 addresses
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]{1,255}){1,16}")


def network(text: str) -> Network:
    """Returns a network, with mapped IPv4 addresses as IPv4; raises `ValueError`."""
    found = ipaddress.ip_network(text)
    mapped = getattr(found.network_address, "ipv4_mapped", None)
    if mapped is None or found.prefixlen < _MAPPED_BITS:
        return found
    return ipaddress.ip_network((mapped, found.prefixlen - _MAPPED_BITS))


def is_prefix(text: str) -> bool:
    """Returns whether a text is a valid path prefix."""
    return _PREFIX.fullmatch(text) is not None and not {".", ".."} & set(text.split("/"))


def checked_peers(name: str, value: Any) -> tuple[str, ...]:
    """Checks addresses, networks and ``"unix"``; raises `TypeError` or `ValueError`."""
    peers = texts(name, value)
    for one in peers:
        if one == UNIX:
            continue
        try:
            network(one)
        except ValueError as error:
            raise ValueError(
                f'{name} takes addresses such as "10.0.0.7", networks such as "10.0.0.0/8", and '
                f'"{UNIX}" for the peers at a UNIX socket, not {one!r}: {error}'
            ) from None
    return peers


def checked_proxy_headers(name: str, value: Any) -> tuple[str, ...]:
    """Returns the names in lower case; raises `TypeError` or `ValueError`."""
    found = tuple(one.lower() for one in texts(name, value))
    for one in found:
        if one not in PROXY_HEADERS:
            raise ValueError(f"{name} takes {', '.join(PROXY_HEADERS)}, not {one!r}")
    if FORWARDED in found and set(found) & set(PROXY_HEADERS[:3]):
        raise ValueError(
            f"{name}: {FORWARDED} says what {', '.join(PROXY_HEADERS[:3])} say, so that a client "
            "could contradict the proxy; name the one that the proxy sets"
        )
    return found


def checked_root_path(name: str, value: Any) -> str:
    """Returns a path prefix without its last slash; raises `TypeError` or `ValueError`."""
    if not isinstance(value, str):
        raise TypeError(f'{name} must be text, such as "/models", not {value!r}')
    prefix = value.rstrip("/")
    if prefix and not is_prefix(prefix):
        raise ValueError(
            f'{name} must begin with a slash, and have names of letters, digits and "-._~" '
            f'between slashes, such as "/models", not {value!r}'
        )
    return prefix


def texts(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a list, not {value!r}")
    found = tuple[Any, ...](value)  # pyright: ignore[reportUnknownArgumentType]
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"{name} must be a list of texts; {one!r} is none")
    return found
