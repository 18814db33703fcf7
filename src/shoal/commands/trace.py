"""``shoal trace``: records the arrivals at a running server in a file for ``shoal simulate``."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import anyio
from anyio import TASK_STATUS_IGNORED

from shoal.commands.server.client import add_server_arguments, ask
from shoal.commands.support.arguments import add, count, describe, more_than_0_seconds, tag
from shoal.commands.support.output import CommandError, in_one_line, say, show
from shoal.failures.exceptions import ungrouped

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from anyio.abc import TaskStatus

    from shoal.serving.clients.remote_client import RemoteClient

_DESCRIPTION: Final = """\
Record when requests arrive at a running server, with their costs, priorities and deadlines, and how
long its batches run, in a file that `shoal simulate` reads. It records timings only, never
payloads, and hashes bucket keys.
"""

_EXAMPLE: Final = """\
  shoal trace --seconds 600 -o trace.jsonl
  shoal simulate trace.jsonl --option max_batch_size=64

  shoal trace --backend small -o small.jsonl --url https://models.example.com --token-file token

  At a server that was not started with `shoal start`, it needs the admin API: serve with
  --admin-socket PATH, and trace with --url unix:PATH; or with --token-file, at both.
"""

_RECORD: Final = b'"record":"'
# How often progress is shown where stderr is no terminal.
_OTHER_PROGRESS_S: Final = 60.0


def add_arguments(parser: ArgumentParser) -> None:
    describe(parser, _run, _DESCRIPTION, _EXAMPLE)
    add(
        parser,
        "--seconds SECONDS",
        "for how long, at most a day; Ctrl-C stops it sooner",
        more_than_0_seconds,
        60.0,
    )
    add(parser, "-o --output FILE", "the file, which must not exist", Path, Path("trace.jsonl"))
    add(parser, "--backend TAG", "record this backend only; by default all", tag)
    add(
        parser,
        "--max-requests N",
        "end after N requests (1,000,000); each takes about 60 bytes",
        count,
    )
    add(parser, "--max-rate N", "drop requests above N in one second (20,000)", count)
    add_server_arguments(parser)


def _run(arguments: Namespace) -> int:
    path: Path = arguments.output
    if path.exists():
        raise CommandError(f"{path} exists; name another file with -o, or delete it")
    recorded = Recorded(path)
    try:
        ask(arguments, lambda client: _record(client, arguments, recorded))
    except CommandError as error:
        if not recorded.has_begun:
            raise
        recorded.failure = in_one_line(error)
    finally:
        recorded.close()
    if recorded.failure is None and not recorded.is_complete:
        recorded.failure = "the server has ended"
    if recorded.failure is not None:
        say(f"shoal: {recorded.failure}")
    show(arguments, recorded.as_data(), recorded.as_text())
    return 0 if recorded.failure is None else 1


class Recorded:
    """The recording so far, and its file, which is created with the first line."""

    def __init__(self, path: Path) -> None:
        self.has_begun = False
        self.failure: str | None = None  # why the recording ended early, if not by the user
        self._path = path
        self._file: BinaryIO | None = None
        self._last: dict[str, Any] = {}
        self._shown_at = 0.0

    @property
    def is_complete(self) -> bool:
        return self._last.get("why") in ("time", "full", "interrupted")

    def add(self, line: bytes) -> None:
        """Writes a line, unless it reports progress."""
        if line.find(_RECORD) >= 0:  # not a line about a request
            try:
                note = json.loads(line)
                kind = note["record"]
            except (ValueError, LookupError, TypeError):
                raise CommandError("the server did not send a trace", 1) from None
            if kind in ("progress", "end"):
                self._last = note
            if kind == "progress":
                self._show_progress()
                return
        try:
            if self._file is None:
                self._file = self._path.open("xb")
                self.has_begun = True
            self._file.write(line + b"\n")
        except OSError as error:
            raise CommandError(self._cant_write(error), 1) from None

    def interrupt(self) -> None:
        if self._file is not None:
            self._last = {**self._last, "record": "end", "why": "interrupted"}
            self.add(json.dumps(self._last, separators=(",", ":")).encode())

    def close(self) -> None:
        """Closes the file; sets `failure` if it could not be written."""
        if self._shown_at and sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:  # of buffered lines
                self.failure = self.failure or self._cant_write(error)

    def _cant_write(self, error: OSError) -> str:
        return f"can't write {self._path}: {error.strerror}"

    def as_data(self) -> dict[str, Any]:
        names = ("at", "requests", "lost", "unfinished", "why")
        return {
            "file": str(self._path) if self.has_begun else None,
            **{name: self._last[name] for name in names if name in self._last},
        }

    def as_text(self) -> str:
        if not self.has_begun:
            return "nothing was recorded"
        last = self._last
        text = f"recorded {last.get('requests', 0):,} requests in {last.get('at', 0):.4g} s"
        if last.get("lost"):
            text += f"; {last['lost']:,} were left out, since there were too many in a second"
        if last.get("unfinished"):
            text += f"; {last['unfinished']:,} had not ended"
        return f"{text}\n{self._path}"

    def _show_progress(self) -> None:
        at, requests = self._last["at"], self._last["requests"]
        line = f"{at:.0f} s: {requests:,} requests"
        if self._last["lost"]:
            line += f", {self._last['lost']:,} left out"
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
            self._shown_at = at
        elif at >= self._shown_at + _OTHER_PROGRESS_S:
            self._shown_at = at
            say(line)


async def _record(client: RemoteClient, arguments: Namespace, recorded: Recorded) -> None:
    async with ungrouped() as tasks:

        def interrupt() -> None:
            recorded.interrupt()
            tasks.cancel_scope.cancel()

        await tasks.start(_until_signalled, interrupt)
        try:
            async with client.recording(
                arguments.seconds,
                backend=arguments.backend,
                most_requests=arguments.max_requests,
                most_a_second=arguments.max_rate,
            ) as lines:
                async for line in lines:
                    recorded.add(line)
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
