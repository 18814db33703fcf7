"""Starting a server that goes on when the command that started it has ended.

It is a process in a session of its own, whose output goes into its log. A pipe tells the command
when it is ready.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from shoal.commands.server.locations import ServerLocation, already_running
from shoal.commands.support.saying import say
from shoal.planning.mistake import CommandError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN_LINES: Final = 20

_LOOK_S: Final = 0.1
"""How often it is looked whether a process that says nothing has ended."""


def start_detached(place: ServerLocation, argv: Sequence[str]) -> dict[str, Any]:
    """Starts a server, and waits until it is ready.

    Args:
        place: Where its files are.
        argv: The arguments of ``shoal`` that start it in the foreground.

    Returns:
        Where it is: ``url``, ``socket``, ``log`` and ``pid``.

    Raises:
        Mistake: There is one of that name, or it did not start; what it said has been said.
        KeyboardInterrupt: The user would not wait; then it is ended.
    """
    if place.holder() is not None:
        raise already_running(place)
    place.make_directory()
    try:
        log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise CommandError(f"can't write {place.log}: {error.strerror}", 1) from None
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
        say(f"waiting for it to be ready; its log is {place.log} ...")
    try:
        with open(readable, encoding="utf-8") as pipe:
            told = _first_line(pipe, child)
    except BaseException:
        child.terminate()
        raise
    if told:
        child.returncode = 0  # it is not ours to wait for
        ready: dict[str, Any] = json.loads(told)
        return ready
    code = child.wait()
    raise _failed(place, begun_at, code)


def _first_line(pipe: TextIO, child: subprocess.Popen[bytes]) -> str:
    """Reads what a process tells; nothing if it has ended before.

    The end of the pipe would not do: what the application has forked holds it open as well.
    """
    while not select.select([pipe], [], [], _LOOK_S)[0]:
        if child.poll() is not None:
            break
    else:
        return pipe.readline()
    return ""


def tell_ready(fd: int, place: ServerLocation, url: str) -> None:
    """Tells the command that started this process that it is ready."""
    ready = {
        "url": url,
        "socket": str(place.socket),
        "log": str(place.log),
        "pid": os.getpid(),
    }
    with open(fd, "w", encoding="utf-8") as pipe:
        pipe.write(f"{json.dumps(ready)}\n")


def _failed(place: ServerLocation, begun_at: int, code: int) -> CommandError:
    with open(place.log, "rb") as log:
        log.seek(begun_at)
        lines = log.read().decode(errors="replace").strip().splitlines()
    *others, last = lines or [f"it ended with {code}, and said nothing"]
    for line in others[-_SHOWN_LINES:]:
        say(line)
    return CommandError(last.removeprefix("shoal: "), code if code in (1, 2) else 1)
