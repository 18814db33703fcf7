"""Arguments that several commands have."""

from __future__ import annotations

import math
import threading
from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.commands.support.mistake import CommandError
from shoal.serving.names import TAG_FORM, is_tag

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_name_argument(group: Any) -> None:
    group.add_argument(
        "--name",
        type=tag,
        default="default",
        metavar="NAME",
        help="the server's name; several can run on one machine (%(default)s)",
    )


def add_json_argument(parser: Any) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_token_argument(group: Any, summary: str) -> None:
    group.add_argument("--token-file", type=Path, metavar="FILE", help=summary)


def token_of(arguments: Namespace) -> str | None:
    """Returns the token in the file of ``--token-file``; None if it was not given."""
    # The token itself is not an argument: all users of a machine can see a process's arguments.
    path: Path | None = arguments.token_file
    if path is None:
        return None
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"can't read {path}: {getattr(error, 'strerror', error)}") from None
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise CommandError(
            f"{path} must contain one token: printable ASCII characters, without spaces"
        )
    return token


def add_init_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="VALUE",
        help="an argument for the class, like large.onnx or 3; repeatable",
    )
    add_kwarg_argument(parser, "an argument for the class by name, like threads=4; repeatable")


def add_kwarg_argument(parser: ArgumentParser, summary: str) -> None:
    parser.add_argument("--kwarg", action="append", default=[], metavar="KEY=VALUE", help=summary)


def add_option_argument(group: Any) -> None:
    group.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other option, like max_concurrent_batches=2 or overload=wait; repeatable",
    )


def add_output_arguments(parser: ArgumentParser, shown: str) -> None:
    output = parser.add_argument_group("output")
    output.add_argument("--plot", type=Path, metavar="FILE", help=f"save a plot: {shown}")
    output.add_argument("--json", action="store_true", help="print JSON, times in seconds")


def tag(text: str) -> str:
    if not is_tag(text):
        raise ArgumentTypeError(f"{text!r} can't be a name: {TAG_FORM}")
    return text


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"want a whole number from 1 on, got {text!r}")
    return int(text)


def more_than_0_seconds(text: str) -> float:
    found = _number(text)
    # NaN fails this check, too. The wait of a thread can't be longer.
    if not 0 < found <= threading.TIMEOUT_MAX / 2:
        raise ArgumentTypeError(f"want seconds, more than 0, e.g. 2.5, got {text!r}")
    return found


def more_than_0(text: str) -> float:
    number = _number(text)
    if not 0 < number < math.inf:
        raise ArgumentTypeError(f"want a number above 0, got {text!r}")
    return number


def at_least_0(text: str) -> float:
    number = _number(text)
    if not 0 <= number < math.inf:
        raise ArgumentTypeError(f"want a number from 0 on, got {text!r}")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
