"""Starts a server that keeps running when the command that started it ends.

The server is a process in its own session, with its output redirected to its log. It reports over
a pipe when it is ready.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from shoal.commands.server.locations import ServerLocation, already_running
from shoal.commands.support.mistake import CommandError, say

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN_LINES: Final = 20

_POLL_S: Final = 0.1
"""Interval between checks whether the process has ended, while it reports nothing."""


def start_detached(location: ServerLocation, argv: Sequence[str]) -> dict[str, Any]:
    """Starts a server and waits until it is ready.

    Args:
        location: The location of its files.
        argv: The arguments of ``shoal`` that start the server in the foreground.

    Returns:
        The server's ``url``, ``socket``, ``log`` and ``pid``.

    Raises:
        CommandError: A server of that name runs already, or the server did not start; its output
            has then been printed.
        KeyboardInterrupt: The user interrupted the wait; the server is then terminated.
    """
    if location.holder() is not None:
        raise already_running(location)
    location.make_directory()
    try:
        log = os.open(location.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise CommandError(f"can't write {location.log}: {error.strerror}", 1) from None
    begun_at = os.fstat(log).st_size
    readable, writable = os.pipe()
    try:
        child = subprocess.Popen(  # noqa: S603 - the user's own arguments
            [sys.executable, "-m", "shoal", *argv, "--ready-fd", str(writable)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[writable],
            start_new_session=True,
        )
    finally:
        os.close(writable)
        os.close(log)
    if sys.stderr.isatty():
        say(f"waiting for the server to be ready; its log is {location.log} ...")
    try:
        with open(readable, encoding="utf-8") as pipe:
            line = _first_line(pipe, child)
    except BaseException:
        child.terminate()
        raise
    if line:
        child.returncode = 0  # so that Popen does not warn that it still runs
        ready: dict[str, Any] = json.loads(line)
        return ready
    code = child.wait()
    raise _failed(location, begun_at, code)


def _first_line(pipe: TextIO, child: subprocess.Popen[bytes]) -> str:
    """Reads the line that the process reports; returns an empty string if the process ended first.

    The end of the pipe is no sign that the process ended: its forked children hold the pipe open.
    """
    while not select.select([pipe], [], [], _POLL_S)[0]:
        if child.poll() is not None:
            break
    else:
        return pipe.readline()
    return ""


def tell_ready(fd: int, location: ServerLocation, url: str) -> None:
    """Reports to the command that started this process that it is ready."""
    ready = {
        "url": url,
        "socket": str(location.socket),
        "log": str(location.log),
        "pid": os.getpid(),
    }
    with open(fd, "w", encoding="utf-8") as pipe:
        pipe.write(f"{json.dumps(ready)}\n")


def _failed(location: ServerLocation, begun_at: int, code: int) -> CommandError:
    with open(location.log, "rb") as log:
        log.seek(begun_at)
        lines = log.read().decode(errors="replace").strip().splitlines()
    *others, last = lines or [f"the server ended with exit code {code} and wrote nothing"]
    for line in others[-_SHOWN_LINES:]:
        say(line)
    return CommandError(last.removeprefix("shoal: "), code if code in (1, 2) else 1)
