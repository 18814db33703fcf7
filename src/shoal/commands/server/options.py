"""Options of the commands that serve an application."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from shoal.commands.support.arguments import count, more_than_0_seconds, port, seconds
from shoal.commands.support.tokens import add_token_argument
from shoal.serving.app_file.server import EventLoop

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping

    from shoal.http.server.config import ServerConfig


def add_server_options(parser: ArgumentParser) -> None:
    """Adds the options of serving. Those not given are taken from the application's file."""
    parser.add_argument("--host", help="address to listen at (127.0.0.1)")
    parser.add_argument("--port", type=port, help="port to listen at, 0 for a free one (8000)")
    parser.add_argument(
        "--event-loop",
        choices=get_args(EventLoop),
        help="event loop: trio, or asyncio for code that needs it, with uvloop if that is "
        "installed (trio)",
    )
    parser.add_argument(
        "--graceful-timeout",
        dest="graceful_timeout_s",
        metavar="SECONDS",
        type=seconds,
        help="how long running requests may take at shutdown (20)",
    )
    parser.add_argument(
        "--send-timeout",
        dest="send_timeout_s",
        metavar="SECONDS",
        type=more_than_0_seconds,
        help="disconnect a client that takes longer to read 256 KiB of its response (10)",
    )
    parser.add_argument(
        "--max-connections",
        metavar="N",
        type=count,
        help="how many connections may be open at once; others wait (1000)",
    )
    parser.add_argument(
        "--access-log",
        action="store_const",
        const=True,
        help="write a line of JSON for each request to stderr",
    )
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error", "critical"],
        default="info",
        help="level of the log on stderr (%(default)s)",
    )
    operator = parser.add_argument_group("for the operator")
    operator.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help="store changes made at run time in this file, and restore them from it",
    )
    add_token_argument(
        operator,
        "a file with a token; the port then has the admin API, for clients with the token",
    )
    operator.add_argument(
        "--allow-module",
        action="append",
        default=[],
        dest="allowed_modules",
        metavar="MODULE",
        help="a module, with its submodules, that backends created at run time may be imported "
        "from; * for any; repeatable (none)",
    )


def server_config(arguments: Namespace, from_file: Mapping[str, Any]) -> ServerConfig:
    """Returns the server's config: command line options first, then those of the file."""
    from shoal.http.server.config import ServerConfig

    names = [field.name for field in fields(ServerConfig)]
    given = {name: getattr(arguments, name, None) for name in names}
    chosen = {name: one for name, one in given.items() if one is not None}
    return ServerConfig(**{**{n: one for n, one in from_file.items() if n in names}, **chosen})


def event_loop(arguments: Namespace, from_file: Mapping[str, Any]) -> EventLoop:
    """Returns the event loop to use: the one of the command line, else of the file, else trio."""
    chosen: EventLoop = arguments.event_loop or from_file.get("event_loop", "trio")
    return chosen
