"""What to read from a simulation, as text for people and as data for programs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from shoal.planning.tables import duration, facts, percent, three_digits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.core.simulation.results import Simulation

_PERCENTILES: Final = (50, 90, 99, 99.9)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Returns the percentiles that are told of times; those that are not numbers don't count."""
    ordered = sorted(value for value in values if value == value)
    if not ordered:
        return {}
    told = {
        f"p{percent:g}": ordered[math.ceil(len(ordered) * percent / 100) - 1]
        for percent in _PERCENTILES
    }
    return {**told, "max": ordered[-1]}


def as_data(simulation: Simulation) -> dict[str, Any]:
    """Returns what a simulation showed, for JSON; times in seconds."""
    return {
        "requests": len(simulation.outcomes),
        "outcomes": {str(outcome): count for outcome, count in simulation.count.items()},
        "latency_s": percentiles(simulation.latency_s),
        "wait_s": percentiles(simulation.waits_s()),
        "batches": len(simulation.batches),
        "mean_batch": simulation.mean_batch if simulation.batches else None,
        "reasons": {str(reason): count for reason, count in simulation.reasons.items()},
        "busy_share": simulation.busy_share,
        "duration_s": simulation.duration_s,
    }


def as_facts(simulation: Simulation) -> str:
    """Returns what a simulation showed, a fact a line."""
    count = len(simulation.outcomes)
    batches = len(simulation.batches)
    ends = [
        f"{ended:,} {outcome}" + (f" ({percent(ended / count)})" if ended < count else "")
        for outcome, ended in simulation.count.items()
        if ended
    ]
    reasons = [
        f"{reason} {percent(cut / batches)}" for reason, cut in simulation.reasons.items() if cut
    ]
    return facts(
        [
            ("requests", ", ".join(ends)),
            ("latency", _times(simulation.latency_s)),
            ("wait in line", _times(simulation.waits_s())),
            ("batches", f"{batches:,}, of {three_digits(simulation.mean_batch)} on average"),
            ("cut because", ", ".join(reasons)),
            ("handler busy", percent(simulation.busy_share)),
        ]
    )


def _times(values: Sequence[float]) -> str:
    told = percentiles(values)
    return "  ".join(f"{name} {duration(value)}" for name, value in told.items()) or "-"
