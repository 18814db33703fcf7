"""The addresses of model servers, as options name them, and of this user's admin sockets.

The scheme says how a connection is protected. ``tls`` is encrypted. ``tcp`` is not, and is for this
machine only. ``plain-tcp`` is not encrypted either, and is for networks that the operator trusts.
``unix`` is a socket whose file permissions protect it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

FORMS: Final = "tls://HOST:PORT, tcp://127.0.0.1:PORT, plain-tcp://HOST:PORT or unix:/PATH"
"""The forms of an address, for messages."""

_SCHEMES: Final = ("tls", "tcp", "plain-tcp")


@dataclass(frozen=True)
class ModelServerAddress:
    """Where a model server listens: a host and a port, or the path of a UNIX socket."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def has_tls(self) -> bool:
        return self.scheme == "tls"

    @property
    def is_name(self) -> bool:
        return bool(self.host) and _ip(self.host) is None

    def at(self, host: str, port: int | None = None) -> ModelServerAddress:
        return replace(self, host=host, port=self.port if port is None else port)

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def model_server_address(name: str, value: Any) -> ModelServerAddress:
    """Reads one address; raises `TypeError` or `ValueError`, with the option's name."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be {FORMS}, not {value!r}")
    if value.startswith("unix:"):
        path = value.removeprefix("unix:").removeprefix("//")
        if not path:
            raise ValueError(f"{name}: {value!r} has no path; write unix:/run/models.sock")
        return ModelServerAddress("unix", path=path)
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{name}: {value!r}: {error}; write {FORMS}") from None
    has_more = parts.path or parts.query or parts.fragment or parts.username is not None
    if parts.scheme not in _SCHEMES or not host or port is None or has_more:
        raise ValueError(f"{name} must be {FORMS}, not {value!r}")
    if parts.scheme == "tcp" and not _is_loopback(host):
        raise ValueError(
            f"{name}: {value!r} is not encrypted, and leaves this machine; write "
            f"tls://{parts.netloc}, or plain-tcp://{parts.netloc} if you trust the network"
        )
    return ModelServerAddress(parts.scheme, host, port)


def checked_listening(name: str, value: Any) -> str:
    return str(model_server_address(name, value))


def checked_model_servers(name: str, value: Any) -> tuple[str, ...]:
    """Checks a list of addresses, names of hosts among them, and files of addresses."""
    entries: Sequence[Any] = [value] if isinstance(value, str) else value
    if not isinstance(cast("object", entries), Sequence):
        raise TypeError(f'{name} must be addresses, such as ["tls://models:9000"], not {value!r}')
    if not entries:
        raise ValueError(f"{name} is empty; give at least one of {FORMS}, or file:/PATH")
    return tuple([_checked_entry(name, entry) for entry in entries])


def addresses_in(text: str) -> list[ModelServerAddress]:
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [model_server_address("a line of the file", line) for line in lines if line]


def file_of(entry: str) -> str | None:
    return entry.removeprefix("file:").removeprefix("//") if entry.startswith("file:") else None


def _checked_entry(name: str, entry: Any) -> str:
    if isinstance(entry, str) and (path := file_of(entry)) is not None:
        if not path:
            raise ValueError(f"{name}: {entry!r} has no path; write file:/etc/shoal/models.txt")
        return f"file:{path}"
    address = model_server_address(name, entry)
    if address.host and not address.port:
        raise ValueError(f"{name}: {entry!r} has port 0, where no server can be reached")
    return str(address)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    found = _ip(host)
    return host == "localhost" if found is None else found.is_loopback


def admin_socket_directory() -> Path:
    """Returns a directory that need not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime, "shoal")
    try:
        return Path.home() / ".cache" / "shoal"
    except RuntimeError:
        raise ConnectionError(
            f"there is no directory for this user's servers: user {os.getuid()} has no home "
            "directory; set XDG_RUNTIME_DIR to a directory that only this user can write"
        ) from None


def admin_socket(name: str) -> Path:
    return admin_socket_directory() / f"{name}.sock"
