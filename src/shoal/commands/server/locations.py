"""Files of this user's named servers on this machine.

A server named NAME has its admin socket at ``NAME.sock``, which only its user can open, in a
directory that only its user can read. Beside it are ``NAME.log``, the log of a detached server, and
``NAME.pid``, which contains its process id. The process holds a lock on ``NAME.pid`` while it runs,
so the file of a killed server is recognised as stale.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.commands.support.mistake import CommandError
from shoal.core.addresses import admin_socket_directory

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_PRIVATE_DIRECTORY: Final = 0o700
_PRIVATE_FILE: Final = 0o600

# A process that checks whether the server runs holds its lock for a moment.
_TRIES: Final = 20
_BETWEEN_S: Final = 0.01


@dataclass(frozen=True)
class ServerLocation:
    name: str
    directory: Path

    @classmethod
    def of(cls, name: str) -> ServerLocation:
        """Returns the location for a name, without creating any file."""
        try:
            return cls(name, admin_socket_directory())
        except ConnectionError as error:
            raise CommandError(str(error), 1) from None

    @property
    def socket(self) -> Path:
        return self.directory / f"{self.name}.sock"

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    @property
    def process(self) -> Path:
        """The file that the running server locks; it contains its process id."""
        return self.directory / f"{self.name}.pid"

    @property
    def flag(self) -> str:
        """The flag of commands for this server; empty for the default server."""
        return "" if self.name == "default" else f" --name {self.name}"

    def url(self) -> str:
        return f"unix:{self.socket}"

    def make_directory(self) -> None:
        """Creates the directory, accessible only to its user."""
        try:
            self.directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            if self.directory.stat().st_uid != os.getuid():
                raise PermissionError(1, "it belongs to another user")
            self.directory.chmod(_PRIVATE_DIRECTORY)
        except OSError as error:
            raise CommandError(
                f"can't use {self.directory} for sockets: {error.strerror}; set XDG_RUNTIME_DIR "
                "to a directory that only this user can write",
                1,
            ) from None

    def holder(self) -> int | None:
        """Returns the process id of the running server; 0 if it is not written yet."""
        try:
            file = os.open(self.process, os.O_RDWR)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CommandError(f"can't read {self.process}: {error.strerror}", 1) from None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.read(file, 20).decode().strip()
            return int(text) if text.isdecimal() else 0
        finally:
            os.close(file)
        return None


@contextmanager
def being_server(location: ServerLocation) -> Generator[None]:
    location.make_directory()
    try:
        file = os.open(location.process, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
    except OSError as error:
        raise CommandError(f"can't write {location.process}: {error.strerror}", 1) from None
    try:
        if not _locked(file):
            raise already_running(location)
        process = os.getpid()
        os.ftruncate(file, 0)
        os.write(file, f"{process}\n".encode())
        try:
            yield
        finally:
            if os.getpid() == process:  # not in a process that the application has forked
                os.ftruncate(file, 0)
                fcntl.flock(file, fcntl.LOCK_UN)  # also for those
    finally:
        os.close(file)


def _locked(file: int) -> bool:
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_BETWEEN_S)
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def already_running(location: ServerLocation) -> CommandError:
    flag = location.flag
    process = location.holder()
    whose = f" as process {process}" if process else ""
    return CommandError(
        f"a server named {location.name!r} runs already{whose}; see it with `shoal status{flag}`, "
        f"connect to it at {location.url()}, or end it with `shoal stop{flag}`",
        1,
    )
