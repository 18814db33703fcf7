"""What a command tells a person beside its results."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Says a line on stderr, in one write, so that no other process's line comes between."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def in_one_line(error: BaseException) -> str:
    """Returns what an error says, or what it is, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
