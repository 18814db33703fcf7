"""In which task the answers of a WebSocket are written and sent.

Where the server offers one that all connections share, that one does it: answers of many
connections are there at once, when their batch has ended, and a switch to a task for each would
cost more than all the rest. A task of the connection's own does what is left then, since it can
wait for the client, and all of it on another server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.batching.loops.event_loop import holds_ctrl_c
from shoal.http.websocket.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.batching.loops.parking import Parking


class Writing:
    """Has the answers of one connection written.

    Args:
        offered: What the server offers; None if it is another one than this package's.
        parking: The event loop's way to wait.
        write: Writes and sends what there is without waiting; returns whether nothing is left.
        failed: Called if that raises.
    """

    def __init__(
        self,
        offered: Mapping[str, Any] | None,
        parking: Parking,
        write: Callable[[], bool],
        failed: Callable[[], object],
    ) -> None:
        self._offered = offered
        self._write = write
        self._failed = failed
        self._is_called = False
        self._for_own_task = Signal(parking)

    def soon(self) -> None:
        """Has what there is written soon, by the server's task if that is possible."""
        if self._is_called:
            return
        call = self._offered.get("soon") if self._offered is not None else None
        if call is None:
            self._for_own_task.set()
        else:
            self._is_called = True
            call(self._write_now)

    def in_own_task(self) -> None:
        """Has what there is written by the connection's task."""
        self._for_own_task.set()

    async def wait(self) -> None:
        """Waits, in the connection's task, until there may be something for it to do."""
        await self._for_own_task.wait()

    @holds_ctrl_c
    def _write_now(self) -> None:
        try:
            is_done = self._write()
        except BaseException:
            self._failed()
            raise
        self._is_called = False
        if not is_done:
            self._for_own_task.set()
