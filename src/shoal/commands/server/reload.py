"""``shoal serve --reload``: serves an application anew when its files have changed.

The command's own process imports no code of the application. It holds the sockets, and starts a
process for each version of the code::

    this process      binds, watches the files          tells the two when
    version 1         ... serves ......... drains .. ends
    version 2                    imports .. waits ....... loads its models, serves

- A version that can't be imported, as with a syntax error, changes nothing: the one before goes on.
- Two versions never have their models loaded at once, nor a state file open, unless the import does
  that. While one drains and the next one starts, clients wait in the kernel's queues of the
  sockets, which are never closed. So none is refused.
- A version that fails later, when it starts, has nothing to fall back on. Clients wait then until a
  file changes again.

Each process is connected with this one by a pair of sockets. It writes a byte when it has imported
the application, and reads one when it may start. It drains when its socket is closed, so also when
this process is killed. Signals are not sent: Ctrl-C reaches all processes of a terminal, and a
second signal would end a server at once.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import deque
from contextlib import suppress
from functools import partial
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.commands.support.mistake import CommandError, say
from shoal.core.extras import need
from shoal.server.listeners import bind_all

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from anyio.abc import Process

    from shoal.server.listeners import Address, BoundSocket

_BACKLOG: Final = 1024
# How long a version may take to end, beyond its graceful timeout; it ends itself a second earlier.
_MARGIN_S: Final = 5.0
_SHOWN: Final = 3
_EXTENSIONS: Final = (".toml",)


class Turn:
    """The turn of a version, in its own process.

    Args:
        fd: The file descriptor that connects the process with the command's.
    """

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


class _Version:
    """A process that serves one version of the application.

    Args:
        process: The process.
        control: What connects it with this process.

    Attributes:
        process: As above.
    """

    def __init__(self, process: Process, control: socket.socket) -> None:
        self.process = process
        self._control = control

    @classmethod
    async def start(cls, argv: Sequence[str], listening: Sequence[int]) -> _Version:
        """Starts it: it imports the application, and waits for its turn.

        Args:
            argv: The arguments of ``shoal``.
            listening: The file descriptors of the sockets that it serves at.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            fds = (theirs.fileno(), *listening)
            process = await anyio.open_process(
                [sys.executable, "-m", "shoal", *argv, "--version-fds", *map(str, fds)],
                stdin=None,
                stdout=None,
                stderr=None,
                pass_fds=fds,
            )
        return cls(process, ours)

    async def wait_imported(self, given_up: anyio.Event) -> bool:
        """Waits until it has imported the application; returns False if it does not.

        Args:
            given_up: Set when it is not needed any more.
        """
        async with anyio.create_task_group() as tasks:
            for end in (self.process, given_up):
                tasks.start_soon(_cancel_after, end.wait, tasks.cancel_scope)
            await anyio.wait_readable(self._control)
            tasks.cancel_scope.cancel()
        try:
            return self._control.recv(1) != b""
        except OSError:
            return False

    def go(self) -> None:
        """Gives it its turn."""
        with suppress(OSError):  # it may have ended
            self._control.send(b"g")

    async def end(self, within_s: float) -> int:
        """Has it drain, and waits for its end; kills it if that takes too long.

        Returns:
            Its exit code.
        """
        self._control.close()
        with anyio.move_on_after(within_s):
            await self.process.wait()
        return await self.kill()

    async def kill(self) -> int:
        """Ends it at once, unless it has ended, and returns its exit code."""
        self._control.close()
        with anyio.CancelScope(shield=True):
            if self.process.returncode is None:
                self.process.kill()
            await self.process.wait()
        return self.process.returncode or 0


class Reloader:
    """Serves one version of an application after the other.

    Args:
        argv: The arguments of ``shoal`` that each version is started with.
        address: The address to listen at.
        directories: The directories whose files are watched, with all that is in them.
        graceful_timeout_s: How long the running requests of a version may take at its end.
    """

    def __init__(
        self,
        argv: Sequence[str],
        address: Address,
        directories: Sequence[Path],
        graceful_timeout_s: float,
    ) -> None:
        self._argv = argv
        self._address = address
        self._directories = directories
        self._ends_within_s = graceful_timeout_s + _MARGIN_S
        self._serving: _Version | None = None
        self._next: _Version | None = None
        self._changed: deque[str] = deque(maxlen=1000)
        self._has_changed = anyio.Event()
        self._stopped = anyio.Event()
        self._exit_code = 0
        self._forced_by: int | None = None
        self._unwatched: Exception | None = None

    def to_its_end(self) -> int:
        """Serves until a signal ends it, or the operator shuts down the version that serves.

        Returns:
            The exit code.

        Raises:
            CommandError: It can't listen at the address, or can't watch a directory.
        """
        try:
            need("--reload", "watchfiles", "reload")
        except ModuleNotFoundError as error:
            raise CommandError(str(error), 1) from None
        for directory in self._directories:
            if not directory.is_dir():
                raise CommandError(f"--reload-dir: {directory} is not a directory")
        try:
            bound = bind_all(self._address)
        except OSError as error:
            where = error.filename or " port ".join(map(str, vars(self._address).values()))
            raise CommandError(f"can't listen at {where}: {error.strerror or error}", 1) from None
        try:
            for each in bound:
                each.socket.listen(_BACKLOG)
            exit_code = anyio.run(partial(self._run, bound), backend="trio")
        finally:
            for each in bound:
                each.close()
        if self._unwatched is not None:
            where = ", ".join(map(str, self._directories))
            raise CommandError(f"can't watch {where}: {self._unwatched}; see --reload-dir", 1)
        return exit_code

    async def _run(self, bound: Sequence[BoundSocket]) -> int:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._heed_signals)
            tasks.start_soon(self._watch)
            async with anyio.create_task_group() as versions:
                versions.start_soon(self._serve_versions, bound, versions)
                await self._stopped.wait()
                versions.cancel_scope.cancel()
            await self._end()
            tasks.cancel_scope.cancel()
        return self._exit_code if self._forced_by is None else 128 + self._forced_by

    async def _end(self) -> None:
        if self._next is not None:
            await self._next.kill()
        if self._serving is not None:
            self._exit_code = await self._serving.end(self._ends_within_s)

    async def _serve_versions(self, bound: Sequence[BoundSocket], tasks: Any) -> None:
        listening = [each.socket.fileno() for each in bound]
        while True:
            self._has_changed = anyio.Event()
            with anyio.CancelScope(shield=True):  # a process that was started must be ended
                self._next = await _Version.start(self._argv, listening)
            version = self._next
            assert version is not None
            if await version.wait_imported(self._has_changed):
                if self._serving is not None:
                    before, self._serving = self._serving, None
                    try:
                        await before.end(self._ends_within_s)
                    except anyio.get_cancelled_exc_class():
                        self._serving = before
                        raise
                self._serving, self._next = version, None
                version.go()
                tasks.start_soon(self._wait_for_its_end, version)
            else:
                await version.kill()
                self._next = None
                if not self._has_changed.is_set():
                    goes_on = (
                        "" if self._serving is None else "goes on with the version before, and "
                    )
                    say(f"Shoal {goes_on}is waiting for a change")
            await self._has_changed.wait()
            say(f"Shoal is reloading: {_listed(self._changed)} changed")
            for path in self._changed:
                _forget_bytecode(path)
            self._changed.clear()

    async def _wait_for_its_end(self, version: _Version) -> None:
        """Handles that the version that serves has ended by itself."""
        code = await version.process.wait()
        if version is not self._serving:
            return
        if code == 0:  # its operator, or Ctrl-C, has ended it
            self._stopped.set()
        else:
            self._serving = None
            await version.kill()
            say(f"The server has ended with exit code {code}; Shoal is waiting for a change")

    async def _watch(self) -> None:
        from watchfiles import PythonFilter, awatch

        try:
            changes = awatch(
                *self._directories,
                watch_filter=PythonFilter(extra_extensions=_EXTENSIONS),
                stop_event=self._stopped,
            )
            async for found in changes:
                self._changed.extend(sorted(path for _, path in found))
                self._has_changed.set()
        except (OSError, RuntimeError) as error:  # too many directories; errors of its Rust part
            self._unwatched = error
            self._stopped.set()

    async def _heed_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async for signum in signals:
                if not self._stopped.is_set():
                    self._exit_code = 128 + signum
                    self._stopped.set()
                elif signum != signal.SIGHUP and self._serving is not None:
                    self._forced_by = signum
                    await self._serving.kill()


async def _cancel_after(wait: Callable[[], Awaitable[object]], scope: anyio.CancelScope) -> None:
    await wait()
    scope.cancel()


def _forget_bytecode(path: str) -> None:
    """Removes what Python has compiled a file to, so that it is compiled anew.

    Python takes bytecode for current if the size of the file is the same and its time of change is
    in the same second. So a file that was saved twice within a second might be served as it was.
    """
    with suppress(OSError, NotImplementedError):  # there is none, or this Python keeps none
        os.unlink(cache_from_source(path))


def _listed(paths: Iterable[str]) -> str:
    """Returns the names of files for a message, relative to the current directory."""
    names = list(dict.fromkeys(_relative(path) for path in paths))
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _relative(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
