"""``shoal start``: starts a named server, with an admin socket for the other commands."""

from __future__ import annotations

import os
from argparse import SUPPRESS
from typing import TYPE_CHECKING, Final

from shoal.commands.server.detach import start_detached
from shoal.commands.server.locations import ServerLocation, ServerLock
from shoal.commands.server.options import add_server_options, process_options, server_options
from shoal.commands.server.process import ServerProcess, collect_less_often
from shoal.commands.support.arguments import add_json_argument, add_name_argument, describe
from shoal.commands.support.loading import (
    APPLICATION,
    application_of,
    empty_application,
    need,
    server_settings,
)
from shoal.commands.support.mistake import say
from shoal.commands.support.output import facts, show

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_EXAMPLE: Final = """\
  shoal start --detach --allow-module my_models --state shoal.db
  shoal backends create small my_models:Classifier placement=process
  shoal endpoints create classify --route /classify --backend small
  shoal status
  shoal logs --follow
  shoal stop
"""


def add_arguments(parser: ArgumentParser) -> None:
    describe(
        parser,
        _run,
        "Start a server that the other commands find by its name, with an application or empty.",
        _EXAMPLE,
    )
    parser.add_argument(
        "application",
        metavar=APPLICATION,
        nargs="?",
        help="an application to serve (none: create backends and endpoints with commands)",
    )
    add_name_argument(parser)
    parser.add_argument(
        "--detach",
        action="store_true",
        help="return when the server is ready and leave it running; `shoal logs` shows its log",
    )
    parser.add_argument("--ready-fd", type=int, help=SUPPRESS)
    add_json_argument(parser)
    add_server_options(parser)


def _run(arguments: Namespace) -> int:
    location = ServerLocation.of(arguments.name)
    if arguments.detach:
        ready = start_detached(location, [one for one in arguments.argv if one != "--detach"])
        return show(arguments, ready, facts([(name, str(one)) for name, one in ready.items()]))
    collect_less_often()
    need("shoal.server.server")
    with ServerLock(location):
        return _serve(arguments, location)


def _serve(arguments: Namespace, location: ServerLocation) -> int:
    spec: str | None = arguments.application
    if arguments.ready_fd is not None:
        os.set_inheritable(arguments.ready_fd, False)  # so that no child process keeps it open
    app = empty_application() if spec is None else application_of(spec)

    def started(url: str) -> None:
        say(f"Commands reach it at {location.url()}")
        if arguments.ready_fd is not None:
            with open(arguments.ready_fd, "w", encoding="utf-8") as pipe:
                pipe.write(f"{url}\n")

    return ServerProcess(
        app=app,
        spec=spec or location.name,
        options=server_options(arguments, server_settings(app), location.socket),
        started=started,
        **process_options(arguments, server_settings(app)),
    ).to_its_end()
