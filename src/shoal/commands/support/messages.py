"""Messages of a command to its user, on stderr."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(line: str) -> None:
    """Writes a line to stderr, in one write, so that no other process's output gets between.

    Does nothing if stderr can't be written, as when its terminal was closed.
    """
    with suppress(OSError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def in_one_line(error: BaseException) -> str:
    """Returns the message of an error in one line, or its class if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__
