"""The connections of all front ends, for the metrics of the server.

Clients are connected to the front ends' processes, and the kernel tells the bytes of a connection
only to a process that has it. So they are asked when somebody wants to know. A front end that tells
its counts whenever they change would cost more than it is worth.
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
    """Counts the connections of all front ends, those that have ended included.

    A front end that has ended counts as it last told, so no count ever falls.

    Args:
        limit: How many connections may be open at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: set[RemoteFrontEnd] = set()
        self._ended = ConnectionTotals(0, 0, 0, None, None)

    def began(self, front_end: RemoteFrontEnd) -> None:
        """Counts those of a front end, too."""
        self._running.add(front_end)

    def ended(self, front_end: RemoteFrontEnd) -> None:
        """Keeps what a front end has told, which has no connections any more. Idempotent."""
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
        """Returns the processes of the front ends, by their numbers."""
        return {one.number: one.pid for one in self._running}

    def totals(self) -> ConnectionTotals:
        """Returns the counts as they were told last."""
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
