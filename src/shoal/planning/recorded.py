"""Reads recorded traffic: a file with a line for each request.

CSV has a header with the names of its columns; a CSV file without a header contains only times.
NDJSON has one object per line. A time is a number of seconds or an ISO 8601 date, and the earliest
becomes 0. Lines may be in any order, since logs are written when requests end.
"""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from shoal.core.simulation.results import Arrival

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


class Item(NamedTuple):
    """The properties of a recorded request's item that matter for forming batches.

    Attributes:
        cost: How much of ``max_batch_size`` it takes up.
        bucket: What requests of one batch must have in common.
    """

    cost: float = 1.0
    bucket: str | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace that was read from a file.

    Attributes:
        arrivals: Its requests, in order of time; the first arrives at 0.
        columns: The known columns that it has.
        unknown: Its other columns, which are ignored.
    """

    arrivals: list[Arrival]
    columns: frozenset[str]
    unknown: tuple[str, ...]


def read_trace(path: Path) -> Recording:
    """Reads a recorded trace.

    Args:
        path: A file whose name ends in ``.ndjson`` or ``.jsonl``; anything else is read as CSV. Its
            columns: ``at``, and optionally ``priority``, ``deadline_s``, ``queue_timeout_s``,
            ``cost`` and ``bucket``.

    Raises:
        ValueError: The file can't be read; the message names the line.
    """
    is_ndjson = path.suffix in (".ndjson", ".jsonl")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(_objects(path, file) if is_ndjson else _csv_rows(path, file))
    except OSError as error:
        raise ValueError(f"can't read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    arrivals = sorted((_arrival(where, row) for where, row in rows), key=lambda one: one.at)
    if not arrivals:
        raise ValueError(f"{path} has no requests")
    named = dict.fromkeys(name for _, row in rows for name in row)
    first_at = arrivals[0].at
    return Recording(
        [one._replace(at=one.at - first_at) for one in arrivals],
        frozenset(named.keys() & _COLUMNS.keys()),
        tuple(name for name in named if name not in _COLUMNS),
    )


def _objects(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f'{where}: want an object like {{"at": 0.25}}, got {line.strip():.60}')
        values = cast("dict[str, Any]", row)
        yield where, {name: value for name, value in values.items() if value is not None}


def _csv_rows(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.reader(lines)
    names: list[str] | None = None
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        where = f"{path}, line {reader.line_num}"
        if names is None:
            names = [cell.strip() for cell in cells]
            if len(cells) > 1 or not _is_a_time(cells[0]):
                continue
            names = ["at"]
        if len(cells) != len(names):
            raise ValueError(
                f"{where}: want {len(names)} cells ({', '.join(names)}), got {len(cells)}"
            )
        pairs = zip(names, cells, strict=True)
        yield where, {name: cell.strip() for name, cell in pairs if cell.strip()}


def _arrival(where: str, row: dict[str, Any]) -> Arrival:
    if "at" not in row:
        raise ValueError(f"{where}: no time; want a column 'at', the time of arrival in seconds")
    values: dict[str, Any] = {}
    for name, value in row.items():
        if name not in _COLUMNS:
            continue
        read, wanted = _COLUMNS[name]
        try:
            values[name] = read(value)
        except (TypeError, ValueError):
            raise ValueError(f"{where}: {name} must be {wanted}, not {value!r}") from None
    item = {name: values.pop(name) for name in Item._fields if name in values}
    return Arrival(item=Item(**item) if item else None, **values)


def _time(value: Any) -> float:
    try:
        seconds = float(value)
    except ValueError:
        return datetime.fromisoformat(value).timestamp()
    if not math.isfinite(seconds) or isinstance(value, bool):
        raise ValueError
    return seconds


def _is_a_time(cell: str) -> bool:
    try:
        _time(cell)
    except ValueError:
        return False
    return True


def _at_least_0(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf or isinstance(value, bool):
        raise ValueError
    return number


def _level(value: Any) -> int:
    level = int(value)
    if level < 1 or level != float(value) or isinstance(value, bool):
        raise ValueError
    return level


_COLUMNS: Final = cast(
    "dict[str, tuple[Callable[[Any], Any], str]]",
    {
        "at": (_time, "a time in seconds, or like 2026-01-31T12:00:00"),
        "priority": (_level, "a whole number from 1 on"),
        "deadline_s": (_at_least_0, "a number of seconds from 0 on"),
        "queue_timeout_s": (_at_least_0, "a number of seconds from 0 on"),
        "cost": (_at_least_0, "a number from 0 on"),
        "bucket": (str, "text"),
    },
)
