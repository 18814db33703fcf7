"""What Shoal's servers tell an application beyond ASGI: extensions, and the counts of connections.

The kernel counts the bytes of a TCP connection. They are read when the connection closes and when
the metrics are collected, so they cost a request nothing. With TLS they are the encrypted bytes.
They are None where the kernel has no counts: for UNIX sockets, and on systems other than Linux.
"""

from __future__ import annotations

import socket
import struct
import sys
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Receive, Scope, Send

# A mapping with which a server reports a client's disconnect.
DISCONNECT: Final = "shoal.disconnect"

# The same mapping, offered by a server whose front ends decode items and encode results.
DECODED: Final = "shoal.decoded"

# Offered by a server that has checked hosts and origins itself.
GUARDED: Final = "shoal.guarded"

# In a scope: the ids of the request's trace and span.
TRACE: Final = "shoal.trace"

# The ASGI extension with a server's listeners: a dict of `CountedConnections` by "main" and
# "admin".
SERVER: Final = "shoal.server"


# Protocols, since neither a server nor an application imports the other.


class ItemRequest(Protocol):
    """A request that a front end has forwarded whole; the waiter of its call."""

    def scope(self) -> Scope: ...

    def wake(self) -> object:
        """Must be called once when the call has ended."""

    def done(self) -> bool:
        """Whether nobody waits for the call any more."""
        ...


class BegunCall(Protocol):
    """The call of such a request, which an application has begun."""

    def leave(self) -> object:
        """Ends the call, since the client is gone, or the server ends."""

    # One of the others is called once the call has ended.

    def answer(self) -> tuple[list[tuple[bytes, bytes]], Any] | None:
        """Returns the headers and the body of a 200; None if `finish` must be called."""

    async def finish(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Responds in a task, as the application would."""

    def count_left(self, refused_with: int) -> None:
        """Ends a request whose client is gone, or was sent this status by the server."""


# Begins the call of a pickled item that a decoder has made, given by its number, or of a body, for
# which the number is 0; returns None if the application, which is given too, must be called.
BeginCall: TypeAlias = "Callable[[ItemRequest, object, int, Any], BegunCall | None]"

_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)
# Where struct tcp_info has tcpi_bytes_received, and tcpi_bytes_sent followed by
# tcpi_bytes_retrans; it only grows at its end.
_RECEIVED: Final = struct.Struct("Q"), 128
_SENT: Final = struct.Struct("QQ"), 200
_SIZE: Final = 216


class ConnectionTotals(NamedTuple):
    limit: int  # of connections that are open at once
    open: int
    accepted: int
    received: int | None  # bytes; None if the kernel has no counts
    sent: int | None


class CountedConnections:
    """The connections at an address, which this process or its workers have."""

    __slots__ = ()

    async def refresh(self) -> None:
        """Updates the counts, where other processes have them."""

    @abstractmethod
    def totals(self) -> ConnectionTotals:
        """Returns the counts, which include open connections."""

    def pids(self) -> Mapping[int, int]:
        """Returns the ids of the workers' processes, by their numbers."""
        return {}


class ConnectionCounts(CountedConnections):
    __slots__ = ("_accepted", "_limit", "_open", "_received", "_sent", "_tells")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: set[socket.socket] = set()
        self._accepted = 0
        self._received = self._sent = 0
        self._tells = False

    def opened(self, connected: socket.socket) -> None:
        self._open.add(connected)
        self._accepted += 1

    def closing(self, connected: socket.socket) -> None:
        """Must be called just before the socket is closed. Idempotent."""
        if connected in self._open:
            self._open.discard(connected)
            sizes = _bytes_of(connected)
            if sizes is not None:
                self._tells = True
                self._received += sizes[0]
                self._sent += sizes[1]

    def totals(self) -> ConnectionTotals:
        sizes = [one for one in map(_bytes_of, self._open) if one is not None]
        tells = self._tells or bool(sizes)
        return ConnectionTotals(
            self._limit,
            len(self._open),
            self._accepted,
            self._received + sum([received for received, _ in sizes]) if tells else None,
            self._sent + sum([sent for _, sent in sizes]) if tells else None,
        )


def _bytes_of(connected: socket.socket) -> tuple[int, int] | None:
    if _TCP_INFO is None or sys.platform != "linux":
        return None
    try:
        info = connected.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE)
    except OSError:  # not a TCP socket, or a broken one
        return None
    if len(info) < _SIZE:  # an old kernel
        return None
    sent, again = _SENT[0].unpack_from(info, _SENT[1])
    (received,) = _RECEIVED[0].unpack_from(info, _RECEIVED[1])
    return received, sent - again
