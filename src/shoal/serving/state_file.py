"""The state file: a controller's declarations, stored so that a restart finds all of them.

It is an SQLite database with a write-ahead log. A change is committed, and on disk, before `apply`
returns. So if the process is killed, the file holds all acknowledged changes, and possibly the one
that was being written.

After each change the log is checkpointed into the database and emptied. SQLite reads a log up to
its first damaged entry and silently ignores the rest, so changes in a damaged log would be lost
unnoticed. This way the log holds an acknowledged change only if the checkpoint failed.

There is one writer, the process that holds a lock on an empty database beside the file. The system
releases the lock when the process ends, however it ends. The lock is not on the file itself: SQLite
might alter a file of another program when it opens it.

SQLite detects a malformed page, but not a changed byte in a text, nor a row that has vanished from
a page. So each row has a checksum, and the header has one of all rows together. A file is read only
if all of them match.

In every version of Shoal the header's first two columns hold the version and its checksum, so that
an older version can recognise a file of a newer one.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal.errors import StateRefused
from shoal.serving.state_records import (
    BackendRecord,
    Change,
    DeclaredState,
    Deleted,
    EndpointRecord,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping
    from sqlite3 import Connection


APPLICATION_ID: Final = 0x53484F4C  # "SHOL"
VERSION: Final = 1

_TABLES: Final = {
    "header": (
        "CREATE TABLE header (version INTEGER NOT NULL, version_checksum TEXT NOT NULL, "
        "contents_checksum TEXT NOT NULL)"
    ),
    "declared": (
        "CREATE TABLE declared (kind TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL, "
        "checksum TEXT NOT NULL, PRIMARY KEY (kind, name))"
    ),
}
_BACKEND: Final = "backend"
_ENDPOINT: Final = "endpoint"
_GONE: Final = {_BACKEND: "gone backend", _ENDPOINT: "gone endpoint"}


def create_tables(database: Connection) -> None:
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for statement in _TABLES.values():
        database.execute(statement)
    database.execute(
        "INSERT INTO header VALUES (?, ?, ?)", (VERSION, _version_checksum(VERSION), _all_of({}))
    )


def check_file(database: Connection) -> None:
    """Checks that Shoal's database is a state file of this version, with intact pages."""
    faults = [fault for (fault,) in database.execute("PRAGMA integrity_check(1)")]
    if faults != ["ok"]:
        raise StateRefused(f"it is damaged: {faults}")
    versions = database.execute("SELECT version, version_checksum FROM header").fetchall()
    if len(versions) != 1 or versions[0][1] != _version_checksum(versions[0][0]):
        raise _damaged("its header")
    [(version, _)] = versions
    if version != VERSION:
        raise StateRefused(
            f"it has version {version!r}, of a newer Shoal, and this one reads up to {VERSION}"
        )
    tables = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    if dict(tables.fetchall()) != _TABLES:
        raise _damaged("its schema")


def read(database: Connection) -> DeclaredState:
    rows = database.execute(
        "SELECT kind, name, body, checksum FROM declared ORDER BY rowid"
    ).fetchall()
    backends: dict[str, BackendRecord] = {}
    endpoints: dict[str, EndpointRecord] = {}
    checksums: dict[tuple[str, str], str] = {}
    for kind, name, body, checksum in rows:
        if checksum != _row_checksum(kind, name, body):
            raise _damaged(f"the {kind} {name!r}")
        checksums[kind, name] = checksum
        try:
            if kind == _BACKEND:
                backends[name] = BackendRecord(tag=name, **json.loads(body))
            elif kind == _ENDPOINT:
                endpoints[name] = EndpointRecord.of(name, json.loads(body))
            elif kind not in _GONE.values():
                raise ValueError("it is neither a backend nor an endpoint")
        except Exception as error:
            raise StateRefused(f"the {kind} {name!r} in it can't be read: {error!r}") from error
    headers = database.execute("SELECT contents_checksum FROM header").fetchall()
    if headers != [(_all_of(checksums),)]:
        raise _damaged("what it holds")
    return DeclaredState(
        backends=backends,
        endpoints=endpoints,
        gone=frozenset(
            (kind, name)
            for kind, word in _GONE.items()
            for found, name in checksums
            if found == word
        ),
    )


def write(database: Connection, changes: Iterable[Change]) -> None:
    """Writes changes, in order, within the open transaction."""
    for change in changes:
        match change:
            case BackendRecord():
                _put(database, _BACKEND, change.tag, change.body())
            case EndpointRecord():
                _put(database, _ENDPOINT, change.name, change.body())
            case Deleted():
                _forget(database, change.kind, change.name)
                if change.is_declared:
                    _write_row(database, _GONE[change.kind], change.name, {})
    rows = database.execute("SELECT kind, name, checksum FROM declared").fetchall()
    checksums = {(kind, name): checksum for kind, name, checksum in rows}
    database.execute("UPDATE header SET contents_checksum = ?", (_all_of(checksums),))


def _put(database: Connection, kind: str, name: str, body: Mapping[str, Any]) -> None:
    _forget(database, _GONE[kind], name)
    _write_row(database, kind, name, body)


def _write_row(database: Connection, kind: str, name: str, body: Mapping[str, Any]) -> None:
    text = json.dumps(body, allow_nan=False, separators=(",", ":"))
    row = (kind, name, text, _row_checksum(kind, name, text))
    # A changed record keeps its row, and so its place in the order of creation.
    database.execute(
        "INSERT INTO declared VALUES (?, ?, ?, ?) ON CONFLICT (kind, name)"
        " DO UPDATE SET body = excluded.body, checksum = excluded.checksum",
        row,
    )


def _forget(database: Connection, kind: str, name: str) -> None:
    database.execute("DELETE FROM declared WHERE kind = ? AND name = ?", (kind, name))


def _damaged(what: str) -> StateRefused:
    return StateRefused(f"it is damaged: {what} and the checksum do not agree")


def _row_checksum(kind: Any, name: Any, body: Any) -> str:
    return _checksum(["row", kind, name, body])


def _version_checksum(version: Any) -> str:
    return _checksum(["version", version])


def _all_of(checksums: Mapping[tuple[str, str], str]) -> str:
    return _checksum(["contents", *sorted([*row, one] for row, one in checksums.items())])


def _checksum(parts: list[Any]) -> str:
    # repr keeps types apart, so that 1, "1" and b"1" differ.
    return sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


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
            else:
                _check(found)
            database = resources.enter_context(closing(_connect(found, "rw")))
            _prepare(database)
            return cls(found, database, resources.pop_all())

    def load(self) -> DeclaredState:
        with _refusing(self.path):
            return read(self._database)

    def apply(self, *changes: Change) -> None:
        """Writes all changes or none. They are on disk when it returns."""
        with _refusing(self.path), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            write(self._database, changes)
        with suppress(sqlite3.Error):  # they are on disk; the next change tries this again
            _checkpoint_log(self._database)

    def close(self) -> None:
        self._resources.close()


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
    is_there = path.exists()
    is_empty = is_there and path.stat().st_size == 0
    logs = [path.with_name(path.name + end) for end in ("-wal", "-journal")]
    if (is_empty or not is_there) and any(log.exists() for log in logs):
        raise StateRefused("it is missing or empty, but its log is still there")
    if is_empty:
        raise StateRefused(
            "it is empty, so what it may have held is lost; restore a copy of it, or remove it to "
            "begin with an empty state"
        )
    return not is_there


def _create(path: Path) -> None:
    """Creates the complete file under another name, and renames it."""
    new = path.with_name(f"{path.name}.new")
    for end in ("", "-wal", "-journal"):  # left by a process that was killed here
        new.with_name(new.name + end).unlink(missing_ok=True)
    os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ALONE))
    with closing(_connect(new, "rw")) as database:
        _prepare(database)
        with database:
            database.execute("BEGIN IMMEDIATE")
            create_tables(database)
        _checkpoint_log(database)
    new.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _check(path: Path) -> None:
    """Checks the whole file without writing to it."""
    with path.open("rb") as file:
        header = file.read(100)
    if not header.startswith(_MAGIC):
        raise StateRefused("it is not an SQLite database, or its header is damaged")
    if int.from_bytes(header[_APPLICATION_ID_AT], "big") != APPLICATION_ID:
        raise StateRefused("it is a database of another program, or its header is damaged")
    if path.with_name(f"{path.name}-journal").exists():
        raise StateRefused(
            f"there is a log beside it that Shoal did not write: {path.name}-journal"
        )
    with closing(_connect(path, "ro")) as database:
        check_file(database)
        read(database)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    database = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=0,
        isolation_level=None,  # transactions begin only explicitly
        check_same_thread=False,
    )
    # Checksums find damaged text, and their errors, unlike a codec's, do not show its contents.
    database.text_factory = partial(str, encoding="utf-8", errors="replace")
    return database


def _prepare(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StateRefused(f"it can't have a write-ahead log here, only {mode!r}")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA wal_autocheckpoint = 0")
    # Checks that it can be written, and applies what a killed process left in the log.
    database.execute("BEGIN IMMEDIATE")
    database.execute("COMMIT")
    _checkpoint_log(database)


def _checkpoint_log(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
