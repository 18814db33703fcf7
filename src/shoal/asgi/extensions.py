"""What Shoal's servers tell an application beyond ASGI: extensions, and counts of connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

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


class ConnectionTotals(NamedTuple):
    limit: int  # of connections that are open at once
    open: int
    accepted: int


class CountedConnections(Protocol):
    async def refresh(self) -> None: ...

    def totals(self) -> ConnectionTotals:
        """Returns the counts, which include open connections."""
        ...

    def pids(self) -> Mapping[int, int]: ...


class ConnectionCounts:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = self._accepted = 0

    def opened(self) -> None:
        self._open += 1
        self._accepted += 1

    def closed(self) -> None:
        self._open -= 1

    def pids(self) -> Mapping[int, int]:
        return {}

    async def refresh(self) -> None:
        pass

    def totals(self) -> ConnectionTotals:
        return ConnectionTotals(self._limit, self._open, self._accepted)
