"""The parser of commands, and arguments that several commands have."""

from __future__ import annotations

import math
import threading
from argparse import (
    ArgumentParser,
    ArgumentTypeError,
    Namespace,
    RawDescriptionHelpFormatter,
)
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from shoal.commands.support.output import CommandError
from shoal.core.options.names import suggested
from shoal.core.options.option import checked_token
from shoal.serving.names import TAG_FORM, is_tag

if TYPE_CHECKING:
    from collections.abc import Callable


def add(
    group: Any, form: str, summary: str, kind: Any = None, default: Any = None, **more: Any
) -> None:
    """Adds an argument of a form such as ``"-n --lines N"``, or ``"--force"`` for yes or no."""
    *names, last = form.split()
    if last.startswith("-"):
        names.append(last)
        if "choices" not in more:
            more["action"] = "store_true"
    else:
        more["metavar"] = last
    if kind is not None:
        more["type"] = kind
    if more.get("action") == "append" or more.get("nargs") == "*":
        more["default"] = []  # without it "*" would be required
    elif default is not None:
        more["default"] = default
        summary += " (%(default)g)" if isinstance(default, float) else " (%(default)s)"
    group.add_argument(*names, help=summary, **more)


def add_name_argument(group: Any) -> None:
    add(group, "--name NAME", "the server's name; several can run on one machine", tag, "default")


def add_json_argument(parser: Any) -> None:
    add(parser, "--json", "print JSON")


def add_token_argument(group: Any, summary: str) -> None:
    add(group, "--token-file FILE", summary, Path)


def token_of(arguments: Namespace) -> str | None:
    """Returns the token in the file of ``--token-file``; None if it was not given."""
    # The token itself is not an argument: all users of a machine can see a process's arguments.
    path: Path | None = arguments.token_file
    if path is None:
        return None
    try:
        return checked_token(path.read_text().strip())
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"can't read {path}: {getattr(error, 'strerror', error)}") from None
    except ValueError as error:
        raise CommandError(f"{path}: {error}") from None


def add_init_arguments(parser: ArgumentParser) -> None:
    summary = "an argument for the class, like large.onnx or 3; repeatable"
    add(parser, "--arg VALUE", summary, action="append")
    add_kwarg_argument(parser, "an argument for the class by name, like threads=4; repeatable")


def add_kwarg_argument(parser: ArgumentParser, summary: str) -> None:
    add(parser, "--kwarg KEY=VALUE", summary, action="append")


def add_option_argument(group: Any) -> None:
    summary = "an option of the batcher, like max_batch_size=64 or overload=wait; repeatable"
    add(group, "--option KEY=VALUE", summary, action="append")


def add_loop_argument(group: Any) -> None:
    add(group, "--event-loop", "the event loop", default="trio", choices=["trio", "asyncio"])


def add_output_arguments(parser: ArgumentParser, shown: str) -> None:
    output = parser.add_argument_group("output")
    add(output, "--plot FILE", f"save a plot: {shown}", Path)
    add(output, "--json", "print JSON, times in seconds")


def tag(text: str) -> str:
    if not is_tag(text):
        raise ArgumentTypeError(f"{text!r} can't be a name: {TAG_FORM}")
    return text


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return int(text)


def _number(wanted: str, is_allowed: Callable[[float], bool]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        with suppress(ValueError):
            if is_allowed(number := float(text)):
                return number
        raise ArgumentTypeError(f"must be {wanted}, not {text!r}")

    return parse


more_than_0_seconds: Final = _number(
    "seconds, more than 0, e.g. 2.5",
    lambda found: 0 < found <= threading.TIMEOUT_MAX / 2,  # the wait of a thread can't be longer
)
more_than_0: Final = _number("a number above 0", lambda found: 0 < found < math.inf)
at_least_0: Final = _number("a number from 0 on", lambda found: 0 <= found < math.inf)


class CommandParser(ArgumentParser):
    """Accepts options anywhere among positional arguments, and suggests options for typos."""

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

    def error(self, message: str) -> NoReturn:
        """Prints the error and points to ``--help``: a command's usage fills a screen."""
        self.exit(2, f"{self.prog}: error: {message}\nsee {self.prog} --help\n")

    def _check_first(self, args: Any) -> None:
        # Otherwise the error would be that a command is missing, or that the option's value is not
        # a command.
        first = str(args[0]).partition("=")[0] if args else ""
        known = [name for action in self._actions for name in action.option_strings]
        if first.startswith("-") and first not in known:
            self.error(f"unrecognized arguments: {args[0]}; write options after the command")

    def _suggestion(self, unknown: list[str]) -> str:
        known = [name for action in self._actions for name in action.option_strings]
        options = [one.partition("=")[0] for one in unknown if one.startswith("--")]
        hint = suggested(options[0], known) if options else None
        return "" if hint is None else f"; {hint}"


def describe(
    parser: ArgumentParser, run: Callable[[Namespace], int] | None, description: str, example: str
) -> None:
    parser.description = description
    parser.epilog = f"examples:\n{example}"
    parser.formatter_class = RawDescriptionHelpFormatter
    if run is not None:
        parser.set_defaults(run=run)
