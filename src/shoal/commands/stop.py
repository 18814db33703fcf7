"""``shoal stop``: stops a server that ``shoal start`` started."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from shoal.commands.server.locations import ServerLocation
from shoal.commands.support.arguments import (
    add,
    add_json_argument,
    add_name_argument,
    describe,
    more_than_0_seconds,
)
from shoal.commands.support.mistake import CommandError, in_one_line
from shoal.commands.support.output import confirm
from shoal.serving.clients.remote_client import RemoteClient

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_EXAMPLE: Final = """\
  shoal stop
  shoal stop --name canary --timeout 5 --force
"""
# How long a killed process may take to end.
_KILL_S: Final = 10.0
_POLL_S: Final = 0.02


def add_arguments(parser: ArgumentParser) -> None:
    describe(
        parser,
        _run,
        "Stop a server that `shoal start` started, once its running requests have finished.",
        _EXAMPLE,
    )
    add_name_argument(parser)
    add(
        parser,
        "--timeout SECONDS",
        "how long to wait for it to end",
        more_than_0_seconds,
        60.0,
        dest="timeout_s",
    )
    add(parser, "--force", "kill it if it takes longer")
    add_json_argument(parser)


def _run(arguments: Namespace) -> int:
    location = ServerLocation.of(arguments.name)
    until = time.monotonic() + arguments.timeout_s
    # One that is starting has not written its id yet.
    while (process := location.holder()) == 0 and time.monotonic() < until:
        time.sleep(_POLL_S)
    if process is None:
        raise CommandError(f"no server named {location.name!r} runs here", 1)
    if process == 0:
        raise CommandError(f"{location.name} has not written its process id yet; try again", 1)
    try:
        anyio.run(_ask_to_end, location, arguments.timeout_s, backend="trio")
        why = f"it did not end within {arguments.timeout_s:g} s"
    except (ConnectionError, TimeoutError) as error:
        why = in_one_line(error)
    except ModuleNotFoundError as error:
        raise CommandError(in_one_line(error), 1) from None
    if _has_ended(location, process, until):
        return confirm(arguments, f"stopped {location.name}")
    if not arguments.force:
        raise CommandError(f"{location.name} is still running: {why}; --force kills it", 1)
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    if not _has_ended(location, process, time.monotonic() + _KILL_S):
        raise CommandError(f"process {process} was killed but is still running", 1)
    return confirm(arguments, f"killed {location.name}")


async def _ask_to_end(location: ServerLocation, timeout_s: float) -> None:
    client = RemoteClient(location.url(), timeout_s=timeout_s)
    try:
        await client.shutdown()
    finally:
        await client.aclose()


def _has_ended(location: ServerLocation, process: int, until: float) -> bool:
    """Waits until the server's process has released its lock; another one may have it then."""
    while location.holder() == process:
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_S)
    return True
