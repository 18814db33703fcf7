"""The headers in which proxies describe a request: its client, scheme, host and prefix.

A proxy connects from its own address, and names its client in headers. Any client can send the same
headers. Therefore the server reads them only from peers that the operator trusts. It reads only the
headers that the operator names, since a proxy forwards the headers that it does not know.

Each proxy appends its own peer to ``X-Forwarded-For``. The list is read from its end: the first
address that is not a trusted peer is the client. Earlier addresses are ignored, since that client
wrote them. The last value of the other headers applies, which the nearest proxy wrote.

Other servers' middleware does not fit: uvicorn's reads two of the headers, and Hypercorn's believes
any peer.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final

from shoal.asgi.option_checks import UNIX, is_prefix, network

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from starlette.types import Scope

    from shoal.asgi.http_options import HttpOptions

# How many proxies may be between the client and the server.
_MOST_HOPS: Final = 32
_LONGEST_HOP: Final = 1024
_MOST_KNOWN: Final = 1024

_SCHEMES: Final = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
_OF_WEBSOCKETS: Final = {"http": "ws", "https": "wss"}
_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"([a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::([0-9]{1,5}))?")
_NODE: Final = re.compile(
    r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([0-9.]{7,15}))(?::([0-9]{1,5}))?|([0-9A-Fa-f:.]{2,45})"
)

Peer = tuple[str, int]


class ProxyHeaders:
    """Completes the scopes of requests from the headers of proxies."""

    def __init__(self, options: HttpOptions) -> None:
        self._root_path = options.root_path
        self._trusts_unix = UNIX in options.trusted_peers
        self._networks = [network(one) for one in options.trusted_peers if one != UNIX]
        self._names = {name.encode("ascii"): name for name in options.proxy_headers}
        self._known: dict[str, bool] = {}

    @classmethod
    def of(cls, options: HttpOptions) -> ProxyHeaders | None:
        """Returns None if the options leave scopes as they are."""
        return cls(options) if options.root_path or options.trusted_peers else None

    def complete(self, scope: Scope) -> None:
        """Sets client, scheme, server, host, root_path and path; ignores malformed values."""
        root_path = self._root_path
        peer: Peer | None = scope["client"]
        if self._trusts_unix if peer is None else self._trusts(peer[0]):
            headers = self._proxy_headers(scope["headers"])
            scheme, host, prefix = (
                headers.get(f"x-forwarded-{name}", "").rpartition(",")[2].strip()
                for name in ("proto", "host", "prefix")
            )
            scope["client"] = self._client(peer, _hops(headers.get("x-forwarded-for", "")))
            _set_scheme(scope, scheme.lower())
            _set_host(scope, host.lower())
            prefix = prefix.rstrip("/")
            if is_prefix(prefix):
                root_path = prefix
        if root_path and scope["path"].startswith("/"):  # not "*"
            scope["root_path"] = root_path
            scope["path"] = root_path + scope["path"]
            scope["raw_path"] = root_path.encode("ascii") + scope["raw_path"]

    def _proxy_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str]:
        """Returns the headers of proxies; the values of a repeated header are joined."""
        values: dict[str, str] = {}
        for name, value in headers:
            if name in self._names:
                lower = self._names[name]
                text = value.decode("latin-1")
                values[lower] = f"{values[lower]},{text}" if lower in values else text
        return values

    def _client(self, peer: Peer | None, nodes: Sequence[str]) -> Peer | None:
        """Returns the client, from its address and those of proxies, nearest first."""
        client = peer
        for node in nodes:
            address = _peer(node)
            if address is None:  # the client of the last proxy is unknown
                break
            client = address
            if not self._trusts(address[0]):
                break
        return client

    def _trusts(self, host: str) -> bool:
        known = self._known.get(host)
        if known is None:
            address = _address(host)
            known = any(address in network for network in self._networks)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[host] = known
        return known


def _hops(value: str) -> list[str]:
    """Returns the elements of a list, from the last on, up to the limit."""
    hops = value.rsplit(",", _MOST_HOPS)[-_MOST_HOPS:]
    return [hop.strip() if len(hop) <= _LONGEST_HOP else "" for hop in reversed(hops)]


def _peer(node: str) -> Peer | None:
    """Returns an address, and its port or 0; None if it is malformed."""
    match = _NODE.fullmatch(node)
    if match is None:
        return None
    port = int(match[3] or 0)
    try:
        address = _address(match[1] or match[2] or match[4])
    except ValueError:
        return None
    return (str(address), port) if port <= 65535 else None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host.partition("%")[0])
    # An IPv6 socket that also accepts IPv4 clients has their addresses in mapped form.
    return getattr(address, "ipv4_mapped", None) or address


def _set_scheme(scope: Scope, sent: str) -> None:
    scheme = _SCHEMES.get(sent)
    if scheme is not None:
        is_websocket = scope["type"] == "websocket"
        scope["scheme"] = _OF_WEBSOCKETS[scheme] if is_websocket else scheme


def _set_host(scope: Scope, host: str) -> None:
    match = _HOST.fullmatch(host)
    if match is None or int(match[2] or 0) > 65535:
        return
    port = int(match[2] or _PORTS.get(_SCHEMES[scope["scheme"]], 0))
    scope["server"] = match[1].strip("[]"), port
    others = [header for header in scope["headers"] if header[0] != b"host"]
    scope["headers"] = [(b"host", host.encode("ascii")), *others]
