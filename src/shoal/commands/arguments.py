"""Arguments of more than one command."""

from __future__ import annotations

import threading
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any

from shoal.serving.naming import TAG_FORM, is_tag

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable


def add_command(
    commands: Any,
    name: str,
    run: Callable[[Namespace], int] | None,
    *,
    says: str,
    description: str,
    example: str,
) -> ArgumentParser:
    """Describes a command, or with None for `run`, a family of commands."""
    parser: ArgumentParser = commands.add_parser(name, help=says, allow_abbrev=False)
    describe(parser, run, description, example)
    return parser


def describe(
    parser: ArgumentParser,
    run: Callable[[Namespace], int] | None,
    description: str,
    example: str,
) -> None:
    """Says what a command does, with an example, and what runs it."""
    parser.description = description
    parser.epilog = f"example:\n{example}"
    parser.formatter_class = RawDescriptionHelpFormatter
    if run is not None:
        parser.set_defaults(run=run)


def add_name_argument(group: Any) -> None:
    """Describes ``--name``."""
    group.add_argument(
        "--name",
        type=tag,
        default="default",
        metavar="NAME",
        help="the server's name, by which others on this machine are told apart (%(default)s)",
    )


def add_json_argument(parser: Any) -> None:
    """Describes ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def tag(text: str) -> str:
    """Reads a name."""
    if not is_tag(text):
        raise ArgumentTypeError(f"{text!r} can't be a name: {TAG_FORM}")
    return text


def port(text: str) -> int:
    """Reads the number of a port."""
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f"want a number from 0 to 65535, got {text!r}")
    return int(text)


def count(text: str) -> int:
    """Reads a number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"want a number from 1 on, got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Reads a time in seconds."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    # NaN fails this, too; an endless wait would make the watchdog useless.
    if not 0 <= found <= threading.TIMEOUT_MAX / 2:
        raise ArgumentTypeError(f"want seconds, e.g. 2.5, got {text!r}")
    return found


def more_than_0_seconds(text: str) -> float:
    """Reads a time above 0 in seconds."""
    found = seconds(text)
    if found == 0:
        raise ArgumentTypeError("want more than 0 seconds")
    return found
