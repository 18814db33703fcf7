"""Plots of simulations and measurements. They need ``pip install 'shoal[plot]'``.

The plot of ``shoal tune`` shows run times by size, and the p99 by waiting time.
"""

from __future__ import annotations

import math
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from shoal.core.extras import needing
from shoal.planning.figures import duration, percentile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from pathlib import Path

    from shoal.core.simulation_results import Simulation
    from shoal.planning.recordings import MeasuredRunTimes
    from shoal.planning.tuning import Candidate, Search

_MOMENTS: Final = 60
_BARS: Final = 40
_SHARES: Final = (50, 99)


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
    figure = _new_figure(15)
    times, course, sizes = figure.subplots(1, 3)
    _draw_latencies(times, answered)
    _draw_course(course, simulation)
    _draw_sizes(sizes, simulation)
    figure.savefig(path, dpi=110)


def _new_figure(width: float) -> Any:
    with needing("a plot", "plot"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _tidy(axes: Any) -> None:
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
    _tidy(axes)


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
    _tidy(axes)


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
    _tidy(axes)


def plot_tuning(
    measured: MeasuredRunTimes, search: Search, candidates: Sequence[Candidate], path: Path
) -> None:
    """Draws the run times with their fit, and the p99 of all candidates with the target."""
    figure = _new_figure(11)
    times, found = figure.subplots(1, 2)
    _draw_run_times(times, measured)
    _draw_candidates(found, search, candidates)
    figure.savefig(path, dpi=110)


def _draw_run_times(axes: Any, measured: MeasuredRunTimes) -> None:
    sizes = list(measured.runs_s)
    for size, runs_s in measured.runs_s.items():
        label = "runs" if size == sizes[0] else None
        heights = [run_s * 1e3 for run_s in runs_s]
        axes.plot([size] * len(runs_s), heights, ".", color="#0f7c8a", alpha=0.3, label=label)
    usual_ms = [median(runs_s) * 1e3 for runs_s in measured.runs_s.values()]
    axes.plot(sizes, usual_ms, "_", color="#0f7c8a", markersize=14, label="median")
    fit = f"{duration(measured.fixed_s)} + {duration(measured.per_item_s)} an item"
    line_ms = [(measured.fixed_s + measured.per_item_s * size) * 1e3 for size in sizes]
    axes.plot(sizes, line_ms, color="#d9843b", label=fit)
    axes.set(xlabel="size of a batch", ylabel="milliseconds", ylim=(0, None))
    axes.set_title("Run time of the handler")
    _tidy(axes)


def _draw_candidates(axes: Any, search: Search, candidates: Sequence[Candidate]) -> None:
    """Draws a curve for each size. Values above 10 times the target are cut off."""
    target_ms = search.p99_s * 1e3
    top_ms = target_ms * 10
    by_size = sorted(candidates, key=lambda one: (one.max_batch_size, one.batch_wait_timeout_s))
    for size, group in groupby(by_size, key=lambda one: one.max_batch_size):
        curve = list(group)
        axes.plot(
            [one.batch_wait_timeout_s * 1e3 for one in curve],
            [min(one.p99_s * 1e3, top_ms) for one in curve],
            ".-",
            label=f"{size}",
        )
    axes.axhline(target_ms, color="black", linestyle=":", label="target")
    if (best := candidates[0]).meets_target:
        point = best.batch_wait_timeout_s * 1e3, best.p99_s * 1e3
        label = f"best: {best.max_batch_size}, {duration(best.batch_wait_timeout_s)}"
        axes.plot(*point, "*", color="#b8405e", markersize=14, label=label)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, min(high, top_ms))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="batch_wait_timeout_s, milliseconds", ylabel="p99, milliseconds")
    axes.set_title(f"p99 by max_batch_size at {search.rate:,g} requests a second")
    _tidy(axes)
