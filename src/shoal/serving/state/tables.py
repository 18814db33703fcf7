"""The tables of a state file, and the checksums that detect damage to them.

SQLite detects a malformed page, but not a changed byte in a text, nor a row that has vanished from
a page. So each row has a checksum, and the header has one of all rows together. A file is read only
if all of them match.

In every version of Shoal the header's first two columns hold the version and its checksum, so that
an older version can recognise a file of a newer one.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from shoal.errors import StateRefused
from shoal.serving.config.json import encoded
from shoal.serving.state.records import (
    BackendRecord,
    DeclaredState,
    DeletedBackend,
    DeletedEndpoint,
    EndpointRecord,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping
    from sqlite3 import Connection

    from shoal.serving.state.records import Change

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
        with _reading(kind, name):
            if kind == _BACKEND:
                backends[name] = BackendRecord.of(name, json.loads(body))
            elif kind == _ENDPOINT:
                endpoints[name] = EndpointRecord.of(name, json.loads(body))
            elif kind not in _GONE.values():
                raise ValueError("it is neither a backend nor an endpoint")
    headers = database.execute("SELECT contents_checksum FROM header").fetchall()
    if headers != [(_all_of(checksums),)]:
        raise _damaged("what it holds")
    return DeclaredState(
        backends=backends,
        endpoints=endpoints,
        gone_backends=frozenset(name for kind, name in checksums if kind == _GONE[_BACKEND]),
        gone_endpoints=frozenset(name for kind, name in checksums if kind == _GONE[_ENDPOINT]),
    )


def write(database: Connection, changes: Iterable[Change]) -> None:
    """Writes changes, in order, within the open transaction."""
    for change in changes:
        match change:
            case BackendRecord():
                _put(database, _BACKEND, change.tag, change.body())
            case EndpointRecord():
                _put(database, _ENDPOINT, change.name, change.body())
            case DeletedBackend():
                _delete(database, _BACKEND, change.tag, is_declared=change.is_declared)
            case DeletedEndpoint():
                _delete(database, _ENDPOINT, change.name, is_declared=change.is_declared)
    rows = database.execute("SELECT kind, name, checksum FROM declared").fetchall()
    checksums = {(kind, name): checksum for kind, name, checksum in rows}
    database.execute("UPDATE header SET contents_checksum = ?", (_all_of(checksums),))


def _put(database: Connection, kind: str, name: str, body: Mapping[str, Any]) -> None:
    _forget(database, _GONE[kind], name)
    _write_row(database, kind, name, encoded(body))


def _delete(database: Connection, kind: str, name: str, *, is_declared: bool) -> None:
    _forget(database, kind, name)
    if is_declared:
        _write_row(database, _GONE[kind], name, encoded({}))


def _write_row(database: Connection, kind: str, name: str, text: str) -> None:
    row = (kind, name, text, _row_checksum(kind, name, text))
    # A changed record keeps its row, and so its place in the order of creation.
    database.execute(
        "INSERT INTO declared VALUES (?, ?, ?, ?) ON CONFLICT (kind, name)"
        " DO UPDATE SET body = excluded.body, checksum = excluded.checksum",
        row,
    )


def _forget(database: Connection, kind: str, name: str) -> None:
    database.execute("DELETE FROM declared WHERE kind = ? AND name = ?", (kind, name))


@contextmanager
def _reading(kind: str, name: str) -> Generator[None]:
    try:
        yield
    except Exception as error:
        raise StateRefused(f"the {kind} {name!r} in it can't be read: {error!r}") from error


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
