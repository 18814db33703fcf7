"""The ``shoal`` command: parses the command line and runs the command that it names."""

from __future__ import annotations

import argparse
import signal
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final, cast

from shoal.commands.support.arguments import CommandParser
from shoal.commands.support.output import (
    CommandError,
    drop_unread_output,
    open_closed_streams,
    say,
)
from shoal.version import __version__

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Mapping, Sequence

# The help text of each command, and the function that adds its arguments to its parser. The
# function's module is imported for that command only: importing all of them takes four times as
# long as showing the help.
_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("serve an application over HTTP", "serve:add_arguments"),
    "check": ("show what an application would run", "check:add_arguments"),
    "start": ("start a named server", "serve:add_start_arguments"),
    "stop": ("stop a named server", "named:add_stop_arguments"),
    "status": ("show a server's backends and endpoints", "operate:add_status_arguments"),
    "logs": ("show the log of a named server", "named:add_logs_arguments"),
    "backends": ("list, create, change, delete backends", "operate:add_backend_arguments"),
    "endpoints": ("list, create, delete endpoints", "operate:add_endpoint_arguments"),
    "traffic": ("divide requests among backends", "operate:add_traffic_arguments"),
    "shadow": ("copy requests to a backend", "operate:add_shadow_arguments"),
    "scale": ("change the number of replicas", "operate:add_scale_arguments"),
    "call": ("call an endpoint", "operate:add_call_arguments"),
    "why": ("say why a server's batches are small", "recording:add_why_arguments"),
    "trace": ("record a server's arrivals for a simulation", "recording:add_trace_arguments"),
    "run-batch": ("call a handler with each line of a file", "run_batch:add_arguments"),
    "simulate": ("simulate batching options under given traffic", "simulate:add_arguments"),
    "tune": ("measure a handler and find options for it", "tune:add_arguments"),
}

_FIRST_STEPS: Final = """\
first steps:
  shoal serve my_module:app               serve the `app = shoal.App()` of my_module.py
  shoal check my_module:app               see what it would run

  shoal start --detach --allow-module my_module
  shoal backends create small my_module:Classifier
  shoal endpoints create classify --route /classify --backend small
  shoal call classify '"some text"'       or POST JSON to http://127.0.0.1:8000/classify
  shoal stop

`shoal COMMAND --help` explains a command, with examples.
"""


def main(argv: Sequence[str] | None = None) -> int:
    # 1 is a failure, or that no options meet the target of `tune`; 2 a mistake in the command.
    open_closed_streams()
    if isinstance(stdout := sys.stdout, TextIOWrapper):
        # As Python does for stderr. The cast: isinstance leaves its type parameter unknown.
        cast("TextIOWrapper", stdout).reconfigure(errors="backslashreplace")
    try:
        return _run(sys.argv[1:] if argv is None else list(argv))
    finally:
        drop_unread_output()


def _run(given: list[str]) -> int:
    parser = _parser(given)
    if not given:
        parser.print_help(sys.stderr)
        return 2
    arguments = parser.parse_args(given)
    arguments.argv = given
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except CommandError as mistake:
        if str(mistake):
            say(f"shoal: {mistake}")
        return mistake.exit_code
    except (KeyboardInterrupt, BaseExceptionGroup) as error:
        if isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt) is None:
            raise
        return 128 + signal.SIGINT


def _parser(given: Sequence[str]) -> ArgumentParser:
    parser = CommandParser(
        prog="shoal",
        description="Serve functions in batches, drive servers, and plan.",
        epilog=_FIRST_STEPS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"shoal {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (summary, target) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, allow_abbrev=False)
        if name in given:
            module, _, function = target.partition(":")
            add_arguments: Callable[[ArgumentParser], None]
            add_arguments = getattr(import_module(f"shoal.commands.{module}"), function)
            add_arguments(command)
    return parser
