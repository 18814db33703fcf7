"""What a server says when its file descriptors run out."""

from __future__ import annotations

import errno
import os

import anyio

from shoal.server.connection_limit import Exhaustion, LimitedListener


class Exhausted:
    """A bound socket, at which no descriptor is left for a client."""

    socket: Exhausted

    def __init__(self):
        self.socket = self

    def accept(self):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_exhaustion_is_logged_once_a_minute_for_all_addresses(caplog):
    exhaustion = Exhaustion()
    with anyio.move_on_after(150):
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                listener = LimitedListener(Exhausted(), 1, exhaustion)
                tasks.start_soon(listener.accept)
    line = (
        "can't accept connections at the moment: Too many open files; new connections wait. This"
        " is logged once a minute."
    )
    assert caplog.messages == [line] * 3
