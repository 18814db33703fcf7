"""Traffic for `simulate`: synthetic traces, and recorded ones in files with a line a request.

The generators yield times of arrival in seconds, in ascending order, lazily, so that a long trace
needs no memory. The same seed gives the same times.

A recorded trace is CSV or NDJSON. CSV has a header with the names of its columns. NDJSON has one
object per line. A time is a number of seconds or an ISO 8601 date, and the earliest becomes 0.
Lines may be in any order, since logs are written when requests end.

A trace of ``shoal trace`` is NDJSON that begins with a line ``{"record": "trace", ...}``. It has
further lines with a member ``record``, about batchers and their batches, and its requests name
their batcher.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from shoal.core.simulation_results import Arrival
from shoal.planning.recordings import FORMAT, RecordedBatcher, at_least_0

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


class Item(NamedTuple):
    """The properties of a recorded request's item that matter for forming batches."""

    cost: float = 1.0
    bucket: str | None = None  # only items of one bucket share a batch


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace that was read from a file.

    Attributes:
        arrivals: Its requests, in order of time; the first arrives at 0.
        columns: The known columns that it has.
        unknown: Its other columns, which are ignored.
        batcher: The options and batches of the requests' batcher; None unless ``shoal trace``
            recorded the trace.
        others: The names of the other batchers of the trace; their requests are left out.
        lost: How many requests and batches of all batchers could not be recorded.
        unfinished: How many requests had not ended when the recording did.
    """

    arrivals: list[Arrival]
    columns: frozenset[str]
    unknown: tuple[str, ...]
    batcher: RecordedBatcher | None = None
    others: tuple[str, ...] = ()
    lost: int = 0
    unfinished: int = 0


def read_trace(path: Path, batcher: str | None = None) -> Recording:
    """Reads a recorded trace.

    Args:
        path: A file. It is NDJSON if it begins with ``{``, or its name ends in ``.ndjson`` or
            ``.jsonl``; anything else is read as CSV. Its columns: ``at``, and optionally
            ``priority``, ``timeout_s``, ``queue_timeout_s``, ``cost``, ``bucket``,
            ``shard_key`` and ``model``.
        batcher: The batcher to read the requests of, in a trace of ``shoal trace``; None for the
            one with the most requests.

    Raises:
        ValueError: The file can't be read, and the message names the line; or it has no requests
            for that batcher.
    """
    reading = TraceReader()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            opening: list[str] = []  # up to the first line that is not blank
            for line in file:
                opening.append(line)
                if line.strip():
                    break
            start = "".join(opening).lstrip()[:1]
            is_ndjson = path.suffix in (".ndjson", ".jsonl") or start == "{"
            rows = _objects if is_ndjson else _csv_rows
            for where, row in rows(path, chain(opening, file)):
                reading.add(where, row)
    except OSError as error:
        raise ValueError(f"can't read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    return reading.recording(path, batcher)


class TraceReader:
    """Reads the lines of a trace, from a file or as a server sends them."""

    def __init__(self) -> None:
        self.arrivals: defaultdict[str, list[Arrival]] = defaultdict(list)  # by batcher
        self.batchers: dict[str, RecordedBatcher] = {}
        self.ended_at: float | None = None  # the length of a whole recording
        self._is_recorded = False
        self._columns: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._lost = self._unfinished = 0

    def add(self, where: str, row: dict[str, Any]) -> None:
        kind = row.get("record")
        if kind == "trace":
            self._is_recorded = True
            if (number := row.get("format")) != FORMAT:
                raise ValueError(
                    f"{where}: a trace of the form {number!r}, which another version has written; "
                    f"this one reads {FORMAT}"
                )
            return
        if not self._is_recorded:
            self._add_request("", where, row)
            return
        try:
            self._add_recorded(kind, where, row)
        except (KeyError, TypeError, ValueError) as error:
            if str(error).startswith(where):
                raise
            detail = f": {error}" if isinstance(error, ValueError) and str(error) else ""
            raise ValueError(f"{where}: not a line of `shoal trace`{detail}") from None

    def _add_recorded(self, kind: Any, where: str, row: dict[str, Any]) -> None:
        if kind == "end":
            self.ended_at = at_least_0(row.get("at", 0))
            self._lost = int(row.get("lost", 0))
            self._unfinished = int(row.get("unfinished", 0))
        if kind in ("end", "progress"):
            return
        name = row["batcher"]
        if not isinstance(name, str):
            raise TypeError
        known = self.batchers.get(name)
        if known is None:
            known = self.batchers[name] = RecordedBatcher(name)
        if kind == "batcher":
            known.describe(row)
        elif kind == "batch":
            known.add_batch(row)
        elif kind is None:
            known.add_request(row)
            if row.get("outcome") == "cancelled" and "left_s" in row:
                patience_s = row.get("queue_timeout_s", math.inf)
                row["queue_timeout_s"] = min(row["left_s"], patience_s)
            self._add_request(name, where, row)

    def _add_request(self, name: str, where: str, row: dict[str, Any]) -> None:
        self.arrivals[name].append(_arrival(where, row))
        self._columns[name] |= dict.fromkeys(row)

    def recording(self, path: Path, batcher: str | None) -> Recording:
        requests = self.arrivals
        if not requests:
            raise ValueError(f"{path} has no requests")
        name = max(requests, key=lambda one: len(requests[one]))
        if batcher is not None:
            if batcher not in requests:
                there = ", ".join(filter(None, requests))
                why = f"it has those for {there}" if there else "it names no backends"
                raise ValueError(f"{path} has no requests for {batcher}; {why}")
            name = batcher
        arrivals = sorted(requests[name], key=lambda one: one.at)
        columns = self._columns[name]
        known = COLUMNS.keys() | (_OF_RECORDINGS if self._is_recorded else ())
        first_at = arrivals[0].at
        return Recording(
            [one._replace(at=one.at - first_at) for one in arrivals],
            frozenset(columns.keys() & COLUMNS.keys()),
            tuple(one for one in columns if one not in known),
            self.batchers.get(name),
            tuple(one for one in requests if one != name),
            self._lost,
            self._unfinished,
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
    reader = csv.reader(lines, skipinitialspace=True)
    rows = (cells for cells in reader if cells)
    names = next(rows, list[str]())
    for cells in rows:
        where = f"{path}, line {reader.line_num}"
        if len(cells) != len(names):
            raise ValueError(
                f"{where}: want {len(names)} cells ({', '.join(names)}), got {len(cells)}"
            )
        yield where, {name: cell for name, cell in zip(names, cells, strict=True) if cell}


def _arrival(where: str, row: dict[str, Any]) -> Arrival:
    if "at" not in row:
        raise ValueError(f"{where}: no time; want a column 'at', the time of arrival in seconds")
    values: dict[str, Any] = {}
    for name, value in row.items():
        if name not in COLUMNS:
            continue
        read, wanted = COLUMNS[name]
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


def _level(value: Any) -> int:
    level = int(value)
    if level < 1 or level != float(value) or isinstance(value, bool):
        raise ValueError
    return level


_OF_RECORDINGS: Final = frozenset({"batcher", "batch", "took_s", "left_s", "outcome"})
COLUMNS: Final = cast(
    "dict[str, tuple[Callable[[Any], Any], str]]",
    {
        "at": (_time, "a time in seconds, or like 2026-01-31T12:00:00"),
        "priority": (_level, "a whole number from 1 on"),
        "timeout_s": (at_least_0, "a number of seconds from 0 on"),
        "queue_timeout_s": (at_least_0, "a number of seconds from 0 on"),
        "cost": (at_least_0, "a number from 0 on"),
        "bucket": (str, "text"),
        "shard_key": (str, "text"),
        "model": (str, "text"),
    },
)


def constant(rate: float, duration_s: float) -> Iterator[float]:
    """Generates requests at equal intervals.

    Args:
        rate: Requests a second.
        duration_s: For how long requests arrive, in seconds.
    """
    _check(rate=rate, duration_s=duration_s)
    return (number / rate for number in range(math.ceil(rate * duration_s)))


def poisson(rate: float, duration_s: float, *, seed: int = 0) -> Iterator[float]:
    """Generates requests of many independent callers.

    Args:
        rate: Requests a second, on average.
        duration_s: For how long requests arrive, in seconds.
        seed: The seed of the random times.
    """
    _check(rate=rate, duration_s=duration_s)
    return _arrivals_at_random(rate, duration_s, seed)


def bursty(
    rate: float, duration_s: float, *, on_s: float = 1.0, off_s: float = 4.0, seed: int = 0
) -> Iterator[float]:
    """Generates bursts with pauses in between; within a burst requests arrive as in `poisson`.

    Args:
        rate: Requests a second, on average over bursts and pauses.
        duration_s: For how long requests arrive, in seconds.
        on_s: How long a burst lasts, in seconds.
        off_s: How long the pause after it lasts, in seconds.
        seed: The seed of the random times.
    """
    _check(rate=rate, duration_s=duration_s, on_s=on_s)
    if not 0 <= off_s < math.inf:
        raise ValueError(f"off_s must be at least 0, not {off_s!r}")
    period_s = on_s + off_s
    # Times are drawn on a clock that runs during bursts only.
    whole, rest_s = divmod(duration_s, period_s)
    for_s = whole * on_s + min(rest_s, on_s)
    busy = _arrivals_at_random(rate * period_s / on_s, for_s, seed)
    return (at // on_s * period_s + at % on_s for at in busy)


def _arrivals_at_random(rate: float, duration_s: float, seed: int) -> Iterator[float]:
    """Draws the times of a Poisson process."""
    chance = random.Random(seed)  # noqa: S311 - no secret is drawn
    at = chance.expovariate(rate)
    while at < duration_s:
        yield at
        at += chance.expovariate(rate)


def _check(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be more than 0, not {value!r}")
