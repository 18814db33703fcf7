"""The parser of commands."""

from __future__ import annotations

from argparse import ArgumentError, ArgumentParser, RawDescriptionHelpFormatter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from typing_extensions import override

from shoal.core.options.names import nearest

if TYPE_CHECKING:
    from argparse import Action, Namespace
    from collections.abc import Callable

    from _typeshed import SupportsWrite


class CommandParser(ArgumentParser):
    """Accepts options anywhere among positional arguments, and suggests for typos."""

    # A plain `ArgumentParser` ends an argument with ``nargs="*"`` at the first option after it. In
    # ``create small my:Code --arg 3 retries=1`` the last word would be an unknown argument.
    _is_within = False

    def parse_known_args(  # type: ignore[override]  # the base method is a set of overloads
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Namespace, list[str]]:
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
            # The parser of the command reports it, since it knows the command's options.
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggestion(unknown)}")
        return found, unknown

    @override
    def error(self, message: str) -> NoReturn:
        """Prints the error and points to ``--help``: a command's usage fills a screen."""
        self.exit(2, f"{self.prog}: error: {message}\nsee {self.prog} --help\n")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        # As in CPython from 3.11.4 on: a reader of the help may close the pipe.
        with suppress(OSError):
            super()._print_message(message, file)

    def _check_first(self, args: Any) -> None:
        # Otherwise the error would be that a command is missing, or that the option's value is not
        # a command.
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
    run: Callable[[Namespace], int],
    *,
    summary: str,
    description: str,
    example: str,
) -> ArgumentParser:
    parser: ArgumentParser = commands.add_parser(name, help=summary, allow_abbrev=False)
    describe(parser, run, description, example)
    return parser


def add_family(parser: ArgumentParser, description: str, example: str) -> Any:
    """Describes a family of commands; returns the argument of `add_command`."""
    describe(parser, None, description, example)
    return parser.add_subparsers(title="commands", metavar="COMMAND", required=True)


def describe(
    parser: ArgumentParser,
    run: Callable[[Namespace], int] | None,
    description: str,
    example: str,
) -> None:
    parser.description = description
    parser.epilog = f"examples:\n{example}"
    parser.formatter_class = RawDescriptionHelpFormatter
    if run is not None:
        parser.set_defaults(run=run)
