"""The `Parking` of the running event loop; the other loop's library is not imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.loops.event_loop import in_trio_task

if TYPE_CHECKING:
    from shoal.loops.parking import Parking


def parking_of_this_loop() -> Parking:
    """Raises a `RuntimeError` if the caller runs in no event loop."""
    if in_trio_task():
        from shoal.loops.trio_parking import TrioParking

        return TrioParking()
    from shoal.loops.asyncio_parking import AsyncioParking

    return AsyncioParking()
