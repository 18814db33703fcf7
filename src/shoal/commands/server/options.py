"""The options of the commands that serve."""

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
    """Describes where and how to serve. What is not given is what the application's file says."""
    parser.add_argument("--host", help="address to listen at (127.0.0.1)")
    parser.add_argument("--port", type=port, help="port to listen at, 0 for a free one (8000)")
    parser.add_argument(
        "--event-loop",
        choices=get_args(EventLoop),
        help="what runs it: trio, or asyncio for code that needs that, by uvloop where it is "
        "installed (trio)",
    )
    parser.add_argument(
        "--graceful-timeout",
        dest="graceful_timeout_s",
        metavar="SECONDS",
        type=seconds,
        help="how long requests that are under way at shutdown may take (20)",
    )
    parser.add_argument(
        "--send-timeout",
        dest="send_timeout_s",
        metavar="SECONDS",
        type=more_than_0_seconds,
        help="disconnect a client that takes longer over 256 KiB of its answer (10)",
    )
    parser.add_argument(
        "--max-connections",
        metavar="N",
        type=count,
        help="how many connections may be open at once; more wait (1000)",
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
        help="what to log, to stderr (%(default)s)",
    )
    operator = parser.add_argument_group("for the operator")
    operator.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help="keep what is changed while it runs in this file, and restore it from there",
    )
    add_token_argument(
        operator, "a file with a token; the port then has the admin API, for who knows the token"
    )
    operator.add_argument(
        "--allow-module",
        action="append",
        default=[],
        dest="allowed_modules",
        metavar="MODULE",
        help="a module that may be imported for backends that are created while it runs, with all "
        "below it; * for any; repeatable (none)",
    )


def server_config(arguments: Namespace, from_file: Mapping[str, Any]) -> ServerConfig:
    """Makes the server's config: what the command line gives, else what the file does."""
    from shoal.http.server.config import ServerConfig

    names = [field.name for field in fields(ServerConfig)]
    given = {name: getattr(arguments, name, None) for name in names}
    chosen = {name: one for name, one in given.items() if one is not None}
    return ServerConfig(**{**{n: one for n, one in from_file.items() if n in names}, **chosen})


def event_loop(arguments: Namespace, from_file: Mapping[str, Any]) -> EventLoop:
    """Says which event loop runs the server: what the command line gives, else what the file."""
    chosen: EventLoop = arguments.event_loop or from_file.get("event_loop", "trio")
    return chosen
