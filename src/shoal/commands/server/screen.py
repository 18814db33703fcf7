"""The screen of ``shoal top``; needs ``pip install 'shoal[client,top]'``.

Names are from the server, and some of them from its clients: they are never read as markup, and
control characters are replaced.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.planning.figures import duration, percent, three_digits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType


T = TypeVar("T")

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_LONGEST: Final = 32
_WIDE: Final = 125
_PIPED_WIDTH: Final = 160
_MOST_ROWS: Final = 20
_FEWEST_ROWS: Final = 2
_MOST_FAILURES: Final = 5
_FIGURES: Final = (
    *("REQ/S", "FAIL/S", "REFUSED/S", "P50", "P95", "P99", "BATCH", "LIMIT", "WAIT", "RUN"),
    *("QUEUED", "RUNNING"),
)
_FEW_FIGURES: Final = ("REQ/S", "FAIL/S", "P50", "P99", "BATCH", "QUEUED")
_STATES: Final = {
    "ready": "green",
    "starting": "yellow",
    "draining": "yellow",
    "stopping": "yellow",
    "degraded": "yellow",
    "unavailable": "red",
}


class Screen:
    """A terminal, or another output, that shows a server."""

    def __init__(self, source: str) -> None:
        width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH
        self._console = Console(width=width, highlight=False, markup=False, emoji=False)
        self._source = source
        self._size = self._console.size
        # Whether one picture can replace another.
        self.is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def printed(self, view: ServerView) -> str:
        with self._console.capture() as capture:
            self._console.print(self._picture(view, Text("now"), None))
        return "\n".join([line.rstrip() for line in capture.get().splitlines()])

    def draw(self, view: ServerView, gone_s: float | None) -> None:
        """Replaces the picture; `gone_s` is for how long the server can't be reached."""
        status = Text("live", "green")
        if gone_s is not None:
            status = Text(f"not reachable for {gone_s:.0f} s, trying again", "bold red")
        self._live.update(self._picture(view, status, self._console.height), refresh=True)

    def is_resized(self) -> bool:
        """Returns whether the terminal's size has changed since the last call."""
        before, self._size = self._size, self._console.size
        return before != self._size

    def _picture(self, view: ServerView, status: Text, height: int | None) -> RenderableType:
        width, plain = self._console.width, self._console.options.ascii_only
        return picture(view, self._source, status, width=width, height=height, plain=plain)


def picture(
    view: ServerView, source: str, status: Text, *, width: int, height: int | None, plain: bool
) -> RenderableType:
    """Returns the picture of a server; without a height it has no limit, and `plain` is ASCII."""
    wide = width >= _WIDE
    head = Text.assemble(("shoal top  ", "bold"), cleaned(source, 60), "  ", status)
    parts: list[RenderableType] = [head]
    if view.state is None:
        return Group(*parts, Text("\nwaiting for the server ..."))
    summary = _summary(view, plain=plain)
    parts.append(summary)
    tables = _tables(view, view.state, wide=wide)
    hidden = view.state["hidden"]
    taken = 1 + len(summary.split("\n")) + (2 if hidden else 0)
    room = None if height is None else height - taken
    lines = lines_of_tables([len(table.rows) for table in tables], room)
    for table, count in zip(tables, lines, strict=True):
        if count:
            parts += [Text(), _drawn(table, count)]
    if not view.state["backends"]:
        parts.append(Text("\nno backends", "dim"))
    if hidden:
        parts.append(Text(f"\n{hidden:,} more are not shown", "dim"))
    return Group(*parts)


def lines_of_tables(rows: Sequence[int], room: int | None) -> list[int]:
    """Divides the lines of a screen among tables, the most important first."""
    # Each table needs an empty line and a head as well. A table with 0 lines is not shown.
    if room is None:
        return list(rows)
    lines = [0] * len(rows)
    for number, count in enumerate(rows):
        if not count:
            continue
        fewest = min(count, _FEWEST_ROWS)
        if room < fewest + 2:
            break
        lines[number] = fewest
        room -= fewest + 2
    while room > 0:
        short = [number for number, count in enumerate(rows) if 0 < lines[number] < count]
        if not short:
            break
        for number in short[:room]:
            lines[number] += 1
        room -= len(short)
    return lines


class _Table(NamedTuple):
    columns: Sequence[tuple[str, bool]]  # the head, and whether it is a column of figures
    rows: Sequence[Sequence[Text | str]]  # at most one more than `_MOST_ROWS`


def _tables(view: ServerView, state: Mapping[str, Any], *, wide: bool) -> list[_Table]:
    """Returns the tables, the most important first, some of them empty."""
    replicas = (one for backend in state["backends"] for one in backend["replicas"])
    return [
        _batchers(view, wide=wide),
        _backends(state["backends"], wide=wide),
        _endpoints(state["endpoints"]),
        _failures(state["failures"]),
        _replicas(replicas),
    ]


def cleaned(text: Any, longest: int = _LONGEST) -> str:
    """Returns a text from others for a terminal: printable, and not long."""
    shown = "".join([one if one.isprintable() else "\ufffd" for one in str(text)[: longest + 1]])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _summary(view: ServerView, *, plain: bool) -> Text:
    now = view.latest.get("all")
    if now is None:
        return Text("counting ...", "dim")
    text = Text()
    text.append(three_digits(now["finished"]), "bold")
    text.append(" answered a second")
    for name, style in (
        ("failed", "red"),
        ("declined", "dim"),
        ("refused", "yellow"),
        ("left", "dim"),
    ):
        if rate := now.get(name):  # a server of an earlier version declines nothing
            text.append(f"  {three_digits(rate)} {name}", style)
    times = "  ".join(f"{name} {_time(now[name])}" for name in ("p50", "p95", "p99"))
    text.append(f"\nlatency {times}")
    text.append(f"\n{three_digits(now['batches'])} batches a second")
    if now["batches"]:
        text.append(f", of {three_digits(now['size'])}")
    text.append(f"; {now['queued']:,} queued, {now['running']:,} running")
    if now["streams"]:
        text.append(f", {now['streams']:,} streams open")
    if not plain:
        text.append(f"\n{_sparkline(view.rates()[-60:])}", "cyan")
    return text


def _batchers(view: ServerView, *, wide: bool) -> _Table:
    columns = [(name, True) for name in (_FIGURES if wide else _FEW_FIGURES)]
    rows: list[Sequence[Text | str]] = []
    batchers: Mapping[str, Mapping[str, Any]] = view.latest.get("batchers", {})
    for name, one in _first(batchers.items()):
        limit, is_open = view.limits.get(name, (one["limit"], False))
        ran = bool(one["batches"])
        shown: dict[str, Text | str] = {
            "REQ/S": three_digits(one["finished"]),
            "FAIL/S": Text(three_digits(one["failed"]), "red" if one["failed"] else ""),
            "REFUSED/S": Text(three_digits(one["refused"]), "yellow" if one["refused"] else ""),
            "P50": _time(one["p50"]),
            "P95": _time(one["p95"]),
            "P99": _time(one["p99"]),
            "BATCH": "open" if is_open else three_digits(one["size"]) if ran else "-",
            "LIMIT": f"{limit:,.0f}",
            "WAIT": _time(one["wait_s"] if ran else None),
            "RUN": _time(one["run_s"] if ran else None),
            "QUEUED": _queued(one),
            "RUNNING": f"{one['running']:,}",
        }
        figures_shown = [shown[figure] for figure, _ in columns]
        rows.append((cleaned(name), *figures_shown, _reasons(one["reasons"])))
    return _Table((("BATCHER", False), *columns, ("WHY", False)), rows)


def _queued(one: Mapping[str, Any]) -> str:
    """Returns the number of queued requests, with the numbers by level if there are several."""
    levels = [f"{cleaned(level)}:{count:,}" for level, count in one["levels"].items()]
    return f"{one['queued']:,}" + (f" ({' '.join(levels)})" if len(levels) > 1 else "")


def _backends(backends: Sequence[Mapping[str, Any]], *, wide: bool) -> _Table:
    figures = ["queued", "running", "requests", "errors"]
    if wide:
        figures += ["deaths", "restarts"]
    columns = [(name.upper(), True) for name in ("ready", *figures)]
    rows: list[Sequence[Text | str]] = []
    for one in _first(backends):
        ready = sum(replica["state"] == "ready" for replica in one["replicas"])
        rows.append(
            (
                cleaned(one["name"]),
                _state(one["state"]),
                f"{ready}/{one['wanted']}",
                *[f"{one[name]:,}" for name in figures],
                Text(cleaned(one["failure"] or "-"), "red" if one["failure"] else ""),
            )
        )
    return _Table((("BACKEND", False), ("STATE", False), *columns, ("FAILURE", False)), rows)


def _replicas(replicas: Iterable[Mapping[str, Any]]) -> _Table:
    figures = [(name, True) for name in ("RUNNING", "BATCHES", "MEMORY")]
    rows: list[Sequence[Text | str]] = []
    for one in _first(replicas):
        memory = one["memory_bytes"]
        rows.append(
            (
                cleaned(one["name"]),
                _state(one["state"]),
                f"{one['running']:,}",
                f"{one['batches']:,}",
                "-" if memory is None else f"{memory / 2**20:,.0f} MiB",
            )
        )
    return _Table((("REPLICA", False), ("STATE", False), *figures), rows)


def _endpoints(endpoints: Sequence[Mapping[str, Any]]) -> _Table:
    figures = [(name, True) for name in ("HELD", "REQUESTS", "ERRORS")]
    rows: list[Sequence[Text | str]] = []
    for one in _first(endpoints):
        traffic = [f"{cleaned(name)} {percent(share)}" for name, share in one["traffic"].items()]
        rows.append(
            (
                cleaned(one["name"]),
                cleaned(one["route"] or "-"),
                *[f"{one[name]:,}" for name in ("held", "requests", "errors")],
                Text(", ".join(traffic) or "held", "" if traffic else "yellow"),
                ", ".join(map(_shadow, one["shadows"])) or "-",
            )
        )
    columns = ("ENDPOINT", False), ("ROUTE", False), *figures
    return _Table((*columns, ("TRAFFIC", False), ("SHADOWS", False)), rows)


def _shadow(shadow: Mapping[str, Any]) -> str:
    text = f"{cleaned(shadow['backend'])} {percent(shadow['proportion'])}"
    compared = shadow["agreed"] + shadow["disagreed"]
    return f"{text}, {percent(shadow['agreed'] / compared)} agree" if compared else text


def _failures(failures: Sequence[Mapping[str, Any]]) -> _Table:
    rows: list[Sequence[Text | str]] = []
    for one in failures[:_MOST_FAILURES]:
        ids = ", ".join(cleaned(each, 16) for each in one["ids"][:3])
        rows.append(
            (
                f"{duration(max(1, round(one['age_s'])))} ago",
                cleaned(one["batcher"]),
                f"{one['count']:,}",
                Text(cleaned(one["error"]), "red"),
                ids or "-",
            )
        )
    columns = ("FAILED", False), ("BATCHER", False), ("REQUESTS", True)
    return _Table((*columns, ("ERROR", False), ("IDS", False)), rows)


def _first(rows: Iterable[T]) -> Iterable[T]:
    return islice(rows, _MOST_ROWS + 1)


def _drawn(table: _Table, lines: int) -> Table:
    """Draws a table, with at most `lines` rows; the last shows that there are more."""
    drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for name, is_figure in table.columns:
        # On a narrow terminal names become shorter, and figures stay whole.
        drawn.add_column(_whole(name), justify="right" if is_figure else "left", no_wrap=is_figure)
    has_more = len(table.rows) > min(lines, _MOST_ROWS)
    for row in table.rows[: lines - 1 if has_more else lines]:
        drawn.add_row(*map(_whole, row))
    if has_more:
        drawn.add_row(Text("...", "dim"))
    return drawn


def _whole(entry: Text | str) -> Text:
    """Returns an entry that takes one line."""
    shown = entry if isinstance(entry, Text) else Text(entry)
    shown.no_wrap, shown.overflow = True, "ellipsis"
    return shown


def _state(state: str) -> Text:
    return Text(cleaned(state), _STATES.get(state, ""))


def _reasons(reasons: Mapping[str, float]) -> Text:
    total = sum(reasons.values())
    ordered = sorted(reasons.items(), key=lambda one: -one[1])
    return Text(
        ", ".join(f"{cleaned(name)} {percent(rate / total)}" for name, rate in ordered) or "-"
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _sparkline(values: Sequence[float]) -> str:
    most = max(values, default=0) or 1
    return "".join([_BLOCKS[min(7, int(value / most * 8))] for value in values])


MOST_SAMPLES: Final = 120

_NOTHING: Final[Mapping[str, Any]] = {}


class ServerView:
    """A server as its last messages describe it."""

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None  # backends, endpoints and last failures
        self.samples: deque[dict[str, Any]] = deque(maxlen=MOST_SAMPLES)  # of seconds
        # The largest batch of each batcher, and whether requests join its batches.
        self.limits: dict[str, tuple[float, bool]] = {}
        self._run: Any = None

    def take(self, message: Mapping[str, Any]) -> bool:
        """Returns whether a message has news; raises `LookupError` or `TypeError` if malformed."""
        if message["run"] != self._run:  # another server, with another clock and other numbers
            self._run = message["run"]
            self.state = None
            self.samples.clear()
        samples = message["samples"]
        self.samples.extend(samples)
        self.limits = {lane["name"]: (lane["limit"], lane["open"]) for lane in message["lanes"]}
        state = message.get("state")
        if state is not None:
            self.state = state
        return bool(samples) or state is not None

    @property
    def is_complete(self) -> bool:
        return self.state is not None and bool(self.samples)

    @property
    def latest(self) -> Mapping[str, Any]:
        return self.samples[-1] if self.samples else _NOTHING

    def rates(self) -> list[float]:
        """Returns how many requests were answered in each of the last seconds."""
        return [sample["all"]["finished"] for sample in self.samples]
