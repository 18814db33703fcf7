"""Where the servers of this user on this machine have their doors, by name.

A server named NAME has its door at ``NAME.sock``, a socket that only its user can open, in a
directory that only its user can look into. Beside it are the log of a detached one, and
``NAME.pid``, which says which process the server is. The process holds a lock on that file for as
long as it lives, so what one that was killed has left there is known for what it is.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from shoal.planning.mistake import CommandError
from shoal.serving.local_servers import door_directory

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_PRIVATE_DIRECTORY: Final = 0o700
_PRIVATE_FILE: Final = 0o600

# Who asks whether there is a server holds its lock for a moment.
_TRIES: Final = 20
_BETWEEN_S: Final = 0.01


@dataclass(frozen=True)
class ServerLocation:
    """Where one server's files are.

    Attributes:
        name: The server's name.
        directory: The directory of all servers.
    """

    name: str
    directory: Path

    @classmethod
    def of(cls, name: str) -> ServerLocation:
        """Returns the place of a name; nothing is made there."""
        return cls(name, door_directory())

    @property
    def socket(self) -> Path:
        """The door."""
        return self.directory / f"{self.name}.sock"

    @property
    def log(self) -> Path:
        """What a detached server says."""
        return self.directory / f"{self.name}.log"

    @property
    def process(self) -> Path:
        """What the running server holds a lock on; it has the number of its process."""
        return self.directory / f"{self.name}.pid"

    def url(self) -> str:
        """Returns what a client connects to."""
        return f"unix:{self.socket}"

    def make_directory(self) -> None:
        """Makes the directory, for its user alone.

        Raises:
            Mistake: It can't be made, or is another user's.
        """
        try:
            self.directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            if self.directory.stat().st_uid != os.getuid():
                raise PermissionError(1, "it belongs to another user")
            self.directory.chmod(_PRIVATE_DIRECTORY)
        except OSError as error:
            raise CommandError(
                f"can't use {self.directory} for sockets: {error.strerror}", 1
            ) from None

    def holder(self) -> int | None:
        """Returns the process that is the server of this name; None if none runs."""
        try:
            file = os.open(self.process, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.read(file, 20).decode().strip()
            return int(text) if text.isdecimal() else 0
        finally:
            os.close(file)
        return None


class Held:
    """Makes this process the server of a name, until the block ends.

    Args:
        place: The name's place.

    Raises (on entering):
        Mistake: There is such a server, or the files can't be made.
    """

    def __init__(self, place: ServerLocation) -> None:
        self._place = place
        self._file = -1

    def __enter__(self) -> Self:
        place = self._place
        place.make_directory()
        try:
            self._file = os.open(
                place.process, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE
            )
        except OSError as error:
            raise CommandError(f"can't write {place.process}: {error.strerror}", 1) from None
        if not _locked(self._file):
            os.close(self._file)
            raise already_running(place)
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.ftruncate(self._file, 0)
        os.close(self._file)


def _locked(file: int) -> bool:
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_BETWEEN_S)
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def already_running(place: ServerLocation) -> CommandError:
    """Says that there is a server of a name, and what to do about it."""
    named = "" if place.name == "default" else f" --name {place.name}"
    process = place.holder()
    whose = f" as process {process}" if process else ""
    return CommandError(
        f"a server named {place.name!r} runs already{whose}; see it with `shoal status{named}`, "
        f"connect to it at {place.url()}, or end it with `shoal stop{named}`",
        1,
    )
