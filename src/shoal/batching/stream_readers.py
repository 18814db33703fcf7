"""Waiting for the readers of streams whose buffers are full, and failing the slow ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.core.request import State
from shoal.errors import SlowReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batching.loops.parking import Parking
    from shoal.batching.stream_buffer import StreamBuffer
    from shoal.core.request import Request


def is_full(request: Request) -> bool:
    """Says whether a stream's reader has left as many items as may wait for it."""
    buffer: StreamBuffer = request.cell
    return len(buffer.items) >= buffer.capacity


async def wait_for_readers(
    full: list[Request],
    limit_s: float | None,
    parking: Parking,
    fail: Callable[[Request], None],
) -> None:
    """Waits until no buffer is full, but no longer than its readers may hold the batch back.

    Args:
        full: The requests whose buffers are full.
        limit_s: For how long in all one reader may, in seconds; None for no limit.
        parking: How to wait.
        fail: Fails the request of a reader that is too slow.
    """
    while full:
        now = parking.now()
        hold = parking.new_cell()
        for request in full:
            request.cell.begin_hold(hold, now)
        scope = parking.new_scope()
        due: dict[Request, float] = {}
        if limit_s is not None:
            due = {request: now + limit_s - request.cell.held_s for request in full}
            scope.deadline = min(due.values())
        try:
            with scope:
                await hold
        finally:
            now = parking.now()
            for request in full:
                request.cell.end_hold(now)
        full = [request for request in full if request.state is State.RUNNING and is_full(request)]
        if limit_s is not None:
            for request in full:
                if now >= due[request]:
                    fail(request)
            full = [request for request in full if request.state is State.RUNNING]


def too_slow(name: str, request: Request, limit_s: float | None) -> SlowReader:
    """Makes the error of a reader that held its batch back for too long."""
    return SlowReader(
        f"a stream of {name} held its batch back for {limit_s} s: "
        f"its reader left {request.cell.capacity} items waiting"
    )
