"""Notices that the other end of a connection between machines is gone, or does not read.

Both servers send a ping every second; an actor of Ray only responds to those of its program. An end
that receives nothing for many of its own turns is taken for dead, and so is one that takes nothing
of what was sent. Turns are counted, not seconds: an event loop that was blocked itself has read
nothing in that time either. The kernel notices sooner if a network breaks
(`shoal.replicas.remote.sockets`); this is for programs that hang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from shoal.errors import ItemTooLarge
from shoal.replicas.process.wire.frames import FrameKind
from shoal.replicas.process.wire.messages import unshared

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.replicas.process.wire.connection import FrameConnection
    from shoal.replicas.process.wire.messages import Message

PERIOD_S: Final = 1.0
MOST_SILENT: Final = 10
"""After how many turns without a byte the other end is taken for dead."""

MOST_BYTES: Final = 2**30
"""The largest frame between servers, and the most bytes that may wait to be sent."""


def check_size(message: Message, what: str) -> None:
    """Raises `ItemTooLarge` for a message that would end the connection."""
    size = sum([len(part) for part in message.parts])
    size += sum([memoryview(buffer).nbytes for buffer in message.buffers])
    if size > MOST_BYTES:
        raise ItemTooLarge(f"{what} take {size:,} bytes; a message may take {MOST_BYTES:,}")


async def keep_alive(
    connection: FrameConnection, on_dead: Callable[[str], object], period_s: float = PERIOD_S
) -> None:
    """Sends pings; calls `on_dead` with the reason if the other end is silent or takes nothing."""
    ping = unshared(FrameKind.PING, 0)
    silent = stuck = 0
    received, sent = connection.received_bytes, connection.sent_bytes
    while not connection.is_closed:
        await anyio.sleep(period_s)
        unsent = connection.unsent_bytes
        silent = silent + 1 if connection.received_bytes == received else 0
        stuck = stuck + 1 if unsent and connection.sent_bytes == sent else 0
        received, sent = connection.received_bytes, connection.sent_bytes
        if silent >= MOST_SILENT:
            on_dead(f"nothing was received for {MOST_SILENT * period_s:g} s")
        elif stuck >= MOST_SILENT:
            on_dead(f"it took no data for {MOST_SILENT * period_s:g} s")
        elif unsent > MOST_BYTES:
            on_dead(f"more than {MOST_BYTES:,} bytes wait for it to read them")
        elif not unsent:
            connection.send(ping)
