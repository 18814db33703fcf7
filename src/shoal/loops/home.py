"""The event loop and process that a batcher belongs to."""

from __future__ import annotations

import os
from threading import get_ident
from typing import TYPE_CHECKING

from shoal.errors import NotOpen
from shoal.loops.event_loop import EventLoop

if TYPE_CHECKING:
    from collections.abc import Iterable


class Home:
    """The event loop that a batcher belongs to: the one that it was created in.

    Attributes:
        loop: The event loop.
        thread: Its thread.
        process: The id of its process; the loop does not exist in forked processes.
        described: A description of the loop, for messages.
    """

    __slots__ = ("described", "loop", "process", "thread")

    def __init__(self) -> None:
        self.loop = EventLoop.here()
        self.thread = get_ident()
        self.process = os.getpid()
        self.described = self.loop.described()


def not_open_here(name: str, homes: Iterable[Home]) -> NotOpen:
    """Returns the error for a caller in another event loop than those where something is open."""
    here = EventLoop.here()
    advice = (
        "plain code calls it by:\n    with shoal.blocking(...) as call:\n        call(item)"
        if here.is_none
        else "each event loop opens its own batcher:\n"
        "    async with shoal.open_batchers(...):\n        ..."
    )
    return NotOpen(
        f"{name} is not open in this event loop: it is open in "
        f"{' and '.join(home.described for home in homes)}, and was called from "
        f"{here.described()}; {advice}"
    )
