"""``shoal run-batch``: calls a handler with each line of a file, and writes a line for each result.

A job that was stopped, by Ctrl-C or with its machine, goes on when the same command is given again.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing
from functools import partial
from itertools import islice, tee
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.calls.progress import reporter
from shoal.commands.support.arguments import (
    add,
    add_init_arguments,
    add_loop_argument,
    add_option_argument,
    count,
    describe,
)
from shoal.commands.support.batch_lines import (
    NOT_YET,
    Input,
    ItemLines,
    LineRefused,
    OpenAiLines,
    ResultFiles,
    failures_in,
    open_app,
    open_lines,
    open_rows,
    write_parquet,
)
from shoal.commands.support.loading import application_of, instance_of, named
from shoal.commands.support.output import CommandError, as_mistakes, failed_code, say
from shoal.commands.support.values import init_arguments_of, option_pairs
from shoal.core.extras import need
from shoal.failures.exceptions import ungrouped
from shoal.planning.tuning import opened

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterable, Iterator

    from anyio import CancelScope

    from shoal.batching.batcher import Batcher

    # Opens the batcher whose items are the lines.
    Opening = AbstractAsyncContextManager[Batcher[Any]]

_DESCRIPTION: Final = """\
Call a handler with each line of a file, in batches, and write a line for each result, in the order
of the input. A line that failed is null, and its error is in a file of its own. Give the same
command again to go on with a job that was stopped.
"""

_EXAMPLE: Final = """\
  shoal run-batch my_module:embed texts.jsonl vectors.jsonl --limit 1000
  shoal run-batch my_module:embed texts.parquet vectors.parquet --column text
  shoal run-batch my_module:Classifier texts.jsonl labels.jsonl --arg large.onnx \\
    --option max_batch_size=256
  shoal run-batch my_module:app requests.jsonl answers.jsonl     OpenAI's batch lines

  The exit code is 0 if all lines went well, 1 if some failed, 130 after Ctrl-C.
"""

_PARQUET: Final = ".parquet"
_REQUESTS_AT_ONCE: Final = 64
# How many refused lines may wait for their places.
_MOST_REFUSED: Final = 1024


def add_arguments(parser: ArgumentParser) -> None:
    describe(parser, run, _DESCRIPTION, _EXAMPLE)
    what = "a function of a list, a class whose instance is called, or an application"
    add(parser, "handler MODULE:NAME", what)
    add(parser, "input INPUT", "JSON lines, a .parquet file, or - for stdin", Path)
    add(parser, "output OUTPUT", "JSON lines, or a .parquet file", Path)
    add_init_arguments(parser)
    files = parser.add_argument_group("files")
    add(files, "--errors FILE", "the lines that failed (OUTPUT.errors.jsonl)", Path)
    add(files, "--column NAME", "the column of a Parquet file to read")
    add(files, "--limit N", "the most lines in this run", count)
    add(files, "--overwrite", "begin with the first line, and drop the output")
    add(files, "--quiet", "show no progress and no summary")
    batches = parser.add_argument_group("batches")
    add(batches, "--window N", "the most lines under way (three batches of each slot)", count)
    add_loop_argument(batches)
    add_option_argument(batches)


def run(arguments: Namespace) -> int:
    output: Path = arguments.output
    if output.is_dir():
        raise CommandError(f"{output} is a directory")
    errors: Path = arguments.errors or output.with_suffix(".errors.jsonl")
    is_table = output.suffix == _PARQUET
    journal = output.with_name(f"{output.name}.part.jsonl") if is_table else output
    _check_paths(arguments.input, output, journal, errors)
    if is_table and output.exists() and not journal.exists() and not arguments.overwrite:
        say(f"{output} is complete; --overwrite computes it again")
        return int(failures_in(errors) > 0)
    with as_mistakes():
        if is_table or arguments.input.suffix == _PARQUET:
            need("a Parquet file", "pyarrow", "parquet")
        need("shoal run-batch", "pydantic", "serve")
        opening, is_app = _target(arguments)
        source = _source(arguments, is_app)
    with (
        source as lines,
        closing(ResultFiles(journal, errors, overwrite=arguments.overwrite)) as results,
    ):
        job = _Job(arguments, lines, results, is_app=is_app)
        if job.left != 0:
            anyio.run(job.run, opening, backend=arguments.event_loop)
        job.tell(output)
        if job.stopped_by is not None:
            return 128 + job.stopped_by
        if is_table and job.is_complete:
            with as_mistakes():
                write_parquet(journal, output)
        return int(results.failed > 0)


def _check_paths(source: Path, *written: Path) -> None:
    *outputs, errors = written
    if errors in outputs:
        raise CommandError("the results and the errors need two files")
    if str(source) != "-" and not source.exists():
        raise CommandError(f"there is no file {source}")
    if any(path.exists() and source.exists() and path.samefile(source) for path in written):
        raise CommandError(f"{source} would be overwritten: name another file for the output")


def _source(arguments: Namespace, is_app: bool) -> AbstractContextManager[Input]:
    if arguments.input.suffix != _PARQUET:
        if arguments.column is not None:
            raise CommandError("--column is for a Parquet file")
        return open_lines(arguments.input)
    if is_app:
        raise CommandError("requests to an application are JSON lines")
    return open_rows(arguments.input, arguments.column)


def _target(arguments: Namespace) -> tuple[Opening, bool]:
    """Returns what opens the handler or the application, and whether it is the latter."""
    args, kwargs = init_arguments_of(arguments)
    options = option_pairs(arguments.option)
    is_file = arguments.handler.endswith((".toml", ".py"))
    found = (application_of if is_file else partial(named, example="my_module:embed"))(
        arguments.handler
    )
    if _is_application(found):
        if args or kwargs or options:
            raise CommandError("an application has its own options")
        need("run-batch of an application", "httpx", "client")
        return open_app(found, arguments.window or _REQUESTS_AT_ONCE), True
    return opened(instance_of(found, args, kwargs), **options), False


def _is_application(found: object) -> bool:
    from starlette.applications import Starlette

    from shoal.http.app.app import App
    from shoal.http.app.middleware import within

    return within(found, App) is not None or within(found, Starlette) is not None


class _Items:
    """The items of the next lines; lines that are none wait in `refused` for their places."""

    def __init__(self, source: Input, item: Callable[[Any], Any], last: int | None) -> None:
        self.refused: deque[tuple[int, LineRefused | None]] = deque()
        self.is_ended = False
        self.number = 0
        self._lines = source.lines
        self._item = item
        self._last = last

    def skip(self, most: int) -> None:
        self.number = sum(1 for _ in islice(self._lines, most))

    def __iter__(self) -> Iterator[Any]:
        # It pauses where lines are not there yet, and where too many wait for their places.
        while len(self.refused) < _MOST_REFUSED and self.number != self._last:
            line = next(self._lines, self)
            if line is self:
                break
            if line is NOT_YET:
                return
            self.number += 1
            if isinstance(line, bytes):
                line = line.strip()
                if not line:
                    self.refused.append((self.number, None))
                    continue
            try:
                item = self._item(line)
            except LineRefused as refused:
                self.refused.append((self.number, refused))
            else:
                yield item
        self.is_ended = len(self.refused) < _MOST_REFUSED


class _Job:
    """The lines of one run: read, called, and written in their order."""

    def __init__(
        self, arguments: Namespace, source: Input, results: ResultFiles, *, is_app: bool
    ) -> None:
        self.stopped_by: int | None = None
        self.is_complete = False
        self._arguments = arguments
        self._source = source
        self._results = results
        self._is_app = is_app
        self._first = results.done
        self._began_at = time.monotonic()
        self._has_shown_error = False
        self._last: int | None = source.total
        self._check_source()
        if arguments.limit is not None:
            last = self._first + arguments.limit
            self._last = last if self._last is None else min(last, self._last)
        self.left = None if self._last is None else self._last - self._first
        self._report = reporter(not arguments.quiet and self.left != 0, self.left, "run-batch")

    def _check_source(self) -> None:
        path, done = self._results.path, self._first
        if self._results.dropped_bytes and not self._arguments.overwrite:
            say(f"{path}: dropped the last line, which was not written to its end")
        if done == 0:
            return
        if self._source.pipe is not None:
            raise CommandError(f"{path} has results, and a pipe begins again: give --overwrite")
        if self._last is not None and self._last < done:
            raise CommandError(
                f"{path} has {done:,} lines, and {self._arguments.input} only {self._last:,}: it "
                "is the output of another input; --overwrite drops it"
            )
        if self._last != done:
            say(f"{path} has {done:,} lines: going on with line {done + 1:,}")

    async def run(self, opening: Opening) -> None:
        try:
            async with ungrouped() as tasks:
                try:
                    with anyio.CancelScope() as scope:
                        tasks.start_soon(self._watch_signals, scope)
                        async with opening as batcher:
                            await self._work(batcher)
                finally:
                    tasks.cancel_scope.cancel()
        except CommandError:
            raise
        except Exception as error:  # of the user's code
            raise failed_code(f"{self._arguments.handler} failed", error) from None

    async def _watch_signals(self, scope: CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                if self.stopped_by is not None:
                    os._exit(128 + number)  # nothing is lost
                self.stopped_by = number
                say("stopping; once more to stop at once")
                scope.cancel()

    async def _work(self, batcher: Batcher[Any]) -> None:
        if batcher.streams:
            raise CommandError(f"{self._arguments.handler} answers with streams, not with results")
        with as_mistakes():
            if self._is_app:
                form: OpenAiLines | ItemLines = OpenAiLines()
            else:
                are_values = self._arguments.input.suffix == _PARQUET
                form = ItemLines(batcher.signature, are_values=are_values)
        items = _Items(self._source, form.item, self._last)
        items.skip(self._first)
        size = len(batcher.signature.parameters)
        window = self._arguments.window
        if window is None and self._is_app:
            window = _REQUESTS_AT_ONCE
        # Results that were taken since the last write: no more than the window has.
        landed: list[Any] = []

        def write(*_: object) -> None:
            """Writes the results that are there, whenever no more are."""
            for outcome in landed:
                if items.refused:
                    self._add_refused(items, form)
                self._add(form, outcome)
            landed.clear()
            self._results.flush()
            self._report(self._results.done - self._first, False)

        try:
            while not items.is_ended:
                columns: list[Iterable[Any]] = [items]
                if size > 1:
                    each = tee(items, size)
                    columns = [map(itemgetter(nth), one) for nth, one in enumerate(each)]
                outcomes = batcher.call.map(
                    *columns, window=window, return_exceptions=True, progress=write
                )
                async for outcome in outcomes:
                    landed.append(outcome)  # noqa: PERF401 - `write` reads it during the loop
                write()
                self._add_refused(items, form)
                write()
                if self._source.pipe is not None and not items.is_ended:
                    await anyio.wait_readable(self._source.pipe)
        finally:
            write()
            self._report(self._results.done - self._first, True)
        total = self._source.total
        self.is_complete = items.is_ended if total is None else self._results.done == total

    def _add_refused(self, items: _Items, form: OpenAiLines | ItemLines) -> None:
        while items.refused and items.refused[0][0] == self._results.done + 1:
            refused = items.refused.popleft()[1]
            if refused is None:
                self._results.add(b"")
            else:
                self._add(form, refused)

    def _add(self, form: OpenAiLines | ItemLines, outcome: Any) -> None:
        number = self._results.done + 1
        line, error = form.written(number, outcome)
        self._results.add(line, error)
        if error is not None and not self._has_shown_error:
            self._has_shown_error = True
            say(f"line {number:,} failed, the first in this run: {error.decode():.300}")

    def tell(self, output: Path) -> None:
        """Says what was done, and how to go on."""
        results, total = self._results, self._source.total
        done, took_s = results.done - self._first, time.monotonic() - self._began_at
        rest = None if total is None else total - results.done
        if self._arguments.quiet:
            return
        rate = done / max(took_s, 0.001)
        said = f"{output}: {done:,} lines in {took_s:,.1f} s, {rate:,.0f} a second"
        if self._first:
            said += f"; {results.done:,} in all"
        if results.failed:
            said += f"; {results.failed:,} failed, see {results.errors_path}"
        say(said)
        if rest:
            say(f"{rest:,} lines are left; the same command goes on with line {results.done + 1:,}")
