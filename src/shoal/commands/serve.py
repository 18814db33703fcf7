"""``shoal serve``: imports an application and serves it until it is shut down."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal.commands.server.options import add_server_options, event_loop, server_options
from shoal.commands.server.process import ServerProcess
from shoal.commands.support.loading import APPLICATION, application_of, need, server_settings
from shoal.commands.support.parser import describe

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_EXAMPLE: Final = """\
  my_module.py contains   app = shoal.App()   and endpoints; then

  shoal serve my_module:app --port 8000

  app.toml contains   [backends.small]   and   [endpoints.classify]; then

  shoal serve app.toml

  The first SIGTERM or Ctrl-C drains: running requests may finish. The second ends at once.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the command's arguments."""
    describe(
        parser,
        _run,
        "Serve a shoal.App, an application declared in a TOML file, or any other ASGI application.",
        _EXAMPLE,
    )
    parser.add_argument(
        "application",
        metavar=APPLICATION,
        help="where the application is, e.g. my_module:app or app.toml",
    )
    add_server_options(parser)
    parser.add_argument(
        "--admin-socket",
        type=Path,
        metavar="PATH",
        help="serve the admin API at this UNIX socket, which only this user can open",
    )


def _run(arguments: Namespace) -> int:
    need("shoal.http.server.server")
    app = application_of(arguments.application)
    return ServerProcess(
        app=app,
        spec=arguments.application,
        options=server_options(arguments, server_settings(app), arguments.admin_socket),
        event_loop=event_loop(arguments, server_settings(app)),
        log_level=arguments.log_level,
        state=arguments.state,
    ).to_its_end()
