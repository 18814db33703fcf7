"""``shoal stop`` and ``shoal logs``: stop a server that ``shoal start`` started, or show its log.

A server that was started with ``--detach`` writes its log to a file. The output of its replicas'
processes is in that file too, each line with the tag of its replica.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import deque
from contextlib import aclosing, suppress
from typing import IO, TYPE_CHECKING, Final

import anyio

from shoal.commands.server.client import ServerLocation
from shoal.commands.support.arguments import (
    add,
    add_json_argument,
    add_name_argument,
    count,
    describe,
    more_than_0_seconds,
)
from shoal.commands.support.output import CommandError, confirm, in_one_line, print_out, say
from shoal.serving.clients.remote_client import RemoteClient

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable


_STOP_EXAMPLE: Final = """\
  shoal stop
  shoal stop --name canary --timeout 5 --force
"""
# How long a killed process may take to end.
_KILL_S: Final = 10.0
_POLL_S: Final = 0.02


def add_stop_arguments(parser: ArgumentParser) -> None:
    about = "Stop a server that `shoal start` started, once its running requests have finished."
    describe(parser, _stop, about, _STOP_EXAMPLE)
    add_name_argument(parser)
    wait = "how long to wait for it to end"
    add(parser, "--timeout SECONDS", wait, more_than_0_seconds, 60.0, dest="timeout_s")
    add(parser, "--force", "kill it if it takes longer")
    add_json_argument(parser)


def _stop(arguments: Namespace) -> int:
    location = ServerLocation(arguments.name)
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
    async with aclosing(RemoteClient(location.url, timeout_s=timeout_s)) as client:
        await client.shutdown()


def _has_ended(location: ServerLocation, process: int, until: float) -> bool:
    # Waits until the server's process has released its lock; another one may have it then.
    while location.holder() == process:
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_S)
    return True


_LOGS_EXAMPLE: Final = """\
  shoal logs
  shoal logs --lines 1000 --name canary
  shoal logs small --follow
  shoal logs small#0
"""
# Interval between checks of the log for new lines.
_LOG_POLL_S: Final = 0.2


def add_logs_arguments(parser: ArgumentParser) -> None:
    describe(
        parser,
        _show_log,
        "Show the log of a server that was started with --detach, with the output of its\n"
        "replicas' processes. A server in the foreground writes its log to its own stderr.",
        _LOGS_EXAMPLE,
    )
    add(parser, "tag TAG", "show only lines about this backend or this replica", nargs="?")
    add_name_argument(parser)
    add(parser, "-n --lines N", "how many of the last lines to show", count, 100)
    add(parser, "-f --follow", "show new lines until the server ends or ^C")


def _show_log(arguments: Namespace) -> int:
    location = ServerLocation(arguments.name)
    is_wanted = _about(arguments.tag)
    try:
        log = location.log.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise CommandError(
            f"there is no log at {location.log}: the server {location.name!r} does not run, or not "
            f"with --detach; start it with `shoal start --detach{location.flag}`",
            1,
        ) from None
    except OSError as error:
        raise CommandError(f"can't read {location.log}: {error.strerror}", 1) from None
    with log:
        last: deque[str] = deque(maxlen=arguments.lines)
        rest = _read(log, b"", is_wanted, last.append)
        for line in last:
            print_out(line)
        if not last and arguments.tag is not None:
            say(f"the log has no line about {arguments.tag!r} yet")
        while arguments.follow:
            # Checked before reading, so that the last lines are not missed.
            is_running = location.holder() is not None
            rest = _read(log, rest, is_wanted, print_out)
            if not is_running:
                break
            time.sleep(_LOG_POLL_S)
        if rest and is_wanted(text := rest.decode(errors="replace")):
            print_out(text)
    return 0


def _read(
    log: IO[bytes], rest: bytes, is_wanted: Callable[[str], bool], take: Callable[[str], object]
) -> bytes:
    # Passes on the wanted lines; returns the incomplete last line.
    if log.tell() > os.fstat(log.fileno()).st_size:  # it was truncated
        log.seek(0)
        rest = b""
    for piece in log:
        rest += piece
        if rest.endswith(b"\n"):
            line, rest = rest.decode(errors="replace").rstrip("\r\n"), b""
            if is_wanted(line):
                take(line)
    return rest


def _about(tag: str | None) -> Callable[[str], bool]:
    """Returns a function that returns whether a log line is about a backend or a replica."""
    if tag is None:
        return lambda _: True
    of_backend = "" if "#" in tag else r"(#\d+|/\w+)?"
    form = re.compile(rf"\S+ \S+ [A-Z]+ shoal[\w.]*: {re.escape(tag)}{of_backend}: ")
    return lambda line: form.match(line) is not None
