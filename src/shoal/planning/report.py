"""The result of a simulation, as text for people and as data for programs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from shoal.planning.tables import duration, facts, percent, three_digits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.core.simulation.results import Simulation

_PERCENTILES: Final = (50, 90, 99, 99.9)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Returns the reported percentiles and the maximum of times; NaN values are left out."""
    ordered = sorted(value for value in values if value == value)
    if not ordered:
        return {}
    found = {
        f"p{percent:g}": ordered[math.ceil(len(ordered) * percent / 100) - 1]
        for percent in _PERCENTILES
    }
    return {**found, "max": ordered[-1]}


def as_data(simulation: Simulation) -> dict[str, Any]:
    """Returns the result of a simulation for JSON; times in seconds."""
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
    """Returns the result of a simulation as lines of text."""
    count = len(simulation.outcomes)
    batches = len(simulation.batches)
    ends = [
        f"{ended:,} {outcome}" + (f" ({percent(ended / count)})" if ended < count else "")
        for outcome, ended in simulation.count.items()
        if ended
    ]
    reasons = [
        f"{reason} {percent(dispatched / batches)}"
        for reason, dispatched in simulation.reasons.items()
        if dispatched
    ]
    return facts(
        [
            ("requests", ", ".join(ends)),
            ("latency", _times(simulation.latency_s)),
            ("wait in queue", _times(simulation.waits_s())),
            ("batches", f"{batches:,}, of {three_digits(simulation.mean_batch)} on average"),
            ("dispatched because", ", ".join(reasons)),
            ("handler busy", percent(simulation.busy_share)),
        ]
    )


def _times(values: Sequence[float]) -> str:
    found = percentiles(values)
    return "  ".join(f"{name} {duration(value)}" for name, value in found.items()) or "-"
