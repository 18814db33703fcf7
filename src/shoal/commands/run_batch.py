"""``shoal run-batch``: calls a handler with each line of a file, and writes a line for each result.

A job that was stopped, by Ctrl-C or with its machine, goes on when the same command is given again.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
)
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.calls.mapping import MapCall
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
    BLANK,
    Input,
    ItemLines,
    LineRefused,
    OpenAiLines,
    ResultFiles,
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
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from anyio import CancelScope

    from shoal.batching.batcher import Batcher
    from shoal.batching.calls.window import MapPlan

    # Opens what is called: what lines mean, and how their items are called.
    Form = ItemLines | OpenAiLines
    Opening = AbstractAsyncContextManager[tuple[Form, MapPlan]]

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
        return int(errors.exists() and errors.stat().st_size > 0)
    with as_mistakes():
        if is_table or arguments.input.suffix == _PARQUET:
            need("a Parquet file", "pyarrow", "parquet")
        need("shoal run-batch", "pydantic", "serve")
        opening = _target(arguments)
        source = _source(arguments)
    with (
        source as lines,
        closing(ResultFiles(journal, errors, overwrite=arguments.overwrite)) as results,
    ):
        job = _Job(arguments, lines, results)
        if job.left != 0:
            anyio.run(job.run, opening, backend=arguments.event_loop)
        job.tell(output)
        if job.stopped_by is not None:
            return 128 + job.stopped_by
        if is_table and lines.total in (None, results.done):
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


def _source(arguments: Namespace) -> AbstractContextManager[Input]:
    if arguments.input.suffix == _PARQUET:
        return open_rows(arguments.input, arguments.column)
    if arguments.column is not None:
        raise CommandError("--column is for a Parquet file")
    return open_lines(arguments.input, arguments.limit)


def _target(arguments: Namespace) -> Opening:
    args, kwargs = init_arguments_of(arguments)
    options = option_pairs(arguments.option)
    spec: str = arguments.handler
    is_file = spec.endswith((".toml", ".py"))
    found = application_of(spec) if is_file else named(spec, "my_module:embed")
    are_values = arguments.input.suffix == _PARQUET
    if not _is_application(found):
        opening = opened(instance_of(found, args, kwargs), **options)
        return _open_handler(opening, spec, are_values)
    if args or kwargs or options:
        raise CommandError("an application has its own options")
    if are_values:
        raise CommandError("requests to an application are JSON lines")
    need("run-batch of an application", "httpx", "client")
    return open_app(found)


@asynccontextmanager
async def _open_handler(
    opening: AbstractAsyncContextManager[Batcher[Any]], name: str, are_values: bool
) -> AsyncGenerator[tuple[Form, MapPlan]]:
    async with opening as batcher:
        if batcher.streams:
            raise CommandError(f"{name} answers with streams, not with results")
        with as_mistakes():
            form = ItemLines(batcher.signature, are_values=are_values)
        entry = batcher.find()
        # Lines are items already, not arguments.
        call_all = partial(entry.call_all, call_options=None, return_exceptions=True)
        yield form, entry.map_plan(None, as_completed=False)._replace(call_all=call_all)


def _is_application(found: object) -> bool:
    from starlette.applications import Starlette

    from shoal.http.app.app import App
    from shoal.http.app.middleware import within

    return within(found, App) is not None or within(found, Starlette) is not None


async def _call_lines(
    form: Form, call_all: Callable[..., Awaitable[list[Any]]], lines: list[Any]
) -> list[Any]:
    """Calls the items of lines; returns a `LineRefused` in the place of a line that is none."""
    outcomes = [_item_of(form, line) for line in lines]
    places = [place for place, one in enumerate(outcomes) if not isinstance(one, LineRefused)]
    if places:
        found = await call_all([outcomes[place] for place in places])
        for place, outcome in zip(places, found, strict=True):
            outcomes[place] = outcome
    return outcomes


def _item_of(form: Form, line: Any) -> Any:
    if isinstance(line, bytes):
        line = line.strip()
        if not line:
            return BLANK
    try:
        return form.item(line)
    except LineRefused as refused:
        return refused


class _Job:
    """The lines of one run: read, called, and written in their order."""

    def __init__(self, arguments: Namespace, source: Input, results: ResultFiles) -> None:
        self.stopped_by: int | None = None
        self._arguments = arguments
        self._source = source
        self._results = results
        self._first = results.done
        self._began_at = time.monotonic()
        self._check_source()
        unread = None if source.total is None else source.total - self._first
        limits = [one for one in (arguments.limit, unread) if one is not None]
        self.left: int | None = min(limits, default=None)
        self._report = reporter(not arguments.quiet and self.left != 0, self.left, "run-batch")

    def _check_source(self) -> None:
        path, done = self._results.path, self._first
        if self._results.dropped_bytes and not self._arguments.overwrite:
            say(f"{path}: dropped the last line, which was not written to its end")
        if done == 0:
            return
        if self._source.total is None:
            raise CommandError(f"{path} has results, and a pipe begins again: give --overwrite")
        if self._source.total < done:
            raise CommandError(
                f"{path} has {done:,} lines, and {self._arguments.input} only "
                f"{self._source.total:,}: it is the output of another input; --overwrite drops it"
            )
        if self._source.total != done:
            say(f"{path} has {done:,} lines: going on with line {done + 1:,}")

    async def run(self, opening: Opening) -> None:
        try:
            async with ungrouped() as tasks:
                try:
                    with anyio.CancelScope() as scope:
                        tasks.start_soon(self._watch_signals, scope)
                        async with opening as (form, plan):
                            await self._work(form, plan)
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

    async def _work(self, form: Form, plan: MapPlan) -> None:
        lines: Any = self._source.lines
        if self._source.total is not None and self.left is not None:
            lines = islice(lines, self._first, self._first + self.left)
        # Results that were taken since the last write: no more than the window has.
        landed: list[Any] = []

        def write(*_: object) -> None:
            """Writes the results that are there, whenever no more are."""
            results = [(b"", None) if one is BLANK else form.written(one) for one in landed]
            landed.clear()  # also if they can't be written: to write later ones would leave a gap
            self._results.write(results)
            self._report(self._results.done - self._first, False)

        window = self._arguments.window
        outcomes = MapCall[Any](
            (lines,),
            {"window": window, "return_exceptions": True, "progress": write},
            lambda _: plan._replace(call_all=partial(_call_lines, form, plan.call_all)),
        )
        try:
            async for outcome in outcomes:
                landed.append(outcome)  # noqa: PERF401 - `write` reads it during the loop
        finally:
            write()
            self._report(self._results.done - self._first, True)

    def tell(self, output: Path) -> None:
        """Says what was done, and how to go on."""
        if self._arguments.quiet:
            return
        results, total = self._results, self._source.total
        done, took_s = results.done - self._first, time.monotonic() - self._began_at
        rate = done / max(took_s, 0.001)
        said = f"{output}: {done:,} lines in {took_s:,.1f} s, {rate:,.0f} a second"
        if self._first:
            said += f"; {results.done:,} in all"
        if results.failed:
            said += f"; {results.failed:,} failed, see {results.errors_path}"
        say(said)
        if total is not None and (rest := total - results.done):
            say(f"{rest:,} lines are left; the same command goes on with line {results.done + 1:,}")
