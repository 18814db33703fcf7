"""The lines of a batch job: what each means, and the files that they are read from and written to.

A line is an item for a handler, or a request of OpenAI's batch files. The results are a line of
JSON for each line of the input, in its order. So the number of whole lines in the output says where
a job that was stopped goes on, however it was stopped.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from importlib import import_module
from inspect import Parameter, Signature
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, TypeAlias, cast
from uuid import uuid4

import anyio

from shoal.batching.calls.window import MapPlan
from shoal.commands.support.output import CommandError, say
from shoal.errors import Overloaded
from shoal.failures.exceptions import in_one_line

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping
    from pathlib import Path

    from starlette.types import ASGIApp

_NULL: Final = b"null"
# Statuses of a request that is made again.
_REFUSED: Final = (429, 503)
_REQUESTS_AT_ONCE: Final = 64
_BLOCK_BYTES: Final = 2**20
_ERROR_BEGINS: Final = b'{"line":'
_ROWS_AT_ONCE: Final = 4096


class LineRefused(Exception):
    """A line that is no item; `members` describe the error."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        super().__init__()
        self.members = members


class RequestRefused(Overloaded):
    """A request that an overloaded application has refused; `map` makes it again."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__("the application is overloaded")
        self.members = answer


BLANK: Final = LineRefused({})
"""The outcome of a line that is blank."""

Result: TypeAlias = "tuple[bytes, Mapping[str, Any] | None]"
"""A line of the output, and what the file of errors has about it if it failed."""


class ItemLines:
    """Items for a handler: a line is decoded and checked as the body of a request would be."""

    def __init__(self, signature: Signature, *, are_values: bool) -> None:
        self.item = _checked(signature, are_values=are_values)

    def written(self, outcome: Any) -> Result:
        if not isinstance(outcome, Exception):
            try:
                return _json_line(outcome), None
            except Exception as error:  # it can't be written
                outcome = error
        if isinstance(outcome, LineRefused):
            return _NULL, {"error": outcome.members}
        kind, detail = type(outcome).__name__, in_one_line(outcome)
        return _NULL, {"error": {"type": kind, "title": "The call failed", "detail": detail}}


class OpenAiLines:
    """Requests of OpenAI's batch files: ``custom_id``, ``method``, ``url`` and ``body``."""

    def item(self, line: bytes) -> dict[str, Any]:
        try:
            request: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _refused(None, f"the line is not JSON: {error}") from None
        known = cast("dict[str, Any]", request if isinstance(request, dict) else {})
        custom_id = known.get("custom_id")
        if not isinstance(custom_id, str):
            raise _refused(None, "the line is no object with a text as custom_id")
        if known.get("method") != "POST":
            raise _refused(custom_id, "method must be POST")
        url = known.get("url")
        if not isinstance(url, str) or not url.startswith("/"):
            raise _refused(custom_id, "url must be a path, such as /v1/embeddings")
        if not isinstance(known.get("body"), dict):
            raise _refused(custom_id, "body must be an object")
        if known["body"].get("stream"):
            raise _refused(custom_id, "stream: a batch has no streams; leave it out")
        return known

    def written(self, outcome: Any) -> Result:
        is_refused = isinstance(outcome, LineRefused | RequestRefused)
        answer: Mapping[str, Any] = outcome.members if is_refused else outcome
        response = answer["response"]
        is_good = response is not None and response["status_code"] < 400
        return _json_line(answer), None if is_good else answer


@asynccontextmanager
async def open_app(app: ASGIApp) -> AsyncGenerator[tuple[OpenAiLines, MapPlan]]:
    """Runs an application's lifespan, and yields how requests to it are made."""
    from shoal.http.app.lifespan import Mounted, lifespans_of

    httpx: Any = import_module("httpx")  # an extra
    mounted = Mounted(app)
    transport = httpx.ASGITransport(mounted)

    async def ask(requests: list[dict[str, Any]]) -> list[Any]:
        [request] = requests
        try:
            response = await client.post(request["url"], json=request["body"])
        except Exception as error:
            failed = {"code": "request_failed", "message": in_one_line(error)}
            return [_answer(request["custom_id"], None, failed)]
        try:
            body = response.json()
        except (ValueError, RecursionError):
            body = response.text
        answered = {
            "status_code": response.status_code,
            "request_id": response.headers.get("x-request-id"),
            "body": body,
        }
        answer = _answer(request["custom_id"], answered, None)
        return [RequestRefused(answer) if response.status_code in _REFUSED else answer]

    async with (
        lifespans_of([mounted]),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield OpenAiLines(), MapPlan("run-batch", ask, 1, _REQUESTS_AT_ONCE)


def _answer(custom_id: object, response: Any, error: Any) -> dict[str, Any]:
    name = f"batch_req_{uuid4().hex}"
    return {"id": name, "custom_id": custom_id, "response": response, "error": error}


def _refused(custom_id: str | None, message: str) -> LineRefused:
    return LineRefused(_answer(custom_id, None, {"code": "invalid_request", "message": message}))


def _json_line(value: Any) -> bytes:
    from shoal.http.requests.plain import encoded, one_line_json

    return one_line_json(encoded(value))


def _checked(signature: Signature, *, are_values: bool) -> Callable[[Any], Any]:
    """Returns what makes the item of a line, or of a value."""
    from pydantic import ValidationError

    from shoal.http.json.payload import fields_adapter
    from shoal.http.json.validation import adapter_of, problem_of_validation, validator_of

    parameters = list(signature.parameters.values())
    is_single = len(parameters) == 1
    annotation = parameters[0].annotation if is_single else None
    if annotation is bytes and not are_values:
        return bytes
    if annotation is Parameter.empty:
        annotation = Any
    adapter = adapter_of(annotation) if is_single else fields_adapter(parameters)
    validator = validator_of(adapter)
    check: Callable[[Any], Any]
    check = validator.validate_python if are_values else validator.validate_json

    def item(line: Any) -> Any:
        try:
            return check(line)
        except ValidationError as error:
            members = problem_of_validation(error, b"" if are_values else line).members("")
            del members["status"], members["instance"]  # there is no request
            raise LineRefused(members) from None

    return item


class Input(NamedTuple):
    """Lines of JSON, or values of rows."""

    lines: Iterable[Any] | AsyncGenerator[bytes]
    total: int | None = None
    """How many there are; None for a pipe, which can't be read again."""


@contextmanager
def open_lines(path: Path, most: int | None) -> Generator[Input]:
    """Opens a file, or a pipe of which `most` lines are read."""
    if str(path) == "-":
        yield Input(_lines_of_pipe(0, most))
        return
    with _readable(path) as file:
        if not path.is_file():
            yield Input(_lines_of_pipe(file.fileno(), most))
            return
        total, end = _whole_lines(file)
        total += file.seek(0, os.SEEK_END) > end  # the last line may have no end
        file.seek(0)
        yield Input(file, total)


def _readable(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise CommandError(f"can't read {path}: {error.strerror}") from None


async def _lines_of_pipe(descriptor: int, most: int | None) -> AsyncGenerator[bytes]:
    rest, count = b"", 0
    while count != most:
        if not select.select([descriptor], [], [], 0)[0]:  # always there if it is a file
            await anyio.wait_readable(descriptor)
        if not (block := os.read(descriptor, _BLOCK_BYTES)):
            if rest:
                yield rest
            return
        *lines, rest = (rest + block).split(b"\n")
        for line in islice(lines, None if most is None else most - count):
            count += 1
            yield line


@contextmanager
def open_rows(path: Path, column: str | None) -> Generator[Input]:
    """Opens a Parquet file: each row is a dict, or the value if one column is read."""
    parquet = _parquet()
    with _readable(path) as file:
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
        self._has_said_error = False
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

    def write(self, results: Iterable[Result]) -> None:
        """Writes the results of the next lines, and says the first error."""
        lines: list[bytes] = []
        failures: list[bytes] = []
        for line, failure in results:
            lines.append(line)
            self.done += 1
            if failure is not None:
                self.failed += 1
                error = _json_line({"line": self.done, **failure})
                failures.append(error)
                if not self._has_said_error:
                    self._has_said_error = True
                    say(f"line {self.done:,} failed, the first in this run: {error.decode():.300}")
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
    try:
        for line in file:
            if not line.startswith(_ERROR_BEGINS[: len(line)]):
                raise ValueError(line)
            if not line.endswith(b"\n"):  # it was being written
                break
            if int(line[len(_ERROR_BEGINS) : line.index(b",")]) > last:
                break
            found, end = found + 1, end + len(line)
    except ValueError:  # a mistyped path must not cost a file
        raise CommandError(f"{path} is no file of errors of this command: remove it") from None
    return found, end


def write_parquet(journal: Path, path: Path) -> None:
    """Converts lines of JSON to a Parquet file, which is there whole or not at all."""
    arrow, parquet = import_module("pyarrow"), _parquet()
    beside = path.with_name(f"{path.name}.part")
    try:
        are_objects = all(row is None or isinstance(row, dict) for row in _values(journal))
        schema = arrow.schema([])
        for rows in _tables(journal, are_objects=are_objects):
            names = dict.fromkeys(name for row in rows for name in row)
            columns = {name: [row.get(name) for row in rows] for name in names}
            schemas = [schema, arrow.table(columns).schema]
            schema = arrow.unify_schemas(schemas, promote_options="permissive")
        if not schema.names:
            schema = arrow.schema([("result", arrow.null())])
        with parquet.ParquetWriter(beside, schema) as writer:
            for rows in _tables(journal, are_objects=are_objects):
                writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
    except (ValueError, TypeError, OverflowError, NotImplementedError) as error:  # of pyarrow
        raise CommandError(
            f"the results fit no Parquet file, and stay in {journal}: {error}", 1
        ) from None
    except OSError as error:
        raise CommandError(
            f"can't write {path}, and the results stay in {journal}: {error}", 1
        ) from None
    os.replace(beside, path)
    journal.unlink()


def _tables(journal: Path, *, are_objects: bool) -> Iterator[list[dict[str, Any]]]:
    """Yields the rows of a table, some at once."""
    rows = ((one or {}) if are_objects else {"result": one} for one in _values(journal))
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        yield some


def _values(journal: Path) -> Iterator[Any]:
    with journal.open("rb") as file:
        yield from (json.loads(line) for line in file if line.strip())


def _parquet() -> Any:
    return import_module("pyarrow.parquet")  # an extra
