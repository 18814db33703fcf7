"""Where a batcher lives: in one event loop of one process."""

from __future__ import annotations

import os
from threading import get_ident
from typing import TYPE_CHECKING

from shoal.batching.loops.event_loop import EventLoop
from shoal.errors import NotOpen

if TYPE_CHECKING:
    from collections.abc import Iterable


class Home:
    """The event loop that a batcher belongs to: the one that it was made in.

    Attributes:
        loop: The event loop.
        thread: Its thread.
        process: The process of that; one that was forked has no copy of it.
        described: The same in words.
    """

    __slots__ = ("described", "loop", "process", "thread")

    def __init__(self) -> None:
        self.loop = EventLoop.here()
        self.thread = get_ident()
        self.process = os.getpid()
        self.described = self.loop.described()


def not_open_here(name: str, homes: Iterable[Home]) -> NotOpen:
    """Makes the error of a caller in another event loop than those where something is open."""
    here = EventLoop.here()
    advice = (
        "plain code calls it by:\n    with shoal.blocking(...) as call:\n        call(item)"
        if here.is_none
        else "an event loop of its own opens it for itself:\n"
        "    async with shoal.open_batchers(...):\n        ..."
    )
    return NotOpen(
        f"{name} is not open in this event loop: it is open in "
        f"{' and '.join(home.described for home in homes)}, and was called from "
        f"{here.described()}; {advice}"
    )
