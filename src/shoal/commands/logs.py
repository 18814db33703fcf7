"""``shoal logs``: shows the log of a detached server and of its replicas' processes.

A server that was started with ``--detach`` writes its log to a file. The output of its replicas'
processes is in that file too, each line with the tag of its replica.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from typing import IO, TYPE_CHECKING, Final

from shoal.commands.server.locations import ServerLocation
from shoal.commands.support.arguments import add, add_name_argument, count, describe
from shoal.commands.support.mistake import CommandError, say
from shoal.commands.support.output import print_out

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

_EXAMPLE: Final = """\
  shoal logs
  shoal logs --lines 1000 --name canary
  shoal logs small --follow
  shoal logs small#0
"""
# Interval between checks of the log for new lines.
_POLL_S: Final = 0.2


def add_arguments(parser: ArgumentParser) -> None:
    describe(
        parser,
        _run,
        "Show the log of a server that was started with --detach, with the output of its\n"
        "replicas' processes. A server in the foreground writes its log to its own stderr.",
        _EXAMPLE,
    )
    add(
        parser,
        "tag TAG",
        "show only the lines about this backend (small) or this replica (small#0)",
        nargs="?",
    )
    add_name_argument(parser)
    add(parser, "-n --lines N", "how many of the last lines to show", count, 100)
    add(parser, "-f --follow", "show new lines until the server ends or ^C")


def _run(arguments: Namespace) -> int:
    location = ServerLocation.of(arguments.name)
    is_wanted = _about(arguments.tag)
    try:
        log = location.log.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise CommandError(_no_log(location), 1) from None
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
            time.sleep(_POLL_S)
        if rest and is_wanted(text := rest.decode(errors="replace")):
            print_out(text)
    return 0


def _read(
    log: IO[bytes], rest: bytes, is_wanted: Callable[[str], bool], take: Callable[[str], object]
) -> bytes:
    """Passes on the wanted lines; returns the incomplete last line."""
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


def _no_log(location: ServerLocation) -> str:
    if location.holder() is not None:
        return (
            f"the server {location.name!r} was started without --detach: its log is in the "
            "terminal where it was started"
        )
    return (
        f"there is no log at {location.log}; start a server with "
        f"`shoal start --detach{location.flag}`"
    )
