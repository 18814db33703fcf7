"""``shoal serve --reload``: serves the new version of an application when its files change.

The command's own process imports no code of the application. It holds the sockets, and starts a
process for each version of the code::

    this process      binds, watches the files       gives version 2 its turn
    version 1         ... serves ........ drains, ends
    version 2                    imports ... waits ... loads its models, serves

- A version that can't be imported, for example because of a syntax error, changes nothing: the one
  before keeps serving. The runner of watchfiles ends the old process first, so it is not used.
- Two versions never have their models loaded, or a state file open, at the same time, unless the
  import does that. While one drains and the next one starts, clients wait in the kernel's queues of
  the sockets, which stay open, so no connection is refused.
- If a version fails after its import, no version serves. Clients wait until a file changes again.

A pair of sockets connects each process with this one. The process writes a byte when it has
imported the application, and reads a byte when it may start. It drains when its socket is closed,
also when this process is killed. Signals are not sent, since Ctrl-C reaches all processes of a
terminal, and a second signal would end a server at once.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.util import cache_from_source
from typing import TYPE_CHECKING, Final

import anyio

from shoal.commands.support.output import CommandError, as_mistakes, say
from shoal.core.extras import need

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shoal.server.listeners import Address


_BACKLOG: Final = 1024
_MARGIN_S: Final = 5.0
"""Time to end beyond the graceful timeout; a version ends itself a second earlier."""
_POLL_MS: Final = 100
_SHOWN: Final = 3
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Turn:
    """The turn of a version, in its own process; ``fd`` connects it with the command's."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)

    def wait(self) -> bool:
        """Waits, without an event loop, until this version may start; False if it never may."""
        try:
            self._socket.send(b"i")
            return self._socket.recv(1) != b""
        except OSError:
            return False

    async def wait_over(self) -> None:
        """Waits until this version must end."""
        await anyio.wait_readable(self._socket)


def serve_versions(
    argv: Sequence[str], address: Address, directories: Sequence[Path], graceful_timeout_s: float
) -> int:
    """Serves until a signal or its operator ends the server; returns the exit code."""
    with as_mistakes():
        need("--reload", "watchfiles", "reload")
    for directory in directories:
        if not directory.is_dir():
            raise CommandError(f"--reload-dir: {directory} is not a directory")
    try:
        bound = address.bind()
    except OSError as error:
        where = error.filename or " port ".join(map(str, vars(address).values()))
        raise CommandError(f"can't listen at {where}: {error.strerror or error}", 1) from None
    try:
        for each in bound:
            each.socket.listen(_BACKLOG)
        listening = [each.socket.fileno() for each in bound]
        return _Versions(argv, listening, graceful_timeout_s + _MARGIN_S).serve(directories)
    finally:
        for each in bound:
            each.close()


class _Version:
    def __init__(self, argv: Sequence[str], listening: Sequence[int]) -> None:
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        with theirs:
            fds = (theirs.fileno(), *listening)
            self.process = subprocess.Popen(  # noqa: S603 - the user's own arguments
                [sys.executable, "-m", "shoal", *argv, "--version-fds", *map(str, fds)],
                pass_fds=fds,
            )

    def imported(self) -> bool | None:
        """Returns whether it has imported the application, or failed to; None until then."""
        try:
            return self._control.recv(1) != b""
        except BlockingIOError:
            return None if self.process.poll() is None else False
        except OSError:
            return False

    def go(self) -> None:
        with suppress(OSError):  # it may have ended
            self._control.send(b"g")

    def end(self, within_s: float) -> int:
        """Drains it, kills it when the time is over, and returns its exit code."""
        self._control.close()
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class _Versions:
    """The version that serves, and the next one while it is imported."""

    def __init__(self, argv: Sequence[str], listening: Sequence[int], ends_within_s: float) -> None:
        self._argv = argv
        self._listening = listening
        self._ends_within_s = ends_within_s
        self._serving: _Version | None = None
        self._next: _Version | None = None
        self._stopped = threading.Event()
        self._signals: list[int] = []

    def serve(self, directories: Sequence[Path]) -> int:
        from watchfiles import PythonFilter, watch

        handlers = {one: signal.signal(one, self._heed) for one in _SIGNALS}
        try:
            self._next = _Version(self._argv, self._listening)
            for changes in watch(
                *directories,
                watch_filter=PythonFilter(extra_extensions=(".toml",)),
                stop_event=self._stopped,
                rust_timeout=_POLL_MS,
                yield_on_timeout=True,
            ):
                if changes:
                    self._reload(sorted({path for _, path in changes}))
                self._check_serving()
                self._check_next()
        except (OSError, RuntimeError) as error:  # too many directories; errors of its Rust part
            where = ", ".join(map(str, directories))
            raise CommandError(f"can't watch {where}: {error}; see --reload-dir", 1) from None
        finally:
            code = self._end()
            for one, handler in handlers.items():
                signal.signal(one, handler)
        return code

    def _heed(self, signum: int, _: object) -> None:
        self._signals.append(signum)
        if self._stopped.is_set() and signum != signal.SIGHUP and self._serving is not None:
            self._serving.process.kill()
        self._stopped.set()

    def _reload(self, paths: Sequence[str]) -> None:
        say(f"Shoal is reloading: {_listed(paths)} changed")
        for path in paths:
            _forget_bytecode(path)
        if self._next is not None:
            self._next.end(0)
        self._next = _Version(self._argv, self._listening)

    def _check_serving(self) -> None:
        if self._serving is None or (code := self._serving.process.poll()) is None:
            return
        if code == 0:  # its operator, or Ctrl-C, has ended it
            self._stopped.set()
        else:
            self._serving.end(0)
            self._serving = None
            say(f"The server has ended with exit code {code}; Shoal is waiting for a change")

    def _check_next(self) -> None:
        if self._next is None or (imported := self._next.imported()) is None:
            return
        if not imported:
            self._next.end(0)
            self._next = None
            goes_on = "" if self._serving is None else "goes on with the version before, and "
            say(f"Shoal {goes_on}is waiting for a change")
            return
        if self._serving is not None:
            self._serving.end(self._ends_within_s)
        if not self._stopped.is_set():
            self._serving, self._next = self._next, None
            self._serving.go()

    def _end(self) -> int:
        if self._next is not None:
            self._next.end(0)
        if self._serving is None:
            return 128 + self._signals[0] if self._signals else 1
        code = self._serving.end(self._ends_within_s)
        forced_by = [one for one in self._signals[1:] if one != signal.SIGHUP]
        return 128 + forced_by[0] if forced_by else code


def _forget_bytecode(path: str) -> None:
    # Python uses it if the file has the same size and was changed in the same second, so a file
    # that was saved twice within a second could be served in its first form.
    with suppress(OSError, NotImplementedError):  # there is none, or this Python keeps none
        os.unlink(cache_from_source(path))


def _listed(paths: Sequence[str]) -> str:
    """Returns the names of files for a message, relative to the current directory."""
    names = [os.path.relpath(path) for path in paths]
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
