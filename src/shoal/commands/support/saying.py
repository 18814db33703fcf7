"""What a command tells a person beside its results."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(line: str) -> None:
    """Says a line on stderr, in one write, so that no other process's line comes between.

    Where nobody can hear it, since the terminal was closed, it is not said.
    """
    with suppress(OSError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def in_one_line(error: BaseException) -> str:
    """Returns what an error says, or what it is, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
