"""The connections and bytes of a server's sockets.

The kernel counts the bytes of a TCP connection, and is asked when the connection closes and when
the counts are read. So they cost a request nothing. They are what passes the socket: with TLS the
encrypted bytes. Where the kernel does not tell them (UNIX sockets, other systems than Linux), there
are none.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVER: Final = "shoal.server"
"""The name of the ASGI extension by which the server of this package passes on its listeners: a
dict of `CountedConnections` by a fixed word."""

_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)
# Where struct tcp_info has tcpi_bytes_received, and tcpi_bytes_sent followed by
# tcpi_bytes_retrans; it only grows at its end.
_RECEIVED: Final = struct.Struct("Q"), 128
_SENT: Final = struct.Struct("QQ"), 200
_SIZE: Final = 216


class ConnectionTotals(NamedTuple):
    """The connections of one listener.

    Attributes:
        limit: How many may be open at once.
        open: How many are open.
        accepted: How many were accepted so far.
        received: How many bytes came in; None if the kernel does not tell.
        sent: How many bytes went out; None likewise.
    """

    limit: int
    open: int
    accepted: int
    received: int | None
    sent: int | None


class CountedConnections(Protocol):
    """The connections of one listener, whichever processes have them."""

    async def refresh(self) -> None:
        """Has processes that have connections tell what they have counted."""
        ...

    def totals(self) -> ConnectionTotals:
        """Returns the counts, those of open connections included."""
        ...

    def pids(self) -> Mapping[int, int]:
        """Returns the processes that have them, other than this one, by numbers from 1 on."""
        ...


class ConnectionCounts:
    """Counts the connections of one listener.

    Args:
        limit: How many may be open at once.
    """

    __slots__ = ("_accepted", "_limit", "_open", "_received", "_sent", "_tells")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: set[socket.socket] = set()
        self._accepted = 0
        self._received = self._sent = 0
        self._tells = False

    def opened(self, connected: socket.socket) -> None:
        """Counts a connection, whose end must be told as well."""
        self._open.add(connected)
        self._accepted += 1

    def closing(self, connected: socket.socket) -> None:
        """Counts the end of a connection, just before its socket is closed. Idempotent."""
        if connected in self._open:
            self._open.discard(connected)
            found = _bytes_of(connected)
            if found is not None:
                self._tells = True
                self._received += found[0]
                self._sent += found[1]

    def pids(self) -> Mapping[int, int]:
        """Returns none: this process has them."""
        return {}

    async def refresh(self) -> None:
        """Does nothing: this process has them."""

    def totals(self) -> ConnectionTotals:
        """Returns the counts, those of open connections included."""
        found = [one for one in map(_bytes_of, self._open) if one is not None]
        tells = self._tells or bool(found)
        return ConnectionTotals(
            self._limit,
            len(self._open),
            self._accepted,
            self._received + sum([received for received, _ in found]) if tells else None,
            self._sent + sum([sent for _, sent in found]) if tells else None,
        )


def _bytes_of(connected: socket.socket) -> tuple[int, int] | None:
    """Returns how many bytes a connection has received and sent; None if that is not known."""
    if _TCP_INFO is None or sys.platform != "linux":
        return None
    try:
        info = connected.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE)
    except OSError:  # no TCP, or the socket is broken
        return None
    if len(info) < _SIZE:  # an old kernel
        return None
    sent, again = _SENT[0].unpack_from(info, _SENT[1])
    (received,) = _RECEIVED[0].unpack_from(info, _RECEIVED[1])
    return received, sent - again
