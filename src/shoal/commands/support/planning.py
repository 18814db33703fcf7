"""Code that the planning commands share: arguments and the output of results."""

from __future__ import annotations

import math
import os
import signal
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.planning.mistake import CommandError

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable


def add_option_argument(group: Any) -> None:
    """Adds ``--option``, for options that have no argument of their own."""
    group.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option, like max_concurrent_batches=2 or overload=wait; repeatable",
    )


def add_output_arguments(parser: ArgumentParser, shown: str) -> None:
    """Adds ``--plot`` and ``--json``."""
    output = parser.add_argument_group("output")
    output.add_argument("--plot", type=Path, metavar="FILE", help=f"save a plot: {shown}")
    output.add_argument("--json", action="store_true", help="print JSON, times in seconds")


def print_out(text: str) -> None:
    """Prints a result.

    Raises:
        CommandError: It can't be written; without a message if the reader closed the pipe.
    """
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        # Otherwise the interpreter would flush again at its end, and report the error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise CommandError("", 128 + signal.SIGPIPE) from None
        raise CommandError(f"can't write the result: {error.strerror}", 1) from None


def save_plot(draw: Callable[[Path], None], path: Path) -> None:
    """Draws a plot into a file, and reports it on stderr.

    Raises:
        CommandError: It can't be drawn or saved.
    """
    try:
        draw(path)
    except ImportError as error:
        raise CommandError(str(error)) from None
    except ValueError as error:
        raise CommandError(f"no plot in {path}: {error}") from None
    except OSError as error:
        raise CommandError(f"can't write {path}: {error.strerror}") from None
    sys.stderr.write(f"Saved {path}\n")


def more_than_0(text: str) -> float:
    """Parses a number above 0."""
    number = _number(text)
    if not 0 < number < math.inf:
        raise ArgumentTypeError(f"want a number above 0, got {text!r}")
    return number


def at_least_0(text: str) -> float:
    """Parses a number of at least 0."""
    number = _number(text)
    if not 0 <= number < math.inf:
        raise ArgumentTypeError(f"want a number from 0 on, got {text!r}")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def whole(text: str) -> int:
    """Parses a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"want a whole number from 1 on, got {text!r}")
    return int(text)
