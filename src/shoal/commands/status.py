"""``shoal status``: shows the backends, replicas and endpoints of a running server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from shoal.commands.server.client import add_server_arguments, ask
from shoal.commands.support.output import show, status_listed
from shoal.commands.support.parser import describe
from shoal.serving.clients.wire import written

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_EXAMPLE: Final = """\
  shoal status
  shoal status --name canary --json
  shoal status --url https://models.example.com --token-file token
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the command's arguments."""
    describe(
        parser,
        _run,
        "Show the backends, replicas and endpoints of a running server.",
        _EXAMPLE,
    )
    add_server_arguments(parser)


def _run(arguments: Namespace) -> int:
    status = ask(arguments, lambda client: client.status())
    return show(arguments, json.loads(written(status)), status_listed(status))
