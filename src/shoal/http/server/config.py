"""How to serve, and how that ended; the same for both servers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypercorn.config import Config

from shoal.http.server.listeners import Inherited, Tcp, Unix

if TYPE_CHECKING:
    from shoal.http.server.listeners import Address


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """How to serve.

    Attributes:
        host: The address to listen at: IPv4, IPv6, or a name.
        port: The port, or 0 for a free one.
        uds: The path of a UNIX socket to listen at in place of host and port; None for none.
        uds_mode: The permissions of that socket's file.
        fd: An inherited socket to listen at in place of host and port; None for none.
        graceful_timeout_s: How long requests that are under way at shutdown may take to finish.
        send_timeout_s: How long a client may take over each 256 KiB that it is sent; one that takes
            longer is disconnected.
        max_connections: How many connections may be open at once at one address; more wait to be
            accepted.
        keep_alive_timeout_s: How long a connection may be idle.
        access_log: Whether each request is logged; see `shoal.http.server.access_log`.

    Raises:
        ValueError: There are both a UNIX socket and an inherited one.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    uds_mode: int = 0o600
    fd: int | None = None
    graceful_timeout_s: float = 20.0
    send_timeout_s: float = 10.0
    max_connections: int = 1000
    keep_alive_timeout_s: float = 5.0
    access_log: bool = False

    def __post_init__(self) -> None:
        if self.uds is not None and self.fd is not None:
            raise ValueError(
                f"uds={self.uds!r} and fd={self.fd!r} are two addresses; one is served at, and "
                "others by doors="
            )

    @property
    def address(self) -> Address:
        """Where to listen."""
        if self.uds is not None:
            return Unix(self.uds, self.uds_mode)
        return Tcp(self.host, self.port) if self.fd is None else Inherited(self.fd)


@dataclass(frozen=True, kw_only=True)
class Drained:
    """How a server ended.

    Attributes:
        started: Whether it ever listened; False if it was shut down while the application started.
        served: Requests and WebSockets that ended by themselves, from the first to the last.
        finished: Those of them that were under way at shutdown, or came in its first moment.
        cut: Requests and WebSockets that did not end in time.
        took_s: Seconds from the shutdown until the last connection had ended.
        failure: What went wrong with the application's lifespan after it had started, if anything.
    """

    started: bool
    served: int = 0
    finished: int = 0
    cut: int = 0
    took_s: float = 0.0
    failure: str | None = None


def hypercorn_config(config: ServerConfig) -> Config:
    """Returns what Hypercorn's protocols are told."""
    hypercorn = Config()
    hypercorn.errorlog = logging.getLogger("shoal.server")
    hypercorn.accesslog = None
    hypercorn.include_server_header = False
    hypercorn.keep_alive_timeout = config.keep_alive_timeout_s
    return hypercorn
