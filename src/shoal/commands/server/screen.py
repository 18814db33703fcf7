"""How ``shoal top`` draws a server; needs ``pip install 'shoal[client,top]'``.

Names come from the server, and some of them from others: they are never read as markup, and what a
terminal would obey is replaced.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.planning.figures import duration, percent, three_digits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType

    from shoal.commands.server.view import ServerView

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_LONGEST: Final = 32
_WIDE: Final = 125
_PIPED_WIDTH: Final = 160
_MOST_ROWS: Final = 20
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
    """What a server is shown on: a terminal, or what is written to.

    Args:
        source: The server's name or URL.

    Attributes:
        is_live: Whether it is a terminal on which a picture can be replaced by another.
    """

    def __init__(self, source: str) -> None:
        width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH
        self._console = Console(width=width, highlight=False, markup=False, emoji=False)
        self._source = source
        self._size = self._console.size
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
        """Returns the picture as text."""
        with self._console.capture() as capture:
            self._console.print(self._picture(view, Text("now")))
        return "\n".join([line.rstrip() for line in capture.get().splitlines()])

    def draw(self, view: ServerView, gone_s: float | None) -> None:
        """Draws the picture in place of the last one, within the block.

        Args:
            view: The server.
            gone_s: For how long it can't be reached, in seconds; None if it can.
        """
        status = Text("live", "green")
        if gone_s is not None:
            status = Text(f"not reachable for {gone_s:.0f} s, trying again", "bold red")
        self._live.update(self._picture(view, status), refresh=True)

    def is_resized(self) -> bool:
        """Returns whether the terminal has another size than at the last call."""
        before, self._size = self._size, self._console.size
        return before != self._size

    def _picture(self, view: ServerView, status: Text) -> RenderableType:
        width, plain = self._console.width, self._console.options.ascii_only
        return picture(view, self._source, status, width=width, plain=plain)


def picture(
    view: ServerView, source: str, status: Text, *, width: int, plain: bool
) -> RenderableType:
    """Returns what is shown.

    Args:
        view: The server.
        source: Its name or its URL.
        status: Whether it can be reached.
        width: How many columns there are; some figures are left out where there are few.
        plain: Whether only ASCII can be shown.
    """
    wide = width >= _WIDE
    head = Text.assemble(("shoal top  ", "bold"), cleaned(source, 60), "  ", status)
    parts: list[RenderableType] = [head]
    if view.state is None:
        return Group(*parts, Text("\nwaiting for the server ..."))
    parts += [_summary(view, plain=plain), Text(), _batchers(view, wide=wide)]
    parts += [Text(), _backends(view.state["backends"], wide=wide)]
    replicas = [one for backend in view.state["backends"] for one in backend["replicas"]]
    if replicas:
        parts += [Text(), _replicas(replicas)]
    if view.state["endpoints"]:
        parts += [Text(), _endpoints(view.state["endpoints"])]
    if view.state["failures"]:
        parts += [Text(), _failures(view.state["failures"])]
    if view.state["hidden"]:
        parts.append(Text(f"\n{view.state['hidden']:,} more are not shown", "dim"))
    return Group(*parts)


def cleaned(text: Any, longest: int = _LONGEST) -> str:
    """Returns a text of others as a terminal may get it: printable, and not long."""
    shown = "".join([one if one.isprintable() else "\ufffd" for one in str(text)[: longest + 1]])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _summary(view: ServerView, *, plain: bool) -> Text:
    now = view.latest.get("all")
    if now is None:
        return Text("counting ...", "dim")
    text = Text()
    text.append(_rate(now["finished"]), "bold")
    text.append(" answered a second")
    for name, style in (("failed", "red"), ("refused", "yellow"), ("left", "dim")):
        if now[name]:
            text.append(f"  {_rate(now[name])} {name}", style)
    times = "  ".join(f"{name} {_time(now[name])}" for name in ("p50", "p95", "p99"))
    text.append(f"\nlatency {times}")
    text.append(f"\n{_rate(now['batches'])} batches a second, of {three_digits(now['size'])}")
    text.append(f"; {now['queued']:,} queued, {now['running']:,} running")
    if now["streams"]:
        text.append(f", {now['streams']:,} streams open")
    if not plain:
        text.append(f"\n{_sparkline(view.rates()[-60:])}", "cyan")
    return text


def _batchers(view: ServerView, *, wide: bool) -> Table:
    columns = [(name, True) for name in (_FIGURES if wide else _FEW_FIGURES)]
    table = _table(("BATCHER", False), *columns, ("WHY", False))
    batchers: Mapping[str, Mapping[str, Any]] = view.latest.get("batchers", {})
    for name, one in _first(batchers.items(), table):
        limit, is_open = view.limits.get(name, (one["limit"], False))
        ran = bool(one["batches"])
        shown: dict[str, Text | str] = {
            "REQ/S": _rate(one["finished"]),
            "FAIL/S": Text(_rate(one["failed"]), "red" if one["failed"] else ""),
            "REFUSED/S": Text(_rate(one["refused"]), "yellow" if one["refused"] else ""),
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
        table.add_row(Text(cleaned(name)), *figures_shown, _reasons(one["reasons"]))
    return table


def _queued(one: Mapping[str, Any]) -> str:
    """Returns how many requests wait, with their numbers by level if there are several."""
    levels = [f"{cleaned(level)}:{count:,}" for level, count in one["levels"].items()]
    return f"{one['queued']:,}" + (f" ({' '.join(levels)})" if len(levels) > 1 else "")


def _backends(backends: Sequence[Mapping[str, Any]], *, wide: bool) -> Table:
    figures = ["queued", "running", "requests", "errors"]
    if wide:
        figures += ["deaths", "restarts"]
    columns = [(name.upper(), True) for name in ("ready", *figures)]
    table = _table(("BACKEND", False), ("STATE", False), *columns, ("FAILURE", False))
    for one in _first(backends, table):
        ready = sum(replica["state"] == "ready" for replica in one["replicas"])
        table.add_row(
            Text(cleaned(one["name"])),
            _state(one["state"]),
            f"{ready}/{one['wanted']}",
            *[f"{one[name]:,}" for name in figures],
            Text(cleaned(one["failure"] or "-"), "red" if one["failure"] else ""),
        )
    return table


def _replicas(replicas: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(
        ("REPLICA", False), ("STATE", False), ("RUNNING", True), ("BATCHES", True), ("MEMORY", True)
    )
    for one in _first(replicas, table):
        memory = one["memory_bytes"]
        table.add_row(
            Text(cleaned(one["name"])),
            _state(one["state"]),
            f"{one['running']:,}",
            f"{one['batches']:,}",
            "-" if memory is None else f"{memory / 2**20:,.0f} MiB",
        )
    return table


def _endpoints(endpoints: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(
        ("ENDPOINT", False),
        ("ROUTE", False),
        *[(name, True) for name in ("HELD", "REQUESTS", "ERRORS")],
        ("TRAFFIC", False),
        ("SHADOWS", False),
    )
    for one in _first(endpoints, table):
        traffic = [f"{cleaned(name)} {percent(share)}" for name, share in one["traffic"].items()]
        table.add_row(
            Text(cleaned(one["name"])),
            Text(cleaned(one["route"] or "-")),
            *[f"{one[name]:,}" for name in ("held", "requests", "errors")],
            Text(", ".join(traffic) or "held", "" if traffic else "yellow"),
            Text(", ".join(map(_shadow, one["shadows"])) or "-"),
        )
    return table


def _shadow(shadow: Mapping[str, Any]) -> str:
    text = f"{cleaned(shadow['backend'])} {percent(shadow['proportion'])}"
    compared = shadow["agreed"] + shadow["disagreed"]
    return f"{text}, {percent(shadow['agreed'] / compared)} agree" if compared else text


def _failures(failures: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(
        ("FAILED", False), ("BATCHER", False), ("REQUESTS", True), ("ERROR", False), ("IDS", False)
    )
    for one in failures[:_MOST_FAILURES]:
        ids = ", ".join(cleaned(each, 16) for each in one["ids"][:3])
        table.add_row(
            f"{duration(max(1, round(one['age_s'])))} ago",
            Text(cleaned(one["batcher"])),
            f"{one['count']:,}",
            Text(cleaned(one["error"]), "red"),
            Text(ids or "-"),
        )
    return table


def _table(*columns: tuple[str, bool]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for name, is_figure in columns:
        table.add_column(name, justify="right" if is_figure else "left", no_wrap=True)
    return table


def _first(rows: Iterable[Any], table: Table) -> Iterable[Any]:
    """Yields the first rows, and tells in the table if there are more."""
    for number, row in enumerate(rows):
        if number == _MOST_ROWS:
            table.add_row(Text("...", "dim"))
            return
        yield row


def _state(state: str) -> Text:
    return Text(cleaned(state), _STATES.get(state, ""))


def _reasons(reasons: Mapping[str, float]) -> Text:
    total = sum(reasons.values())
    ordered = sorted(reasons.items(), key=lambda one: -one[1])
    return Text(
        ", ".join(f"{cleaned(name)} {percent(rate / total)}" for name, rate in ordered) or "-"
    )


def _rate(rate: float) -> str:
    return three_digits(rate)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _sparkline(values: Sequence[float]) -> str:
    most = max(values, default=0) or 1
    return "".join([_BLOCKS[min(7, int(value / most * 8))] for value in values])
