"""Formats results as text for people: tables, and numbers with their units."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a table with the first column aligned left and the others aligned right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines: list[str] = []
    for row in (heads, ["-" * width for width in widths], *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Formats pairs of a name and a value, one per line."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name:{width}}  {value}".rstrip() for name, value in pairs)


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
    """Formats a share from 0 to 1 as a percentage."""
    return f"{share:.0%}" if share == 0 or share >= 0.01 else f"{share:.1%}"
