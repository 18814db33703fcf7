"""Figures of results: percentiles, numbers as text, and options compared under the same traffic."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from shoal.core.request import DispatchReason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.core.simulation_results import Simulation
    from shoal.planning.recordings import RecordedBatcher


_PERCENTILES: Final = (50, 90, 99, 99.9)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Returns a percentile of ascending values, by nearest rank; NaN of none."""
    return ordered[math.ceil(len(ordered) * percent / 100) - 1] if ordered else math.nan


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
    return f"{share:.0%}" if share == 0 or share >= 0.01 else f"{share:.1%}"


@dataclass(frozen=True)
class Case:
    """The results of some options, recorded or simulated."""

    name: str
    options: str
    outcomes: Mapping[str, int]  # number of requests
    latency_s: Sequence[float]  # of each answered request, from its arrival
    waits_s: Sequence[float]  # of each request that was in a batch
    sizes: Sequence[int]  # of each batch
    reasons: Mapping[DispatchReason, int]  # number of batches
    busy_share: float  # the part of the time that slots were busy, 0 to 1; NaN if not known

    @classmethod
    def simulated(cls, name: str, options: str, simulation: Simulation) -> Case:
        return cls(
            name,
            options,
            {str(outcome): count for outcome, count in simulation.count.items() if count},
            [one for one in simulation.latency_s if one == one],
            [one for one in simulation.waits_s() if one == one],
            [len(batch.requests) for batch in simulation.batches],
            {reason: count for reason, count in simulation.reasons.items() if count},
            simulation.busy_share,
        )

    @classmethod
    def recorded(cls, batcher: RecordedBatcher, options: str) -> Case:
        batches = batcher.batches
        counted = Counter(batch.reason for batch in batches)
        busy_share = math.nan
        slots = batcher.options.get("max_concurrent_batches")
        if batches and slots and not batcher.is_open:
            began_at = min(batch.at for batch in batches)
            lasted_s = max(batch.at + batch.run_s for batch in batches) - began_at
            busy_share = sum(batch.run_s for batch in batches) / lasted_s / slots
        return cls(
            "recorded",
            options,
            batcher.outcomes,
            batcher.latency_s,
            batcher.waits_s,
            [batch.size for batch in batches],
            {reason: counted[reason] for reason in DispatchReason if counted[reason]},
            busy_share,
        )

    @property
    def mean_batch(self) -> float:
        return sum(self.sizes) / len(self.sizes) if self.sizes else math.nan

    @cached_property
    def latency(self) -> dict[str, float]:
        return percentiles(self.latency_s)

    @cached_property
    def wait(self) -> dict[str, float]:
        return percentiles(self.waits_s)

    def count(self, *outcomes: str) -> int:
        return sum(self.outcomes.get(one, 0) for one in outcomes)

    def as_data(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "options": self.options,
            "outcomes": dict(self.outcomes),
            "latency_s": self.latency,
            "wait_s": self.wait,
            "batches": len(self.sizes),
            "mean_batch": self.mean_batch if self.sizes else None,
            "reasons": {str(reason): count for reason, count in self.reasons.items()},
            "busy_share": None if math.isnan(self.busy_share) else self.busy_share,
        }


def rows_of(cases: Sequence[Case]) -> list[tuple[str, list[str]]]:
    """Returns a table of cases: the name of each figure, and its text for each case."""
    rows = [
        ("answered", [f"{case.count('finished'):,}" for case in cases]),
        ("refused or shed", [f"{case.count('rejected', 'shed'):,}" for case in cases]),
        ("out of time", [f"{case.count('expired'):,}" for case in cases]),
    ]
    if any(case.count("failed", "cancelled") for case in cases):
        lost = [f"{case.count('failed', 'cancelled'):,}" for case in cases]
        rows.append(("failed or cancelled", lost))
    for name in ("p50", "p90", "p99", "max"):
        times = [duration(case.latency.get(name, math.nan)) for case in cases]
        rows.append((f"latency {name}", times))
    for name in ("p50", "p99"):
        times = [duration(case.wait.get(name, math.nan)) for case in cases]
        rows.append((f"wait {name}", times))
    rows += [
        ("batches", [f"{len(case.sizes):,}" for case in cases]),
        ("mean batch", [three_digits(case.mean_batch) for case in cases]),
        ("handler busy", [_share(case.busy_share) for case in cases]),
    ]
    for reason in DispatchReason:
        if any(case.reasons.get(reason) for case in cases):
            shares = [
                _share(case.reasons.get(reason, 0) / len(case.sizes) if case.sizes else math.nan)
                for case in cases
            ]
            rows.append((f"because {reason}", shares))
    return rows


def _share(share: float) -> str:
    return "-" if math.isnan(share) else percent(share)
