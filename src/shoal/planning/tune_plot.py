"""Why `shoal tune` names the options that it names: run times by size, and what waiting does."""

from __future__ import annotations

from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any

from shoal.planning.plots import new_figure, tidy
from shoal.planning.tables import duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shoal.planning.measuring import Measured
    from shoal.planning.tuning import Candidate, Search


def plot_tuning(
    measured: Measured, search: Search, candidates: Sequence[Candidate], path: Path
) -> None:
    """Draws the run times with their fit, and the p99 of all candidates with the target.

    Args:
        measured: The run times.
        search: What was looked for.
        candidates: What was found, the best first.
        path: Where to save the image.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: The path's ending is of no kind of image.
    """
    figure = new_figure(11)
    times, found = figure.subplots(1, 2)
    _draw_run_times(times, measured)
    _draw_candidates(found, search, candidates)
    figure.savefig(path, dpi=110)


def _draw_run_times(axes: Any, measured: Measured) -> None:
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
    tidy(axes)


def _draw_candidates(axes: Any, search: Search, candidates: Sequence[Candidate]) -> None:
    """Draws a line for each size; one that is cut off at the top falls behind."""
    target_ms = search.p99_s * 1e3
    top_ms = target_ms * 10
    by_size = sorted(candidates, key=lambda one: (one.max_batch_size, one.batch_wait_timeout_s))
    for size, group in groupby(by_size, key=lambda one: one.max_batch_size):
        line = list(group)
        axes.plot(
            [one.batch_wait_timeout_s * 1e3 for one in line],
            [min(one.p99_s * 1e3, top_ms) for one in line],
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
    tidy(axes)
