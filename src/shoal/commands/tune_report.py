"""What to read from a search for options, as text for people and as data for programs."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from shoal.commands.support.option_values import written
from shoal.planning.report import percentiles
from shoal.planning.tables import duration, percent, table, three_digits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.planning.measuring import Measured
    from shoal.planning.tuning import Candidate, Search

_SHOWN: Final = 10


def tuned_as_text(measured: Measured, search: Search, candidates: Sequence[Candidate]) -> str:
    """Returns what was found, as tables and sentences.

    Args:
        measured: The run times.
        search: What was looked for.
        candidates: What was found, the best first.
    """
    parts = [_run_times(measured)]
    fitting = [candidate for candidate in candidates if candidate.meets_target]
    asked = f"{search.rate:,g} requests a second, 99% of them within {duration(search.p99_s)}"
    if not fitting:
        parts.append(f"{asked}: none of {len(candidates)} pairs of options does it.")
        parts.append(_why_not(measured, search, candidates[0]))
        return "\n\n".join(parts)
    parts.append(
        f"{asked}: {len(fitting)} of {len(candidates)} pairs of options do it. Those first that do "
        "it up to the highest rate:"
    )
    parts.append(_found(fitting[:_SHOWN]))
    idle = min(fitting, key=lambda one: one.busy_share)
    parts.append(
        f"Best: {_as_options(fitting[0])}\n"
        f"If others want the device, too: {_as_options(idle)}, which keeps it "
        f"{percent(idle.busy_share)} busy."
    )
    return "\n\n".join(parts)


def tuned_as_data(
    measured: Measured, search: Search, candidates: Sequence[Candidate]
) -> dict[str, Any]:
    """Returns the same for JSON; times in seconds."""
    return {
        "rate": search.rate,
        "p99_target_s": search.p99_s,
        "run_time": {
            "fixed_s": measured.fixed_s,
            "per_item_s": measured.per_item_s,
            "runs_s": {str(size): list(runs_s) for size, runs_s in measured.runs_s.items()},
        },
        "candidates": [
            {
                "max_batch_size": one.max_batch_size,
                "batch_wait_timeout_s": one.batch_wait_timeout_s,
                "meets_target": one.meets_target,
                "up_to_rate": one.up_to,
                "p50_s": one.p50_s if one.p50_s < math.inf else None,
                "p99_s": one.p99_s if one.p99_s < math.inf else None,
                "mean_batch": one.mean_batch,
                "busy_share": one.busy_share,
            }
            for one in candidates
        ],
    }


def _run_times(measured: Measured) -> str:
    rows: list[list[str]] = []
    for size, runs_s in measured.runs_s.items():
        usual_s = median(runs_s)
        rows.append(
            [
                str(size),
                str(len(runs_s)),
                duration(usual_s),
                duration(percentiles(runs_s)["p99"]),
                duration(usual_s / size),
                three_digits(size / usual_s),
            ]
        )
    heads = ("size", "runs", "median", "p99", "an item", "items a second")
    fitted = f"{duration(measured.fixed_s)} a batch + {duration(measured.per_item_s)} an item"
    return f"{table(heads, rows)}\n\nfitted: {fitted}"


def _found(candidates: Sequence[Candidate]) -> str:
    rows = [
        [
            str(one.max_batch_size),
            f"{one.batch_wait_timeout_s:g}",
            duration(one.p50_s),
            duration(one.p99_s),
            three_digits(one.mean_batch),
            percent(one.busy_share),
            f"{float(f'{one.up_to:.2g}'):,.0f}",
        ]
        for one in candidates
    ]
    heads = (
        "max_batch_size",
        "batch_wait_timeout_s",
        "p50",
        "p99",
        "mean batch",
        "handler busy",
        "up to a second",
    )
    return table(heads, rows)


def _as_options(candidate: Candidate) -> str:
    return written(
        {
            "max_batch_size": candidate.max_batch_size,
            "batch_wait_timeout_s": candidate.batch_wait_timeout_s,
        }
    )


def _why_not(measured: Measured, search: Search, nearest: Candidate) -> str:
    """Says what stands in the way: the handler's own time, its pace, or what the line adds."""
    alone_s = median(measured.runs_s[1])
    if alone_s > search.p99_s:
        return (
            f"The handler takes {duration(alone_s)} for one item alone, which no option makes "
            "shorter."
        )
    most = search.most(max(measured.runs_s))
    if most < search.rate:
        return (
            f"The handler can do {three_digits(most)} items a second at most, so it takes "
            f"{math.ceil(search.rate / most)} of it at least."
        )
    return (
        f"Nearest: {_as_options(nearest)}, with a p99 of {duration(nearest.p99_s)} and the handler "
        f"{percent(nearest.busy_share)} busy."
    )
