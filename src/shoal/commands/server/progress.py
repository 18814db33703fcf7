"""Reports on stderr what a server loads and how long that takes, if it takes over a second."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from itertools import cycle
from typing import TYPE_CHECKING, Final, Self

from shoal.commands.support.mistake import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_QUIET_S: Final = 1.0
_MOVES_EACH_S: Final = 0.2
_LOOKS_EACH_S: Final = 1.0


class Progress:
    """Reports what a block does, if it takes longer than a second."""

    # At a terminal the line is updated; elsewhere there is a line whenever the parts change. A
    # thread writes the lines, since the block may hold this one.
    # `doing` is like "importing my_module:app"; `parts` returns the names that are still loading.
    def __init__(self, doing: str, parts: Callable[[], Sequence[str]] = tuple) -> None:
        self._doing = doing
        self._parts = parts
        self._began = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._speak, name="shoal-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        self._thread.join()

    def finish(self, done: str) -> None:
        """Ends the lines, and reports how long it took: `done` is like "imported my_module:app"."""
        self.__exit__()
        took_s = time.monotonic() - self._began
        if took_s > _QUIET_S:
            say(f"Shoal {done} in {took_s:.1f} s")

    def _speak(self) -> None:
        moves = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        last = ""
        signs = cycle("-\\|/")
        self._is_over.wait(_QUIET_S)
        while not self._is_over.is_set():
            names = ", ".join(self._parts())
            text = f"Shoal is {self._doing}{f': {names}' if names else ''}"
            if moves:
                _rewrite(f"{next(signs)} {text}, {time.monotonic() - self._began:.0f} s")
            elif text != last:
                say(text)
            last = text
            self._is_over.wait(_MOVES_EACH_S if moves else _LOOKS_EACH_S)
        if moves and last:
            _rewrite("")


def _rewrite(text: str) -> None:
    """Writes a line over the last one; later output begins at its start."""
    with suppress(OSError, ValueError):
        width = (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1
        sys.stderr.write(f"\x1b[K{text[:width]}\r")
        sys.stderr.flush()
