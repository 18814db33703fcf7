"""Reports of all benchmarks: the environment, a table, one sentence, JSON, and a plot."""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Panel:
    """One bar chart.

    Attributes:
        title: The title.
        unit: The label of the vertical axis.
        groups: The names of the groups of bars.
        series: The heights of the bars by name of the series, one per group; None for no bar.
        target: The height of the line that shows the target; None for no line.
        logarithmic: Whether the vertical axis is logarithmic.
    """

    title: str
    unit: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    target: float | None = None
    logarithmic: bool = False


@dataclass
class Report:
    """The results of one benchmark.

    Attributes:
        name: The benchmark's name, which its files get.
        json_path: Where to save the results; the plot is saved beside it.
        packages: The packages whose versions the results depend on.
        rows: The results, in the form that is saved.
    """

    name: str
    json_path: Path
    packages: Sequence[str]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def print_environment(self) -> None:
        """Prints the environment of the measurement."""
        print(f"== {self.name}")
        for key, value in environment(self.packages).items():
            print(f"{key:10} {value}")
        print()

    def finish(self, sentence: str, panels: Sequence[Panel]) -> None:
        """Prints the result in one sentence, and saves and plots the results."""
        print(f"\nResult: {sentence}")
        self.json_path.parent.mkdir(parents=True, exist_ok=True)
        saved = {
            "benchmark": self.name,
            "environment": environment(self.packages),
            "rows": self.rows,
            "read_from_it": sentence,
        }
        self.json_path.write_text(json.dumps(saved, indent=2) + "\n")
        plot_path = self.json_path.with_suffix(".png")
        plot(plot_path, panels)
        print(f"Saved {self.json_path} and {plot_path}")


def parser(description: str, name: str) -> argparse.ArgumentParser:
    """Returns a parser with the options that all benchmarks have."""
    made = argparse.ArgumentParser(prog=f"benchmarks/{name}.py", description=description)
    made.add_argument("--quick", action="store_true", help="few and short rounds, for a first look")
    made.add_argument(
        "--json",
        metavar="PATH",
        type=Path,
        default=RESULTS / f"{name}.json",
        help="where to save the results; the plot is saved beside it (%(default)s)",
    )
    return made


def environment(packages: Sequence[str]) -> dict[str, str]:
    """Returns the environment of the measurement."""
    implementation = platform.python_implementation()
    # The cores that this process may use, if the platform reports them.
    affinity = getattr(os, "sched_getaffinity", None)
    cores = os.cpu_count() if affinity is None else len(affinity(0))
    return {
        "date": f"{date.today()}",
        "python": f"{implementation} {platform.python_version()}",
        "platform": platform.platform(),
        "cores": str(cores),
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "versions": ", ".join(f"{package} {version(package)}" for package in packages),
    }


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table with the first column aligned left and the others aligned right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, ["-" * width for width in widths], *rows):
        texts = [text.rjust(width) for text, width in zip(row, widths, strict=True)]
        texts[0] = row[0].ljust(widths[0])
        print("  ".join(texts))


def verdict(value: float, *, at_most: float | None = None, at_least: float | None = None) -> str:
    """Returns the target and whether it was met."""
    if at_most is not None:
        return f"<= {at_most:g} {'met' if value <= at_most else 'MISSED'}"
    if at_least is not None:
        return f">= {at_least:g} {'met' if value >= at_least else 'MISSED'}"
    return "-"


def plot(path: Path, panels: Sequence[Panel]) -> None:
    """Draws the panels side by side into an image."""
    # Imported here, so that no plotting library is in memory during a measurement.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bars = max(len(panel.groups) * len(panel.series) for panel in panels)
    size = (max(4.5, 1 + 0.5 * bars) * len(panels), 4.5)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        width = 0.8 / len(panel.series)
        for nth, (label, heights) in enumerate(panel.series.items()):
            drawn = [(at, height) for at, height in enumerate(heights) if height is not None]
            drawn_bars = axes.bar(
                [at + (nth - (len(panel.series) - 1) / 2) * width for at, _ in drawn],
                [height for _, height in drawn],
                width,
                label=label,
            )
            axes.bar_label(drawn_bars, [_short(height) for _, height in drawn], fontsize=7)
        if panel.target is not None:
            axes.axhline(panel.target, color="black", linestyle=":", label="target")
        if panel.logarithmic:
            axes.set_yscale("log")
        axes.set_title(panel.title)
        axes.set_ylabel(panel.unit)
        axes.set_xticks(range(len(panel.groups)), panel.groups, fontsize=8)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def _short(height: float) -> str:
    return f"{height:,.0f}" if height >= 100 else f"{height:.3g}"
