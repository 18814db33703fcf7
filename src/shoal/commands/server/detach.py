"""Starts a server that keeps running when the command that started it ends."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from shoal.commands.server.locations import ServerLocation, already_running
from shoal.commands.support.mistake import CommandError, say

if TYPE_CHECKING:
    from collections.abc import Sequence

_POLL_S: Final = 0.1
_SHOWN_LINES: Final = 20


def start_detached(location: ServerLocation, argv: Sequence[str]) -> dict[str, str | int]:
    """Starts a server in a session of its own, and waits until it writes its URL to ``--ready-fd``.

    Raises:
        CommandError: It runs already, or did not start; its output has then been printed.
    """
    if location.holder() is not None:
        raise already_running(location)
    location.make_directory()
    try:
        log_fd = os.open(location.log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise CommandError(f"can't write {location.log}: {error.strerror}", 1) from None
    readable, writable = os.pipe()
    command = [sys.executable, "-m", "shoal", *argv, "--ready-fd", str(writable)]
    with open(log_fd, "ab+") as log, open(readable, encoding="utf-8") as pipe:
        begun_at = log.seek(0, os.SEEK_END)
        with open(writable, "wb"):
            child = subprocess.Popen(  # noqa: S603 - the user's own arguments
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[writable],
                start_new_session=True,
            )
        if sys.stderr.isatty():
            say(f"waiting for the server to be ready; its log is {location.log} ...")
        try:
            # Its forked children may hold the pipe open, so the end of the pipe is not enough.
            while not (written := select.select([pipe], [], [], _POLL_S)[0]):
                if child.poll() is not None:
                    break
            url = pipe.readline().strip() if written else ""
        except BaseException:
            child.terminate()
            raise
        if url:
            child.returncode = 0  # so that Popen does not warn that it still runs
            files = {"socket": str(location.socket), "log": str(location.log)}
            return {"url": url, **files, "pid": child.pid}
        code = child.wait()
        log.seek(begun_at)
        lines = log.read().decode(errors="replace").strip().splitlines()
    *others, last = lines or [f"the server ended with exit code {code} and wrote nothing"]
    for line in others[-_SHOWN_LINES:]:
        say(line)
    raise CommandError(last.removeprefix("shoal: "), code if code in (1, 2) else 1)
