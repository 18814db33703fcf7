"""Arguments of more than one command."""

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
    """Takes a command's options before, between and behind its other words, and guesses at typos.

    `ArgumentParser` alone gives all words of a kind to an argument of any number of them as soon as
    it meets the first, so that in ``create small my:Code --arg 3 retries=1`` the last is unknown.
    """

    _is_within = False

    def parse_known_args(  # type: ignore[override]  # the stock one is overloads of the same
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
            # Said here, by the parser that knows the command's options, rather than by the first.
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown)}")
        return found, unknown

    @override
    def error(self, message: str) -> NoReturn:
        """Says what is wrong, and where the usage is told: that of a command fills a screen."""
        self.exit(2, f"{self.prog}: error: {message}\nsee {self.prog} --help\n")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        # CPython does so from 3.11.4 on. A reader that has seen enough of the help is no error.
        with suppress(OSError):
            super()._print_message(message, file)

    def _check_first(self, args: Any) -> None:
        # Else it is told that a command is missing, or that the option's value is none.
        first = str(args[0]).partition("=")[0] if args else ""
        known = [name for action in self._actions for name in action.option_strings]
        if first.startswith("-") and first not in known:
            hint = _did_you_mean(first, known) or "; write options behind the command"
            self.error(f"unrecognized arguments: {args[0]}{hint}")

    @override
    def _check_value(self, action: Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except ArgumentError as error:
            hint = _did_you_mean(value, [str(one) for one in action.choices or ()])
            raise ArgumentError(action, f"{error.message}{hint}") from None

    def _meant(self, unknown: list[str]) -> str:
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
        help="the server's name; several can run on one machine (%(default)s)",
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
