"""Messages of commands on stderr: mistakes, failures and progress."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from shoal.commands.support.escaping import printable

if TYPE_CHECKING:
    from collections.abc import Generator

# The errors of a pipe or a terminal without a reader.
_READER_IS_GONE: Final = frozenset({errno.EPIPE, errno.EIO})


class CommandError(Exception):
    """An error of a command; its message is one line, which says how to correct a mistake."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # 2 for a mistake in the command, 1 for any other error


@contextmanager
def as_mistakes() -> Generator[None]:
    """Converts a `TypeError` or `ValueError` to a `CommandError`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise CommandError(in_one_line(error)) from None


def in_one_line(error: BaseException) -> str:
    """Returns the message of an error in one line, or its class if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


def say(line: str) -> None:
    """Writes a line to stderr, escaped, in one write; does nothing if stderr can't be written."""
    with suppress(OSError):
        sys.stderr.write(f"{printable(line)}\n")
        sys.stderr.flush()


def drop_unread_output() -> None:
    """Drops output for a reader that is gone, which would fail the interpreter's exit."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # pyright: ignore[reportUnnecessaryComparison] - it may be closed
            continue
        try:
            stream.flush()
        except OSError as error:
            if error.errno in _READER_IS_GONE:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
