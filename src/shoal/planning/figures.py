"""Figures of results: percentiles, and numbers as text with their units."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

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
