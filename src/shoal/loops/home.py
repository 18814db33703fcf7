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
    """The event loop in which a batcher was created, and its thread and process."""

    __slots__ = ("described", "loop", "process", "thread")

    def __init__(self) -> None:
        self.loop = EventLoop.here()
        self.thread = get_ident()
        # The loop does not exist in forked processes.
        self.process = os.getpid()
        self.described = self.loop.described()


def not_open_here(name: str, homes: Iterable[Home]) -> NotOpen:
    """Returns the error for a caller in another event loop than those of open batchers."""
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
