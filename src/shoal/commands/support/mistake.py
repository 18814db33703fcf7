"""What commands tell their user on stderr: mistakes, failures and messages."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from shoal.commands.support.escaping import printable

if TYPE_CHECKING:
    from collections.abc import Generator

# What a pipe, and a terminal, that nobody reads any more fails with.
_READER_IS_GONE: Final = frozenset({errno.EPIPE, errno.EIO})


class CommandError(Exception):
    """A command can't be carried out; its message is one line, which says how to correct a mistake.

    Attributes:
        exit_code: The exit code of the command: 2 for a mistake in the command, 1 for any other.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def as_mistakes() -> Generator[None]:
    """Reports what is wrong with a value, a `TypeError` or `ValueError`, as the user's mistake.

    Raises:
        CommandError: The block raised such an error.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        raise CommandError(in_one_line(error)) from None


def in_one_line(error: BaseException) -> str:
    """Returns the message of an error in one line, or its class if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


def say(line: str) -> None:
    """Writes a line to stderr, in one write, so that no other process's output gets between.

    Its control characters are escaped.

    Does nothing if stderr can't be written, as when its terminal was closed.
    """
    with suppress(OSError):
        sys.stderr.write(f"{printable(line)}\n")
        sys.stderr.flush()


def drop_unread_output() -> None:
    """Drops what stdout and stderr still hold for a reader that is gone.

    At its end the interpreter would try again to write it, and would fail for that.
    """
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
