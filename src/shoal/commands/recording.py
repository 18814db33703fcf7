"""``shoal trace`` and ``shoal why``: record the arrivals at a running server, or look into them.

The first writes a file for ``shoal simulate``. The second says why batches have the size they have.
"""

from __future__ import annotations

import json
import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import anyio
from anyio import TASK_STATUS_IGNORED

from shoal.commands.server.client import add_server_arguments, ask
from shoal.commands.support.arguments import add, count, describe, more_than_0_seconds, tag
from shoal.commands.support.output import CommandError, in_one_line, say, show
from shoal.failures.exceptions import ungrouped
from shoal.planning.batch_sizes import PAGE, BatcherFigures, explain
from shoal.planning.figures import duration, percent, three_digits
from shoal.planning.traces import TraceReader
from shoal.serving.names import not_there

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Collection

    from anyio.abc import TaskStatus

    from shoal.serving.clients.remote_client import RemoteClient
    from shoal.status import Status

_TRACE_DESCRIPTION: Final = """\
Record when requests arrive at a running server, with their costs, priorities and deadlines, and how
long its batches run, in a file that `shoal simulate` reads. It records timings only, never
payloads, and hashes bucket keys.
"""

_TRACE_EXAMPLE: Final = """\
  shoal trace --seconds 600 -o trace.jsonl
  shoal trace --backend small -o small.jsonl --url https://models.example.com --token-file token

  It needs the admin API: of shoal start, or of shoal serve --admin-socket or --token-file.
"""

_RECORD: Final = b'"record":"'


def add_trace_arguments(parser: ArgumentParser) -> None:
    describe(parser, _trace, _TRACE_DESCRIPTION, _TRACE_EXAMPLE)
    limit = "for how long, at most a day; Ctrl-C stops it sooner"
    add(parser, "--seconds SECONDS", limit, more_than_0_seconds, 60.0)
    add(parser, "-o --output FILE", "the file, which must not exist", Path, Path("trace.jsonl"))
    add(parser, "--backend TAG", "record this backend only; by default all", tag)
    add(parser, "--max-requests N", "end after N requests (1,000,000)", count)
    add_server_arguments(parser)


def _trace(arguments: Namespace) -> int:
    path: Path = arguments.output
    if path.exists():
        raise CommandError(f"{path} exists; name another file with -o, or delete it")
    recorded = Recorded(path)
    try:
        ask(
            arguments,
            lambda client: _record(client, arguments, recorded),
            waits_for=f"the requests of {duration(arguments.seconds)}; Ctrl-C stops sooner",
        )
    except CommandError as error:
        if recorded.file is None:
            raise
        recorded.failure = in_one_line(error)
    if recorded.failure is None and not recorded.is_complete:
        recorded.failure = "the server has ended"
    if recorded.failure is not None:
        say(f"shoal: {recorded.failure}")
    show(arguments, recorded.as_data(), recorded.as_text())
    return 0 if recorded.failure is None else 1


class Recorded:
    """The recording so far, and its file, which is created with the first line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: BinaryIO | None = None
        self.failure: str | None = None  # why the recording ended early, if not by the user
        self._last: dict[str, Any] = {}

    @property
    def is_complete(self) -> bool:
        return self._last.get("why") in ("time", "full", "interrupted")

    def add(self, line: bytes) -> None:
        """Writes a line, unless it reports progress."""
        assert self.file is not None
        if line.find(_RECORD) >= 0:  # not a line about a request
            try:
                note = json.loads(line)
                kind = note["record"]
            except (ValueError, LookupError, TypeError):
                raise CommandError("the server did not send a trace", 1) from None
            if kind in ("progress", "end"):
                self._last = note
            if kind == "progress":
                return
        self.file.write(line + b"\n")

    def interrupt(self) -> None:
        self._last = {**self._last, "record": "end", "why": "interrupted"}
        self.add(json.dumps(self._last, separators=(",", ":")).encode())

    def as_data(self) -> dict[str, Any]:
        names = ("at", "requests", "lost", "unfinished", "why")
        return {
            "file": None if self.file is None else str(self.path),
            **{name: self._last[name] for name in names if name in self._last},
        }

    def as_text(self) -> str:
        if self.file is None:
            return "nothing was recorded"
        last = self._last
        text = f"recorded {last.get('requests', 0):,} requests in {last.get('at', 0):.4g} s"
        if last.get("lost"):
            text += f"; {last['lost']:,} were left out, since there were too many in a second"
        if last.get("unfinished"):
            text += f"; {last['unfinished']:,} had not ended"
        return f"{text}\n{self.path}"


async def _record(client: RemoteClient, arguments: Namespace, recorded: Recorded) -> None:
    async with ungrouped() as tasks:
        await tasks.start(_until_signalled, tasks.cancel_scope.cancel)
        try:
            async with client.recording(
                arguments.seconds,
                backend=arguments.backend,
                most_requests=arguments.max_requests,
            ) as lines:
                first = await anext(lines, None)
                if first is not None:
                    with recorded.path.open("xb") as recorded.file:
                        recorded.add(first)
                        try:
                            async for line in lines:
                                recorded.add(line)
                        except anyio.get_cancelled_exc_class():
                            recorded.interrupt()
                            raise
        except (ConnectionError, TimeoutError):  # of the server
            raise
        except OSError as error:
            raise CommandError(f"can't write {recorded.path}: {error.strerror}", 1) from None
        finally:
            tasks.cancel_scope.cancel()


async def _until_signalled(
    end: Callable[[], object], *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED
) -> None:
    """Calls a function at the first Ctrl-C or SIGTERM."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            end()
            return


_WHY_DESCRIPTION: Final = f"""\
Watch a running server for some seconds, and say why its batches are as small as they are: what it
found, in numbers, and what to change. It reads times and options only, never payloads.
The page {PAGE!r} explains each finding.
"""

_WHY_EXAMPLE: Final = """\
  shoal why classify --seconds 60
  shoal why --url https://models.example.com --token-file token

  It needs the admin API, as `shoal trace` does.
"""


def add_why_arguments(parser: ArgumentParser) -> None:
    describe(parser, _why, _WHY_DESCRIPTION, _WHY_EXAMPLE)
    target = "look at this backend, or at those of this endpoint (all backends)"
    add(parser, "target ENDPOINT|BACKEND", target, nargs="?")
    add(parser, "--seconds SECONDS", "for how long to watch", more_than_0_seconds, 10.0)
    add_server_arguments(parser)


def _why(arguments: Namespace) -> int:
    found = ask(
        arguments,
        lambda client: _watch(client, arguments),
        waits_for=f"the requests of {duration(arguments.seconds)}",
    )
    data = [_as_data(name, figures) for name, figures in found.items()]
    text = "\n\n".join([_as_text(name, figures) for name, figures in found.items()])
    return show(arguments, data, text or "no backends")


async def _watch(client: RemoteClient, arguments: Namespace) -> dict[str, BatcherFigures]:
    tags = _backends_of(await client.status(), arguments.target)
    only = next(iter(tags)) if len(tags) == 1 else None
    reader = TraceReader()
    async with client.recording(arguments.seconds, backend=only) as lines:
        async for line in lines:
            reader.add("the recording", json.loads(line))
    if reader.ended_at is None:
        raise CommandError("the server has ended", 1)
    return {
        name: BatcherFigures(one, reader.arrivals[name], reader.ended_at)
        for name, one in reader.batchers.items()
        if name.partition("/")[0] in tags and one.options
    }


def _backends_of(status: Status, target: str | None) -> Collection[str]:
    if target is None or target in status.backends:
        return status.backends if target is None else (target,)
    if target not in status.endpoints:
        known = {**status.endpoints, **status.backends}
        raise CommandError(not_there("endpoint or backend", target, known), 1)
    return status.endpoints[target].traffic


def _as_data(name: str, figures: BatcherFigures) -> dict[str, Any]:
    return {
        "batcher": name,
        "seconds": figures.seconds,
        "requests": figures.requests,
        "batches": figures.batches,
        "mean_batch": figures.mean_size if figures.batches else None,
        "max_batch_size": figures.most,
        "reasons": {str(reason): count for reason, count in figures.reasons.items()},
        "findings": [
            {**asdict(one), "symptom": one.symptom, "more": one.more} for one in explain(figures)
        ],
    }


def _as_text(name: str, figures: BatcherFigures) -> str:
    reasons = ", ".join(
        f"{reason} {percent(count / figures.batches)}"
        for reason, count in sorted(figures.reasons.items(), key=lambda one: -one[1])
    )
    head = (
        f"{name}: {three_digits(figures.mean_size)} requests a batch, at most "
        f"{figures.options['max_batch_size']:,}\n"
        f"{figures.requests:,} requests in {figures.batches:,} batches in "
        f"{duration(figures.seconds)}{f'; dispatched because {reasons}' if reasons else ''}"
    )
    return "\n\n".join(
        [
            head,
            *(
                f"- {one.symptom}\n  evidence  {one.evidence}\n  change    {one.change}\n"
                f"  more      {one.more}"
                for one in explain(figures)
            ),
        ]
    )
