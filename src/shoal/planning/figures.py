"""Figures of results: percentiles, numbers as text, and plots.

Plots need ``pip install 'shoal[plot]'``.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from shoal.core.extras import needing
from shoal.core.simulation_results import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from shoal.core.simulation_results import Simulation

_MOMENTS: Final = 60
_BARS: Final = 40
_SHARES: Final = (50, 99)
_PERCENTILES: Final = (50, 90, 99, 99.9)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Returns the reported percentiles and the maximum of times; NaN values are left out."""
    ordered = sorted(value for value in values if value == value)
    if not ordered:
        return {}
    found = {f"p{percent:g}": percentile(ordered, percent) for percent in _PERCENTILES}
    return {**found, "max": ordered[-1]}


def duration(seconds: float) -> str:
    """Formats a time with three digits and a suitable unit: ``2.5 ms``."""
    if math.isnan(seconds):
        return "-"
    if seconds >= 1 or seconds == 0:
        return f"{three_digits(seconds)} s"
    if seconds >= 0.001:
        return f"{three_digits(seconds * 1e3)} ms"
    return f"{three_digits(seconds * 1e6)} µs"


def three_digits(number: float) -> str:
    """Formats a number with three digits, or with all its integer digits if it has more."""
    if math.isnan(number):
        return "-"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def percent(share: float) -> str:
    if math.isnan(share):
        return "-"
    return f"{share:.0%}" if share == 0 or share >= 0.01 else f"{share:.1%}"


def plot(simulation: Simulation, path: str | PathLike[str]) -> None:
    """Draws the latencies of requests, their course over time, and the sizes of batches.

    Args:
        simulation: The simulation to draw.
        path: Where to save the image; its suffix selects the format: ``.png``, ``.svg``.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: No request was answered, or the path's suffix is no image format.
    """
    answered = sorted(latency for latency in simulation.latency_s if latency == latency)
    if not answered:
        raise ValueError("there is nothing to draw: no request was answered")
    figure = new_figure(15)
    times, course, sizes = figure.subplots(1, 3)
    _draw_latencies(times, answered)
    _draw_course(course, simulation)
    _draw_sizes(sizes, simulation)
    figure.savefig(path, dpi=110)


def new_figure(width: float) -> Any:
    with needing("a plot", "plot"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Any) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def _draw_latencies(axes: Any, answered: Sequence[float]) -> None:
    shares = [(index + 1) / len(answered) for index in range(len(answered))]
    axes.plot([latency * 1e3 for latency in answered], shares)
    for share, style in zip(_SHARES, (":", "--"), strict=True):
        latency = percentile(answered, share)
        label = f"p{share} {duration(latency)}"
        axes.axvline(latency * 1e3, color="#444444", linestyle=style, linewidth=1, label=label)
    axes.set(xlabel="milliseconds", ylabel="share of requests answered within", ylim=(0, 1.02))
    if answered[-1] > 20 * answered[0] > 0:
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_title("Latency")
    tidy(axes)


def _draw_course(axes: Any, simulation: Simulation) -> None:
    """Draws the latencies by time of arrival. A curve that rises to the end shows overload."""
    pairs = zip(simulation.arrived_at, simulation.latency_s, strict=True)
    points = [(at, latency) for at, latency in pairs if latency == latency]
    first_at, last_at = points[0][0], points[-1][0]
    step_s = (last_at - first_at) / _MOMENTS or 1.0
    moments: list[float] = []
    drawn: dict[int, list[float]] = {share: [] for share in _SHARES}
    for moment, group in groupby(points, key=lambda point: int((point[0] - first_at) / step_s)):
        ordered = sorted(latency for _, latency in group)
        moments.append(first_at + (moment + 0.5) * step_s)
        for share in _SHARES:
            drawn[share].append(percentile(ordered, share) * 1e3)
    for share, heights in drawn.items():
        axes.plot(moments, heights, label=f"p{share}")
    axes.set(xlabel="time of arrival, seconds", ylabel="milliseconds", ylim=(0, None))
    axes.set_title("Latency over time")
    tidy(axes)


def _draw_sizes(axes: Any, simulation: Simulation) -> None:
    batches = simulation.batches
    largest = max(batch.size for batch in batches)
    width = max(1, math.ceil(largest / _BARS))
    edges = [0.5 + width * at for at in range(math.ceil(largest / width) + 1)]
    by_reason = {
        reason: [batch.size for batch in batches if batch.reason is reason]
        for reason, count in simulation.reasons.items()
        if count
    }
    axes.hist(
        list(by_reason.values()),
        edges,
        weights=[[1 / len(batches)] * len(sizes) for sizes in by_reason.values()],
        stacked=True,
        label=[f"{reason}: {len(sizes):,}" for reason, sizes in by_reason.items()],
    )
    axes.set(xlabel="size of a batch", ylabel="share of batches")
    axes.set_title(f"Batches, of {simulation.mean_batch:.3g} requests on average")
    tidy(axes)
