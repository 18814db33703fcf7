"""``shoal top``: shows a running server in the terminal, as its dashboard does in a browser.

Names are from the server, and some of them from its clients: control characters are replaced.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio

from shoal.commands.server.client import add_server_arguments, ask, until_signalled
from shoal.commands.support.arguments import add, describe
from shoal.commands.support.output import CommandError, as_json, print_out, table
from shoal.errors import NotAllowed, ShutDown
from shoal.failures.exceptions import ungrouped
from shoal.planning.figures import duration, percent, three_digits

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping, Sequence

    from shoal.serving.clients.remote_client import RemoteClient

_Row: TypeAlias = dict[str, object]  # the values of a row, by the heads of their columns

_DESCRIPTION: Final = """\
Show a running server, each second: throughput, latencies, batches and their dispatch reasons,
queues, backends and the last failures. Press Ctrl-C to stop. If the output is not a terminal,
print it once. `shoal status` shows replicas and traffic.
"""

_EXAMPLE: Final = """\
  shoal top
  shoal top --name canary --once
  shoal top --url https://models.example.com --token-file token
"""

_log: Final = logging.getLogger("shoal.commands")
# How long to wait before the next attempt to reach a server.
_AGAIN_S: Final = 1.0

# The alternate screen, without a cursor and without line breaks at the right edge.
_OPEN_SCREEN: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_CLOSE_SCREEN: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_PIPED_SIZE: Final = (160, 24)
_WIDE: Final = 125
# Columns that only a wide terminal shows.
_LESS_IMPORTANT: Final = frozenset(
    {"REFUSED/S", "P95", "LIMIT", "WAIT", "RUN", "RUNNING", "DEATHS", "RESTARTS"}
)
_MOST_ROWS: Final = 20
_FEWEST_ROWS: Final = 2
_MOST_FAILURES: Final = 5
_UNLIMITED: Final = 1000


def add_arguments(parser: ArgumentParser) -> None:
    describe(parser, _run, _DESCRIPTION, _EXAMPLE)
    add(parser, "--once", "print it once, and end")
    add_server_arguments(parser)


def _run(arguments: Namespace) -> int:
    source = arguments.url or arguments.name
    view = ServerView()
    is_live = sys.stdout.isatty() and os.environ.get("TERM") not in (None, "dumb", "unknown")
    if is_live and not (arguments.json or arguments.once):
        ask(arguments, lambda client: _watch(client, view, source), waits_for=None)
        return 0
    ask(arguments, lambda client: _look_once(client, view))
    width = shutil.get_terminal_size(_PIPED_SIZE).columns
    data = {"now": view.now, **(view.state or {})}
    print_out(as_json(data) if arguments.json else picture(view, source, "now", width, None))
    return 0


async def _look_once(client: RemoteClient, view: ServerView) -> None:
    """Reads the feed until all figures are known."""
    async with client.watching() as messages:
        async for message in messages:
            _take(view, message)
            if view.state is not None and view.now:
                return
    raise CommandError("the server has ended", 1)


def _take(view: ServerView, message: dict[str, Any]) -> None:
    try:
        view.take(message)
    except (LookupError, TypeError):
        raise CommandError("the server's feed has the form of another version", 1) from None


async def _watch(client: RemoteClient, view: ServerView, source: str) -> None:
    """Shows the server; an error before its first message is raised, later ones are shown."""
    async with ungrouped() as tasks:
        tasks.start_soon(until_signalled, tasks.cancel_scope.cancel)
        try:
            with ExitStack() as screen:
                await _show(client, view, source, screen)
        finally:
            tasks.cancel_scope.cancel()


async def _show(client: RemoteClient, view: ServerView, source: str, screen: ExitStack) -> None:
    is_open = False
    gone_at: float | None = None
    while True:
        # A server that restarts refuses connections, breaks them, or is not open yet.
        try:
            async with client.watching() as messages:
                async for message in messages:
                    _take(view, message)
                    if not is_open:
                        is_open = True
                        screen.callback(_write, _CLOSE_SCREEN)
                        _write(_OPEN_SCREEN)
                    gone_at = None
                    _draw(view, source, "live")
        except (OSError, ShutDown, RuntimeError) as error:
            if not is_open or isinstance(error, NotAllowed):
                raise
            _log.debug("not reachable: %s", error)
        if not is_open:
            raise CommandError("the server has ended", 1)
        now = anyio.current_time()
        gone_at = now if gone_at is None else gone_at
        _draw(view, source, f"not reachable for {now - gone_at:.0f} s, trying again")
        await anyio.sleep(_AGAIN_S)


def _draw(view: ServerView, source: str, status: str) -> None:
    width, height = shutil.get_terminal_size(_PIPED_SIZE)
    lines = picture(view, source, status, width, height).split("\n")[:height]
    _write("\x1b[H" + "\n".join([f"{line}\x1b[K" for line in lines]) + "\x1b[J")


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        raise CommandError(f"can't write to the terminal: {error.strerror}", 1) from None


class ServerView:
    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None  # backends, endpoints and last failures
        self.now: dict[str, Any] = {}  # the figures of the last second
        # The largest batch of each batcher, and whether requests join its batches.
        self.limits: dict[str, tuple[float, bool]] = {}
        self._run: Any = None

    def take(self, message: Mapping[str, Any]) -> None:
        """Takes a message of the feed; raises `LookupError` or `TypeError` if malformed."""
        if message["run"] != self._run:  # another server
            self._run, self.state, self.now = message["run"], None, {}
        if message["samples"]:
            self.now = message["samples"][-1]
        self.limits = {lane["name"]: (lane["limit"], lane["open"]) for lane in message["lanes"]}
        self.state = message.get("state") or self.state


def picture(view: ServerView, source: str, status: str, width: int, height: int | None) -> str:
    head = f"shoal top  {_cleaned(source, 60)}  {status}"
    state = view.state
    if state is None:
        return f"{head}\n\nwaiting for the server ..."
    is_wide = width >= _WIDE
    names = 32 if is_wide else 16
    parts = [head + "\n" + (_summary(view.now["all"]) if view.now else "counting ...")]
    tables = [
        [_batcher(view, name, one, names) for name, one in view.now.get("batchers", {}).items()],
        [_backend(one, names) for one in state["backends"]],
        [_failure(one, names) for one in state["failures"][:_MOST_FAILURES]],
    ]
    ends = [] if state["backends"] else ["no backends"]
    if state["hidden"]:
        ends.append(f"{state['hidden']:,} more are not shown")
    room = (height or _UNLIMITED) - parts[0].count("\n") - 1 - 2 * len(ends)
    lines = _lines_of_tables([min(len(rows), _MOST_ROWS) for rows in tables], room)
    parts += [
        _drawn(rows, count, is_wide) for rows, count in zip(tables, lines, strict=True) if count
    ]
    text = "\n\n".join([*parts, *ends])
    most = None if height is None else width
    return "\n".join([line[:most].rstrip() for line in text.split("\n")])


def _lines_of_tables(rows: Sequence[int], room: int) -> list[int]:
    """Divides the lines of a screen among tables, the most important first."""
    # Each table needs an empty line and a head as well. A table with 0 lines is not shown.
    lines = [0] * len(rows)
    for number, count in enumerate(rows):
        fewest = min(count, _FEWEST_ROWS)
        if fewest and fewest + 2 <= room:
            lines[number] = fewest
            room -= fewest + 2
    for number, shown in enumerate(lines):
        more = min(rows[number] - shown, room) if shown else 0
        lines[number] += more
        room -= more
    return lines


def _drawn(rows: Sequence[_Row], lines: int, is_wide: bool) -> str:
    """Draws a table, with at most `lines` rows; the last shows that there are more."""
    heads = [head for head in rows[0] if is_wide or head not in _LESS_IMPORTANT]
    has_more = len(rows) > lines
    shown = [[row[head] for head in heads] for row in rows[: lines - 1 if has_more else lines]]
    return table(heads, shown) + ("\n..." if has_more else "")


def _cleaned(text: Any, longest: int) -> str:
    """Returns a text from others for a terminal: printable, and not long."""
    shown = "".join([one if one.isprintable() else "?" for one in str(text)[: longest + 1]])
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."


def _summary(now: Mapping[str, Any]) -> str:
    others = [
        f"  {three_digits(now[name])} {name}"
        for name in ("failed", "declined", "refused", "left")
        if now.get(name)  # a server of an earlier version declines nothing
    ]
    times = "  ".join([f"{name} {_time(now[name]) or '-'}" for name in ("p50", "p95", "p99")])
    size = f", of {three_digits(now['size'])}" if now["batches"] else ""
    streams = f", {now['streams']:,} streams open" if now["streams"] else ""
    return (
        f"{three_digits(now['finished'])} answered a second{''.join(others)}\nlatency {times}\n"
        f"{three_digits(now['batches'])} batches a second{size}; {now['queued']:,} queued, "
        f"{now['running']:,} running{streams}"
    )


def _batcher(view: ServerView, name: str, one: Mapping[str, Any], names: int) -> _Row:
    limit, is_open = view.limits.get(name, (one["limit"], False))
    ran = bool(one["batches"])
    levels = [f"{_cleaned(level, names)}:{count:,}" for level, count in one["levels"].items()]
    reasons = sorted(one["reasons"].items(), key=lambda reason: -reason[1])
    total = sum(one["reasons"].values())
    why = [f"{_cleaned(reason, names)} {percent(rate / total)}" for reason, rate in reasons]
    return {
        "BATCHER": _cleaned(name, names),
        "REQ/S": three_digits(one["finished"]),
        "FAIL/S": three_digits(one["failed"]),
        "REFUSED/S": three_digits(one["refused"]),
        **{percentile.upper(): _time(one[percentile]) for percentile in ("p50", "p95", "p99")},
        "BATCH": "open" if is_open else three_digits(one["size"]) if ran else None,
        "LIMIT": f"{limit:,.0f}",
        "WAIT": _time(one["wait_s"] if ran else None),
        "RUN": _time(one["run_s"] if ran else None),
        "QUEUED": f"{one['queued']:,}" + (f" ({' '.join(levels)})" if len(levels) > 1 else ""),
        "RUNNING": f"{one['running']:,}",
        "WHY": ", ".join(why) or None,
    }


def _backend(one: Mapping[str, Any], names: int) -> _Row:
    ready = sum(replica["state"] == "ready" for replica in one["replicas"])
    figures = ("queued", "running", "requests", "failed", "deaths", "restarts")
    counts = {**one, "failed": one["errors"]}
    return {
        "BACKEND": _cleaned(one["name"], names),
        "STATE": _cleaned(one["state"], names),
        "READY": f"{ready}/{one['wanted']}",
        **{name.upper(): f"{counts[name]:,}" for name in figures},
        "FAILURE": _cleaned(one["failure"] or "-", 32),
    }


def _failure(one: Mapping[str, Any], names: int) -> _Row:
    return {
        "FAILED": f"{duration(max(1, round(one['age_s'])))} ago",
        "BATCHER": _cleaned(one["batcher"], names),
        "REQUESTS": f"{one['count']:,}",
        "ERROR": _cleaned(one["error"], 32),
        "IDS": ", ".join([_cleaned(each, 16) for each in one["ids"][:3]]) or None,
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else duration(seconds)
