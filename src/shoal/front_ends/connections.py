"""The connections of all front ends, for the metrics of the server.

Clients are connected to the front ends' processes, and only the process that has a connection can
read its byte counts from the kernel. The front ends are asked when the metrics are collected.
Reporting each change would cost more than it is worth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from shoal.asgi.connections import ConnectionTotals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.front_ends.remote_front_end import RemoteFrontEnd

_WAIT_S: Final = 0.5
"""How long to wait for them: one may be stopped. Then what it has told last counts."""


class FrontEndConnections:
    """Counts the connections of all front ends, including those that have ended."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: set[RemoteFrontEnd] = set()
        self._ended = ConnectionTotals(0, 0, 0, None, None)

    def began(self, front_end: RemoteFrontEnd) -> None:
        self._running.add(front_end)

    def ended(self, front_end: RemoteFrontEnd) -> None:
        """Keeps the last counts of a front end, so that no count ever falls. Idempotent."""
        if front_end in self._running:
            self._running.discard(front_end)
            told = front_end.connections
            self._ended = _sum(self._ended, told._replace(open=0))

    async def refresh(self) -> None:
        """Asks all front ends, and waits a moment for those that can serve."""
        with anyio.move_on_after(_WAIT_S):
            for told in [one.ask_connections() for one in self._running if one.was_ready]:
                await told.wait()

    def pids(self) -> Mapping[int, int]:
        return {one.number: one.pid for one in self._running}

    def totals(self) -> ConnectionTotals:
        totals = self._ended
        for one in self._running:
            totals = _sum(totals, one.connections)
        return totals._replace(limit=self._limit)


def _sum(one: ConnectionTotals, other: ConnectionTotals) -> ConnectionTotals:
    return ConnectionTotals(
        one.limit + other.limit,
        one.open + other.open,
        one.accepted + other.accepted,
        _sum_if_known(one.received, other.received),
        _sum_if_known(one.sent, other.sent),
    )


def _sum_if_known(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)
