"""The figures that http.py prints: medians of the rounds, and ratios within a round."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.report import Panel, print_table, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Figures = dict[str, float]
"""What one round of one server has measured, by name."""

# By its name: what a figure is called in a table, and its format.
COLUMNS: Final[Mapping[str, tuple[str, str]]] = {
    "rate": ("requests/s", ",.0f"),
    "token_rate": ("tokens/s", ",.0f"),
    "cpu_us": ("CPU us each", ",.1f"),
    "p50_ms": ("p50 ms", ".2f"),
    "p99_ms": ("p99 ms", ".2f"),
    "first_p50_ms": ("first p50 ms", ".1f"),
    "first_p99_ms": ("first p99 ms", ".1f"),
    "whole_p50_ms": ("whole p50 ms", ".0f"),
    "mean_batch": ("mean batch", ".1f"),
    "failures": ("failures", ",.0f"),
    "bytes": ("bytes each", ",.0f"),
    "switches": ("switches", ",.0f"),
    "switches_alone": ("without", ",.0f"),
    "more_switches": ("switches more", ",.0f"),
    "p99_alone_ms": ("without", ".2f"),
    "p99_ratio": ("p99 ratio", ".2f"),
    "start_ms": ("ms", ".0f"),
    "start_cpu_ms": ("CPU ms", ".0f"),
}
_RATES: Final = ("rate", "token_rate")


@dataclass(frozen=True)
class Target:
    """A figure that is compared: with another server's in the same round, or with a number.

    Attributes:
        figure: The name of the figure.
        ours: The name of the server.
        other: The name of the other server; None to compare with a number.
        at_most: The largest value that meets the target; None for no limit.
        at_least: The smallest value that meets the target; None for no limit.
    """

    figure: str
    ours: str
    other: str | None = None
    at_most: float | None = None
    at_least: float | None = None

    def __str__(self) -> str:
        what = f"{COLUMNS[self.figure][0]} of {self.ours}"
        return what if self.other is None else f"{what} / {self.other}"


@dataclass
class Table:
    """The figures of some servers under one load.

    Attributes:
        title: The load.
        columns: The names of the figures.
        targets: What is compared.
        chart: The name of the figure that is drawn.
        rounds: The figures of each round by server.
    """

    title: str
    columns: Sequence[str]
    targets: Sequence[Target]
    chart: str
    rounds: Mapping[str, Sequence[Figures]]

    def print(self) -> None:
        """Prints the medians, then the ratios."""
        heads, formats = zip(*(COLUMNS[name] for name in self.columns), strict=True)
        print_table(
            [self.title, *heads],
            [[server, *map(format, self._figures(server), formats)] for server in self.rounds],
        )
        print()
        print_table(
            ["compared", "value", "by CPU time", "target"],
            [
                [str(target), _shown(value), _shown(self._by_cpu(target)), text]
                for target, value, text in self._verdicts()
            ],
        )
        print()

    def value(self, target: Target) -> float | None:
        """Returns the value to compare with a target; None if a server was not measured."""
        ours = self.rounds.get(target.ours)
        other = None if target.other is None else self.rounds.get(target.other)
        if ours is None or (other is None and target.other is not None):
            return None
        if other is None:
            return self._figure(target.ours, target.figure)
        return median(
            mine[target.figure] / its[target.figure] for mine, its in zip(ours, other, strict=True)
        )

    def missed(self) -> list[str]:
        """Returns the targets that were missed."""
        return [
            f"{self.title}: {target} is {_shown(value)}, not {text.removesuffix(' MISSED')}"
            for target, value, text in self._verdicts()
            if text.endswith("MISSED")
        ]

    def met(self) -> int:
        """Returns how many targets were met."""
        return sum(text.endswith("met") for _, _, text in self._verdicts())

    def rows(self) -> list[dict[str, Any]]:
        """Returns what is saved."""
        medians: list[dict[str, Any]] = [
            {"load": self.title, "server": server}
            | dict(zip(self.columns, self._figures(server), strict=True))
            for server in self.rounds
        ]
        ratios: list[dict[str, Any]] = [
            {
                "load": self.title,
                "compared": str(target),
                "value": value,
                "by_cpu_time": self._by_cpu(target),
                "verdict": text,
            }
            for target, value, text in self._verdicts()
        ]
        return medians + ratios

    def panel(self) -> Panel:
        """Returns a chart."""
        head = COLUMNS[self.chart][0]
        names = list(self.rounds)
        # A word a line, so that neighbours do not overlap.
        groups = [name.replace(" ", "\n") for name in names]
        return Panel(
            self.title, head, groups, {head: [self._figure(name, self.chart) for name in names]}
        )

    def _verdicts(self) -> list[tuple[Target, float | None, str]]:
        values = [(target, self.value(target)) for target in self.targets]
        return [(target, value, _verdict(target, value)) for target, value in values]

    def _figures(self, server: str) -> list[float]:
        return [self._figure(server, name) for name in self.columns]

    def _figure(self, server: str, name: str) -> float:
        found = [figures[name] for figures in self.rounds[server]]
        return sum(found) if name == "failures" else median(found)

    def _by_cpu(self, target: Target) -> float | None:
        """Returns the ratio of rates if the CPU time of the servers were the only limit."""
        if target.figure not in _RATES or target.other is None:
            return None
        return self.value(Target("cpu_us", target.other, target.ours))


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _verdict(target: Target, value: float | None) -> str:
    if value is None:
        return "not measured"
    return verdict(value, at_most=target.at_most, at_least=target.at_least)
