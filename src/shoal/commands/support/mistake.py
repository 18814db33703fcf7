"""Messages of commands on stderr, and the escaping of text from others in them."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

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
    """Converts a mistake to a `CommandError`: wrong types and values, and a missing extra."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise CommandError(in_one_line(error)) from None
    except ModuleNotFoundError as error:
        raise CommandError(in_one_line(error), 1) from None


def failed_code(what: str, error: BaseException) -> CommandError:
    traceback.print_exception(error)
    return CommandError(f"{what}, see above", 1)


def in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def say(line: str) -> None:
    """Writes a line to stderr, escaped, in one write; does nothing if stderr can't be written."""
    with suppress(OSError):
        sys.stderr.write(f"{printable(line)}\n")
        sys.stderr.flush()


def open_closed_streams() -> None:
    """Opens the null device for standard streams that are closed, as by ``2>&-``."""
    # Otherwise a socket or a file would get the stream's number, and its output.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


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


# Control characters except tab and line feed, line separators, and marks of text direction.
_ESCAPED: Final = {
    code: f"\\u{code:04x}"
    for code in (
        *(*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)),
        *(0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)),
    )
}


def printable(text: str) -> str:
    """Escapes control characters except line feeds and tabs."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPED)


def indented(text: str) -> str:
    """Escapes text, and indents its lines after the first, so that they forge no record."""
    return printable(text).replace("\n", "\n  ")
