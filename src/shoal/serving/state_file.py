"""The state file: a controller's declarations, stored so that a restart finds all of them.

It is an SQLite database with one row: all declarations as one JSON text, with its checksum. There
are few declarations, and they change rarely, so each change writes the whole text. It is committed,
and on disk, before `apply` returns. So if the process is killed, the file holds all acknowledged
changes, and possibly the one that was being written: SQLite rolls back a change that was cut off.

There is one writer, the process that holds a lock on an empty database beside the file. The system
releases the lock when the process ends, however it ends. The lock is not on the file itself: SQLite
might alter a file of another program when it opens it.

SQLite detects a malformed page, but not a changed byte in a text, so the text has a checksum.

In every version of Shoal the first column of the table ``state`` holds the version, so that an
older version can recognise a file of a newer one.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from contextlib import ExitStack, closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal.errors import StateRefused
from shoal.serving.state_records import DeclaredState

if TYPE_CHECKING:
    from collections.abc import Generator

    from shoal.serving.state_records import Change


APPLICATION_ID: Final = 0x53484F4C  # "SHOL"
VERSION: Final = 1

_APPLICATION_ID_AT: Final = slice(68, 72)  # in the header of any SQLite database
_MAGIC: Final = b"SQLite format 3\0"
_OWNER_ALONE: Final = stat.S_IRUSR | stat.S_IWUSR


class StateFile:
    """A state file that is open for writing; threads may use it, one at a time."""

    def __init__(self, path: Path, database: sqlite3.Connection, resources: ExitStack) -> None:
        self.path = path
        self._database = database
        self._resources = resources

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> StateFile:
        """Opens a state file, or creates it. A refused file is not altered."""
        found = Path(os.path.realpath(path))
        with ExitStack() as resources, _refusing(found):
            resources.enter_context(_lock(found))
            if _is_new(found):
                _create(found)
            _check_header(found)
            database = resources.enter_context(closing(_connect(found, "rw")))
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("PRAGMA synchronous = EXTRA")
            faults = [fault for (fault,) in database.execute("PRAGMA integrity_check(1)")]
            if faults != [b"ok"]:
                raise StateRefused(f"it is damaged: {faults}")
            _read(database)
            database.execute("BEGIN EXCLUSIVE")  # checks that it can be written
            database.execute("COMMIT")
            return cls(found, database, resources.pop_all())

    def load(self) -> DeclaredState:
        with _refusing(self.path):
            return _read(self._database)

    def apply(self, *changes: Change) -> None:
        """Writes all changes or none. They are on disk when it returns."""
        with _refusing(self.path), self._database:
            self._database.execute("BEGIN EXCLUSIVE")
            _write(self._database, _read(self._database).changed(changes))

    def close(self) -> None:
        self._resources.close()


def _read(database: sqlite3.Connection) -> DeclaredState:
    rows = database.execute("SELECT * FROM state").fetchall()
    if len(rows) != 1:
        raise StateRefused(f"it is damaged: it has {len(rows)} states")
    version, *contents = rows[0]
    if version != VERSION:
        raise StateRefused(
            f"it has version {version!r}, of a newer Shoal, and this one reads up to {VERSION}"
        )
    text, checksum = contents
    if checksum != _checksum(text):
        raise StateRefused("it is damaged: what it holds and the checksum do not agree")
    return DeclaredState.of(json.loads(text))


def _write(database: sqlite3.Connection, state: DeclaredState) -> None:
    text = json.dumps(state.as_data(), allow_nan=False, separators=(",", ":")).encode()
    database.execute("DELETE FROM state")
    database.execute("INSERT INTO state VALUES (?, ?, ?)", (VERSION, text, _checksum(text)))


def _checksum(text: object) -> bytes:
    # repr, since a damaged row may have any type.
    return sha256(repr((VERSION, text)).encode()).digest()


@contextmanager
def _refusing(path: Path) -> Generator[None]:
    try:
        yield
    except StateRefused as error:
        raise StateRefused(f"the state file {path} is refused: {error}") from error.__cause__
    except (sqlite3.Error, OSError) as error:
        raise StateRefused(f"the state file {path} is refused: {error}") from error
    except UnicodeError as error:  # SQLite's message contained text of a damaged page
        raise StateRefused(f"the state file {path} is refused: it is damaged") from error


@contextmanager
def _lock(path: Path) -> Generator[None]:
    if path.exists() and not path.is_file():
        raise StateRefused("it is not a regular file")
    if not path.parent.is_dir():
        raise StateRefused(f"there is no directory {path.parent}")
    with closing(_connect(path.with_name(f"{path.name}.lock"), "rwc")) as lock:
        try:
            lock.execute("PRAGMA journal_mode = MEMORY")  # avoids a second file
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            raise StateRefused("it is in use by another process, or open already") from error
        yield


def _is_new(path: Path) -> bool:
    if path.exists() and path.stat().st_size:
        return False
    if path.with_name(f"{path.name}-journal").exists():
        raise StateRefused("it is missing or empty, but its log is still there")
    if path.exists():
        raise StateRefused(
            "it is empty, so what it may have held is lost; restore a copy of it, or remove it to "
            "begin with an empty state"
        )
    return True


def _create(path: Path) -> None:
    """Creates the complete file under another name, and renames it."""
    new = path.with_name(f"{path.name}.new")
    for end in ("", "-journal"):  # left by a process that was killed here
        new.with_name(new.name + end).unlink(missing_ok=True)
    os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ALONE))
    with closing(_connect(new, "rw")) as database, database:
        database.execute("BEGIN")
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute("CREATE TABLE state (version INTEGER, declared BLOB, checksum BLOB)")
        _write(database, DeclaredState())
    new.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _check_header(path: Path) -> None:
    with path.open("rb") as file:
        header = file.read(100)
    if not header.startswith(_MAGIC):
        raise StateRefused("it is not an SQLite database, or its header is damaged")
    if int.from_bytes(header[_APPLICATION_ID_AT], "big") != APPLICATION_ID:
        raise StateRefused("it is a database of another program, or its header is damaged")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    database = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=0,
        isolation_level=None,  # transactions begin only explicitly
        check_same_thread=False,
    )
    # A checksum finds damaged text, and its error, unlike a codec's, does not show the contents.
    database.text_factory = bytes
    return database
