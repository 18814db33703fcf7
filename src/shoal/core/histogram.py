"""Histograms with fixed bounds, whose observations can be counted in bulk."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

SIZE_BOUNDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""Upper bounds of the batch size histogram, in requests."""

TIME_BOUNDS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
)  # fmt: skip
"""Upper bounds of the wait and run time histograms, in seconds."""

MOST_NEW: Final = 256
"""How many observations are kept until they are counted together."""


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """A histogram at one moment.

    Attributes:
        bounds: The inclusive upper bound of each bucket but the last, which has none.
        counts: The number of observations in each bucket; there is one bucket more than bounds.
        total: The number of observations.
        sum: Their sum.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: int
    sum: float


class Histogram:
    __slots__ = ("_bounds", "_counts", "_sum", "new")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        # Observations that are not counted yet; many are counted together.
        self.new: list[float] = []

    def observe(self, value: float) -> None:
        new = self.new
        new.append(value)
        if len(new) >= MOST_NEW:
            self.count_new()

    def observe_all(self, values: Iterable[float]) -> None:
        values = sorted(values)
        if not values:
            return
        counts, bounds = self._counts, self._bounds
        first, last = bisect_left(bounds, values[0]), bisect_left(bounds, values[-1])
        before = 0
        # Few bounds are looked up among many values: a third of the cost of the reverse.
        for bucket in range(first, last):
            within = bisect_right(values, bounds[bucket], before)
            counts[bucket] += within - before
            before = within
        counts[last] += len(values) - before
        self._sum += sum(values)

    def gather(self, values: Iterable[float]) -> None:
        """Adds observations, which are counted later."""
        new = self.new
        new += values
        if len(new) >= MOST_NEW:
            self.count_new()

    def count_new(self) -> None:
        self.observe_all(self.new)
        self.new.clear()

    def snapshot(self) -> HistogramSnapshot:
        self.count_new()
        return HistogramSnapshot(self._bounds, tuple(self._counts), sum(self._counts), self._sum)
