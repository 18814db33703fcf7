"""Checks of option values of `HttpOptions`: proxies, hosts, origins, security schemes, protocols.

A check returns the value in the form that is used, or raises `TypeError` or `ValueError` with the
option's name. Hosts and origins are compared as whole strings with the headers of clients. A name
that no client sends in that form would never match, so it is refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from shoal.core.options.names import suggested

# All peers at a UNIX socket, which have no address.
UNIX: Final = "unix"

_PROXY_HEADERS: Final = (
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-prefix",
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
    return _PREFIX.fullmatch(text) is not None and not {".", ".."} & set(text.split("/"))


def checked_peers(name: str, value: Any) -> tuple[str, ...]:
    """Checks addresses, networks and ``"unix"``; raises `TypeError` or `ValueError`."""
    peers = _texts(name, value)
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
    found = tuple(one.lower() for one in _texts(name, value))
    for one in found:
        if one not in _PROXY_HEADERS:
            raise ValueError(f"{name} takes {', '.join(_PROXY_HEADERS)}, not {one!r}")
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


def as_list(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a list, not {value!r}")
    return tuple[Any, ...](value)  # pyright: ignore[reportUnknownArgumentType]


def _texts(name: str, value: Any) -> tuple[str, ...]:
    items = as_list(name, value)
    for one in items:
        if not isinstance(one, str):
            raise TypeError(f"{name} must be a list of texts; {one!r} is none")
    return items


_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?\.?")
_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[^\]]*\]|[^:\[\]/?#@]+)(?::([0-9]{1,5}))?/?")
_DEFAULT_PORTS: Final = {"http": "80", "ws": "80", "https": "443", "wss": "443"}


def checked_hosts(name: str, value: Any) -> tuple[str, ...]:
    """Returns hosts in lower case, without brackets; raises `TypeError` or `ValueError`."""
    return tuple(one if one == "*" else _host(name, one) for one in _texts(name, value))


def checked_origins(name: str, value: Any) -> tuple[str, ...]:
    """Returns origins in lower case; raises `TypeError` or `ValueError`."""
    return tuple(one if one in ("*", "null") else _origin(name, one) for one in _texts(name, value))


def _host(name: str, value: str) -> str:
    host = value.lower()
    if (address := _ipv6(host)) is not None:
        return address
    if not _HOST.fullmatch(host):
        raise ValueError(
            f"{name}: no request has the host {value!r}; a host is a name in ASCII or an address, "
            'without a port, such as "example.com" or "::1", and "*" is for all hosts'
        )
    return host


def _origin(name: str, value: str) -> str:
    origin = value.lower()
    match = _ORIGIN.fullmatch(origin)
    if match is not None and origin.isascii() and "*" not in origin:
        scheme, host, port = match.groups()
        if host.startswith("["):
            address = _ipv6(host)
            host = None if address is None else f"[{address}]"
        if host is not None and (port is None or _DEFAULT_PORTS.get(scheme) != port):
            return f"{scheme}://{host}{f':{port}' if port else ''}"
    raise ValueError(
        f"{name}: no page has the origin {value!r}; an origin is a scheme, a host in ASCII, and a "
        'port if it is not the scheme\'s, such as "https://example.com", and "*" is for all origins'
    )


def _ipv6(host: str) -> str | None:
    """Returns an IPv6 address as clients write it; None if it is another name."""
    try:
        return str(ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]")))
    except ValueError:
        return None


# Scheme names with their scopes. All schemes in one mapping are required.
SecurityRequirement: TypeAlias = Mapping[str, Sequence[str]]

# One requirement, or several alternatives.
SecurityRequirements: TypeAlias = SecurityRequirement | Sequence[SecurityRequirement]

# OpenAPI allows these names of components.
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,64}")
_KINDS: Final = ("apiKey", "http", "mutualTLS", "oauth2", "openIdConnect")
_EXAMPLE: Final = '{"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}'


# Security schemes are only described in the OpenAPI document. Middleware checks the requests.
def checked_schemes(name: str, value: Any) -> dict[str, dict[str, Any]]:
    """Returns a copy of security schemes by name; raises `TypeError` or `ValueError`."""
    try:
        schemes = {key: dict(scheme) for key, scheme in value.items()}
        misnamed = [key for key in schemes if not _NAME.fullmatch(key)]
    except (AttributeError, TypeError, ValueError):
        raise TypeError(f"{name} must be a mapping such as {_EXAMPLE}, not {value!r}") from None
    if misnamed:
        raise ValueError(f"{name}: a name has 1 to 64 of A-Z a-z 0-9 . _ -, not {misnamed[0]!r}")
    for key, scheme in schemes.items():
        if scheme.get("type") not in _KINDS:
            raise ValueError(
                f"{name}: the type of {key!r} must be one of {', '.join(_KINDS)}, "
                f"not {scheme.get('type')!r}"
            )
    return schemes


def checked_requirements(name: str, value: Any) -> tuple[dict[str, list[str]], ...]:
    """Returns the alternative requirements; raises `TypeError`."""
    alternatives: Any = [value] if isinstance(value, Mapping) else value
    try:
        return tuple(
            {scheme: [*_texts(name, scopes)] for scheme, scopes in one.items()}
            for one in as_list(name, alternatives)
        )
    except (AttributeError, TypeError):
        raise TypeError(
            f'{name} must map schemes to lists of scopes, such as {{"key": []}}, or be a list of '
            f"such mappings, not {value!r}"
        ) from None


def check_known(needed: Any, schemes: Mapping[str, Any]) -> None:
    """Raises `ValueError` if a requirement names an unknown scheme."""
    for one in needed:
        for scheme in one:
            if scheme not in schemes:
                raise ValueError(
                    f"security names the scheme {scheme!r}, and security_schemes of the "
                    f"application has {', '.join(schemes) or 'none'}"
                )


# As ``module:class``.
PROTOCOLS: Final[Mapping[str, str]] = {
    "oip": "shoal.http.oip.protocol:OpenInference",
    "openai": "shoal.http.openai.protocol:OpenAI",
}


def checked_protocols(name: str, value: Any) -> tuple[Any, ...]:
    """Checks names of protocols and `HttpProtocol` objects; raises `TypeError`, `ValueError`."""
    protocols = as_list(name, value)
    for one in protocols:
        if isinstance(one, str) and one not in PROTOCOLS:
            hint = suggested(one, list(PROTOCOLS))
            names = ", ".join(PROTOCOLS)
            raise ValueError(
                f"{name} must name protocols ({names}), not {one!r}" + (f"; {hint}" if hint else "")
            )
        if not isinstance(one, str) and not callable(getattr(one, "routes", None)):
            raise TypeError(
                f"{name} must be a list of names of protocols ({', '.join(PROTOCOLS)}) and "
                f"shoal.http.HttpProtocol objects, not with {one!r}"
            )
    return protocols
