"""How tasks wait in the event loop that runs; the other loop's library stays unloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.batching.loops.event_loop import in_trio_task

if TYPE_CHECKING:
    from shoal.batching.loops.parking import Parking


def parking_of_this_loop() -> Parking:
    """Returns the parking for the event loop that runs the caller.

    Raises:
        RuntimeError: No event loop runs the caller.
    """
    if in_trio_task():
        from shoal.batching.loops.trio_parking import TrioParking

        return TrioParking()
    from shoal.batching.loops.asyncio_parking import AsyncioParking

    return AsyncioParking()
