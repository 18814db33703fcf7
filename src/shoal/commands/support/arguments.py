"""Arguments that several commands have, and their parser."""

from __future__ import annotations

import threading
from argparse import (
    ArgumentError,
    ArgumentParser,
    ArgumentTypeError,
    RawDescriptionHelpFormatter,
)
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from typing_extensions import override

from shoal.core.options.names import nearest
from shoal.serving.names import TAG_FORM, is_tag

if TYPE_CHECKING:
    from argparse import Action, Namespace
    from collections.abc import Callable

    from _typeshed import SupportsWrite


class CommandParser(ArgumentParser):
    """Accepts a command's options anywhere among its positional arguments, and suggests for typos.

    A plain `ArgumentParser` ends an argument with ``nargs="*"`` at the first option after it, so
    that in ``create small my:Code --arg 3 retries=1`` the last word is an unknown argument.
    """

    _is_within = False

    def parse_known_args(  # type: ignore[override]  # the base method is a set of overloads
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Namespace, list[str]]:
        """See `ArgumentParser`."""
        if self._subparsers is not None:
            self._check_first(args)
            return super().parse_known_args(args, namespace)
        if self._is_within:
            return super().parse_known_args(args, namespace)
        self._is_within = True  # the method below calls this one
        try:
            found, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_within = False
        if unknown:
            # Reported here, by the parser that knows the command's options, not by the top parser.
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggestion(unknown)}")
        return found, unknown

    @override
    def error(self, message: str) -> NoReturn:
        """Prints the error and points to ``--help``: the usage of a command fills a screen."""
        self.exit(2, f"{self.prog}: error: {message}\nsee {self.prog} --help\n")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        # As in CPython from 3.11.4 on: it is no error if the reader of the help closes the pipe.
        with suppress(OSError):
            super()._print_message(message, file)

    def _check_first(self, args: Any) -> None:
        # Otherwise the error would say that a command is missing, or that the option's value is
        # no command.
        first = str(args[0]).partition("=")[0] if args else ""
        known = [name for action in self._actions for name in action.option_strings]
        if first.startswith("-") and first not in known:
            hint = _did_you_mean(first, known) or "; write options after the command"
            self.error(f"unrecognized arguments: {args[0]}{hint}")

    @override
    def _check_value(self, action: Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except ArgumentError as error:
            hint = _did_you_mean(value, [str(one) for one in action.choices or ()])
            raise ArgumentError(action, f"{error.message}{hint}") from None

    def _suggestion(self, unknown: list[str]) -> str:
        known = [name for action in self._actions for name in action.option_strings]
        options = [one.partition("=")[0] for one in unknown if one.startswith("--")]
        return _did_you_mean(options[0], known) if options else ""


def _did_you_mean(given: object, known: list[str]) -> str:
    near = nearest(given, known)
    return "" if near is None else f"; did you mean {near!r}?"


def add_command(
    commands: Any,
    name: str,
    run: Callable[[Namespace], int] | None,
    *,
    summary: str,
    description: str,
    example: str,
) -> ArgumentParser:
    """Adds a command; or, with None for `run`, a family of commands."""
    parser: ArgumentParser = commands.add_parser(name, help=summary, allow_abbrev=False)
    describe(parser, run, description, example)
    return parser


def describe(
    parser: ArgumentParser,
    run: Callable[[Namespace], int] | None,
    description: str,
    example: str,
) -> None:
    """Sets a command's description and example, and the function that runs it."""
    parser.description = description
    parser.epilog = f"example:\n{example}"
    parser.formatter_class = RawDescriptionHelpFormatter
    if run is not None:
        parser.set_defaults(run=run)


def add_name_argument(group: Any) -> None:
    """Adds ``--name``."""
    group.add_argument(
        "--name",
        type=tag,
        default="default",
        metavar="NAME",
        help="the server's name; several can run on one machine (%(default)s)",
    )


def add_json_argument(parser: Any) -> None:
    """Adds ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def tag(text: str) -> str:
    """Parses the name of a server."""
    if not is_tag(text):
        raise ArgumentTypeError(f"{text!r} can't be a name: {TAG_FORM}")
    return text


def port(text: str) -> int:
    """Parses a port number."""
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f"want a number from 0 to 65535, got {text!r}")
    return int(text)


def count(text: str) -> int:
    """Parses a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"want a number from 1 on, got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Parses a time in seconds."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    # NaN fails this check, too. An endless wait would make the watchdog useless.
    if not 0 <= found <= threading.TIMEOUT_MAX / 2:
        raise ArgumentTypeError(f"want seconds, e.g. 2.5, got {text!r}")
    return found


def more_than_0_seconds(text: str) -> float:
    """Parses a time above 0 in seconds."""
    found = seconds(text)
    if found == 0:
        raise ArgumentTypeError("want more than 0 seconds")
    return found
