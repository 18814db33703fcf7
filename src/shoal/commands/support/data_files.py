"""Files of items and of results, whose lines are read and written one after the other.

The results are a line of JSON for each line of the input, in its order. So the number of whole
lines in the output says where a job that was stopped goes on, however it was stopped.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from itertools import islice
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import anyio.to_thread

from shoal.commands.support.output import CommandError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

NOT_YET: Final = object()
_BLOCK_BYTES: Final = 2**20
_ERROR_BEGINS: Final = b'{"line":'
_ROWS_AT_ONCE: Final = 4096
_NOTHING: Final[dict[str, Any]] = {}


class Input(NamedTuple):
    """Lines of JSON, or values of rows; `NOT_YET` where the next one is not there yet."""

    lines: Iterator[Any]
    total: int | None
    """How many there are; None if that is not known."""
    pipe: Pipe | None = None


class Pipe:
    """The lines of a pipe, read in a thread, since whoever writes it may take any time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._blocks: Queue[list[bytes] | None] = Queue(16)
        self._next: list[bytes] | None = []
        # A daemon: reading can't be stopped, and must not keep the process.
        Thread(target=self._read, daemon=True).start()

    def lines(self) -> Iterator[Any]:
        while self._next is not None:
            yield from self._next
            try:
                self._next = self._blocks.get_nowait()
            except Empty:
                self._next = []
                yield NOT_YET

    async def wait(self) -> None:
        """Waits for the next lines, or the end; lines that were waited for must be taken."""
        self._next = await anyio.to_thread.run_sync(self._blocks.get, abandon_on_cancel=True)

    def _read(self) -> None:
        rest = b""
        while block := os.read(self._descriptor, _BLOCK_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            if lines:
                self._blocks.put(lines)
        if rest:
            self._blocks.put([rest])
        self._blocks.put(None)


@contextmanager
def open_lines(path: Path) -> Generator[Input]:
    if str(path) == "-":
        yield _of_pipe(0)
        return
    with path.open("rb") as file:
        if not path.is_file():
            yield _of_pipe(file.fileno())
            return
        total, end = _whole_lines(file)
        total += file.seek(0, os.SEEK_END) > end  # the last line may have no end
        file.seek(0)
        yield Input(file, total)


def _of_pipe(descriptor: int) -> Input:
    pipe = Pipe(descriptor)
    return Input(pipe.lines(), None, pipe)


@contextmanager
def open_rows(path: Path, column: str | None) -> Generator[Input]:
    """Opens a Parquet file: each row is a dict, or the value if one column is read."""
    parquet = _parquet()
    with path.open("rb") as file:
        try:
            table = parquet.ParquetFile(file)
        except ValueError as error:  # pyarrow's errors are ValueErrors
            raise CommandError(f"{path} is not a Parquet file: {error}") from None
        names: list[str] = table.schema_arrow.names
        if column is not None and column not in names:
            raise CommandError(f"{path} has no column {column!r}; it has {', '.join(names)}")
        only = names[0] if column is None and len(names) == 1 else column
        yield Input(_rows(table, only), table.metadata.num_rows)


def _rows(table: Any, only: str | None) -> Iterator[Any]:
    for batch in table.iter_batches(_ROWS_AT_ONCE, columns=None if only is None else [only]):
        rows: list[dict[str, Any]] = batch.to_pylist()
        yield from rows if only is None else (row[only] for row in rows)


class ResultFiles:
    """The output of a job and its errors, where it goes on after the last line that has an end."""

    # Errors are written before the lines in whose places they are. A killed process leaves half
    # a line, or errors without results: both are dropped, and those lines are computed again.

    def __init__(self, path: Path, errors: Path, *, overwrite: bool) -> None:
        self.path, self.errors_path = path, errors
        self.failed = 0
        self._lines: list[bytes] = []
        self._failures: list[bytes] = []
        with ExitStack() as opened:
            self._output = opened.enter_context(_opened(path))
            try:
                fcntl.flock(self._output, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandError(f"another run writes {path}") from None
            self._errors = opened.enter_context(_opened(errors))
            self.done, end = (0, 0) if overwrite else _whole_lines(self._output)
            self.failed, errors_end = _errors_until(self._errors, self.done, errors)
            self.dropped_bytes = self._output.seek(0, os.SEEK_END) - end
            for file, size in ((self._output, end), (self._errors, errors_end)):
                file.truncate(size)
                file.seek(size)
            opened.pop_all()

    def add(self, line: bytes, error: bytes | None = None) -> None:
        """Adds the result of the next line; `error` is a JSON object that begins with it."""
        self._lines.append(line)
        self.done += 1
        if error is not None:
            self._failures.append(error)
            self.failed += 1

    def flush(self) -> None:
        # What can't be written is dropped: to write the rest later would leave a gap.
        failures, self._failures = self._failures, []
        lines, self._lines = self._lines, []
        for path, file, added in (
            (self.errors_path, self._errors, failures),
            (self.path, self._output, lines),
        ):
            if added:
                try:
                    file.write(b"\n".join((*added, b"")))
                    file.flush()
                except OSError as error:
                    raise CommandError(f"can't write {path}: {error.strerror}", 1) from None

    def close(self) -> None:
        """Closes the files, and removes that of errors if there are none."""
        for file in (self._output, self._errors):
            with suppress(OSError):  # what could not be written can't be now; it was reported
                file.close()
        if self.failed == 0:
            self.errors_path.unlink(missing_ok=True)


def failures_in(errors: Path) -> int:
    if not errors.exists():
        return 0
    with errors.open("rb") as file:
        return _whole_lines(file)[0]


def _opened(path: Path) -> BinaryIO:
    if path.exists() and not path.is_file():
        raise CommandError(f"{path} is no regular file, so no job can go on in it")
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    except OSError as error:
        raise CommandError(f"can't write {path}: {error.strerror}") from None


def _whole_lines(file: BinaryIO) -> tuple[int, int]:
    """Returns the number of lines that have an end, and where the last of them ends."""
    lines = end = at = 0
    file.seek(0)
    while block := file.read(_BLOCK_BYTES):
        lines += block.count(b"\n")
        last = block.rfind(b"\n")
        if last >= 0:
            end = at + last + 1
        at += len(block)
    file.seek(0)
    return lines, end


def _errors_until(file: BinaryIO, last: int, path: Path) -> tuple[int, int]:
    """Returns the number of errors of lines up to the last one, and where they end."""
    found = end = 0
    for line in file:
        number = None
        if line.startswith(_ERROR_BEGINS) and line.endswith(b"\n"):
            with suppress(ValueError):
                number = int(line[len(_ERROR_BEGINS) : line.index(b",")])
        elif _ERROR_BEGINS.startswith(line[: len(_ERROR_BEGINS)]) and not line.endswith(b"\n"):
            break  # it was being written
        if number is None:  # a mistyped path must not cost a file
            raise CommandError(f"{path} is no file of errors of this command: remove it")
        if number > last:
            break
        found, end = found + 1, end + len(line)
    return found, end


def write_parquet(journal: Path, path: Path) -> None:
    """Converts lines of JSON to a Parquet file, which is there whole or not at all."""
    arrow, parquet = import_module("pyarrow"), _parquet()
    beside = path.with_name(f"{path.name}.part")
    try:
        schema, are_objects = _schema_of(arrow, journal)
        with parquet.ParquetWriter(beside, schema) as writer:
            for rows in _chunks(journal):
                listed = [(row or _NOTHING) if are_objects else {"result": row} for row in rows]
                writer.write_table(arrow.Table.from_pylist(listed, schema=schema))
    except (ValueError, TypeError) as error:  # pyarrow's errors are of these
        raise CommandError(
            f"the results fit no Parquet file, and stay in {journal}: {error}", 1
        ) from None
    os.replace(beside, path)
    journal.unlink()


def _schema_of(arrow: Any, journal: Path) -> tuple[Any, bool]:
    """Returns the schema of all lines, and whether they are objects, for columns."""
    are_objects = True
    for rows in _chunks(journal):
        are_objects &= all(row is None or isinstance(row, dict) for row in rows)
    schemas: list[Any] = []
    for rows in _chunks(journal):
        columns: dict[str, list[Any]] = {"result": rows}
        if are_objects:
            names: dict[str, None] = dict.fromkeys(name for row in rows for name in row or ())
            columns = {name: [(row or _NOTHING).get(name) for row in rows] for name in names}
        made = arrow.table(columns).schema
        schemas = [arrow.unify_schemas([*schemas, made], promote_options="permissive")]
    if not schemas or not schemas[0].names:
        return arrow.schema([("result", arrow.null())]), False
    return schemas[0], are_objects


def _chunks(journal: Path) -> Iterator[list[Any]]:
    with journal.open("rb") as file:
        while lines := list(islice(file, _ROWS_AT_ONCE)):
            yield [json.loads(line) for line in lines if line.strip()]


def _parquet() -> Any:
    return import_module("pyarrow.parquet")  # an extra
