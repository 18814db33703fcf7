"""An online model of the handler's run time by batch size: ``seconds = a * size + b``.

The times are noisy (garbage collection, a cold first batch), they drift (other processes use the
processor), and a batcher under steady load runs batches of one size only. So:

- Samples are kept by *size class*, the last few in each; classes are a factor of the square root of
  2 apart. So under a steady load other sizes are not forgotten, and the fitted line keeps its
  slope.
- The line is a weighted Theil-Sen fit: the median of the slopes between the medians of any two
  classes, weighted by their distance (Theil 1950, Sen 1968; the weights are Jaeckel's, 1972). It
  tolerates outliers in more than a quarter of the points. `a` and `b` are never negative.
- The *level* is the median ratio of the last 11 batches' times to the line; it scales the whole
  line. It follows the handler within 6 batches, up and down. When batches of known classes run at a
  different pace, the samples of all classes are scaled to that pace, so that the line is not fitted
  to a mixture of times from before and after the change.
- The 99% bound is the line times the upper tail of the last 128 ratios of a batch's time to the
  level around it. One pause in fifty batches does not affect it; more do.

Rejected alternatives: least squares over the last 50 batches (BentoML), because one pause tilts the
line and a steady load leaves the slope undetermined; quantile regression, which Clipper tried
(arXiv 1612.03079, section 4.3), because it needs a solver and many samples in the tail; an average
for each size (TensorFlow, for padding), because it predicts nothing for sizes that never ran.

While all batches had about the same size, `a` and `b` are unknown. Then the expected time is taken
as constant, which is the lowest estimate for larger sizes, and the 99% bound as
proportional to the size, which is the highest.

Cost: `observe` is one append. The rest is done on demand, at most once per batch: about 5
microseconds to update the level, and after every 8th batch about 50 to fit the line again, 120 at
most (24 classes). If the model is never queried, only the last 64 batches are kept.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

_Sample = tuple[float, float]
"""The size of a batch, and how long it ran, in seconds."""
_Key = TypeVar("_Key", bound="Hashable")
_Kept = TypeVar("_Kept")

_UNREAD: Final = 64
_RECENT: Final = 11
_BLOCK: Final = 8
_CLASSES: Final = 24
_IN_CLASS: Final = 9
_SIZES: Final = 64
_OF_SIZE: Final = 15
_RATIOS: Final = 128
# With fewer batches than this, the line is fitted after each, and the spread is not measured yet.
_FEW: Final = 16
_SPREAD_OF_FEW: Final = 1.25
# How much farther from the mean the 99% point of a normal distribution is than the 90% point,
# rounded up because the level is an estimate, too.
_NORMAL_TAIL: Final = 2.2
_OTHER_PACE: Final = 1.2
# The shortest run time that is assumed, so that ratios are defined.
_GRAIN_S: Final = 1e-9
# The factor by which the time of an interrupted run is multiplied.
_AT_LEAST: Final = 1.1


@dataclass(frozen=True, slots=True)
class LatencyModelSnapshot:
    """A snapshot of the model of the handler's run time.

    Attributes:
        a_s: The run time per unit of size, in seconds.
        b_s: The part of the run time that does not depend on the size, in seconds.
        spread: The factor on the usual run time that bounds 99% of the batches, at least 1.
        samples: The number of batches measured.
    """

    a_s: float
    b_s: float
    spread: float
    samples: int


class LatencyModel:
    """The run time of batches by size (their items, or the sum of their costs), learned."""

    def __init__(self) -> None:
        # Observations since the last query.
        self._unread: deque[_Sample] = deque(maxlen=_UNREAD)
        self._samples = 0
        # The last batches, the ratios of their times to the line, and of these ratios to the level.
        self._recent: deque[_Sample] = deque(maxlen=_RECENT)
        self._paces: deque[float] = deque(maxlen=_RECENT)
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        # Batches of known classes that are not part of the fit yet.
        self._block: list[_Sample] = []
        # The last samples of each class, and of each exact size; the least recently used is first.
        self._classes: dict[int, deque[_Sample]] = {}
        self._sizes: dict[float, deque[float]] = {}
        self._a = self._b = 0.0
        self._level = 1.0
        self._spread = _SPREAD_OF_FEW
        self._largest: float = 0
        # The size of the only class; 0 if there are others.
        self._one_size: float = 0

    def observe(self, size: float, seconds: float) -> None:
        self._unread.append((size, seconds))

    def interrupted(self, size: float, seconds: float) -> None:
        """Records a cancelled run, which would have taken longer; ignored if that was expected."""
        expected_s = self.run_s(size)
        if expected_s is None or expected_s <= seconds:
            self.observe(size, seconds * _AT_LEAST)

    def run_s(self, size: float) -> float | None:
        """Returns the usual run time of a batch, in seconds; None before the first."""
        return self._level * (self._a * size + self._b) if self._is_known() else None

    def bound_s(self, size: float) -> float | None:
        """Returns a bound in seconds on about 99% of the runs of a size; None before the first."""
        usual_s = self.run_s(size)
        if usual_s is None:
            return None
        beyond = max(1.0, size / self._one_size) if self._one_size else 1.0
        return usual_s * beyond * self._spread

    def size_within(self, seconds: float) -> float | None:
        """Returns the largest size of which about 99% of the batches run within some seconds."""
        # Infinity if the time does not depend on the size, 0 if the smallest batch takes longer,
        # None before the first batch.
        if not self._is_known():
            return None
        on_line = seconds / (self._level * self._spread)
        if on_line < self._b:
            return 0.0
        if self._one_size:
            return self._one_size * on_line / self._b
        return (on_line - self._b) / self._a if self._a else math.inf

    def median_s_of(self, size: float) -> float | None:
        """Returns the median time of the last batches of exactly this size; None without any."""
        self._is_known()
        measured = self._sizes.get(size)
        return None if measured is None else _median(measured)

    def per_size_s(self) -> tuple[float, float]:
        """Returns the current `a` and `b`, in seconds; zeros before the first batch."""
        self._is_known()
        return self._level * self._a, self._level * self._b

    def fixed_s(self) -> float | None:
        """Returns the current `b`, in seconds; None while all batches had about the same size."""
        if not self._is_known() or self._one_size:
            return None
        return self._level * self._b

    def samples(self) -> int:
        self._is_known()
        return self._samples

    def largest(self) -> float:
        """Returns approximately the largest size measured; 0 before the first batch."""
        self._is_known()
        return self._largest

    def snapshot(self) -> LatencyModelSnapshot:
        return LatencyModelSnapshot(*self.per_size_s(), self._spread, self._samples)

    def _is_known(self) -> bool:
        """Processes new observations; returns whether there has ever been one."""
        while self._unread:
            size, seconds = self._unread.popleft()
            self._read(size, max(seconds, _GRAIN_S))
        return self._samples > 0

    def _read(self, size: float, seconds: float) -> None:
        self._samples += 1
        _keep(seconds, self._sizes, size, keys=_SIZES, each=_OF_SIZE)
        sample = size, seconds
        self._recent.append(sample)
        class_ = _class_of(size)
        if class_ not in self._classes:
            # A new class has most influence on the line, and there is nothing to compare it with.
            _keep(sample, self._classes, class_, keys=_CLASSES, each=_IN_CLASS)
            self._draw()
        else:
            self._block.append(sample)
            if len(self._block) >= _BLOCK or self._samples <= _FEW:
                self._learn()
                self._draw()
            else:
                self._paces.append(seconds / (self._a * size + self._b))
        self._level = _median(self._paces)
        if len(self._paces) == _RECENT:
            # The middle one of the ratios that the level is the median of, so that a step up or
            # down, which the level follows, does not count as spread.
            self._ratios.append(self._paces[_RECENT // 2] / self._level)

    def _learn(self) -> None:
        block, self._block = self._block, []
        pace = self._new_pace(block)
        if pace is not None:
            for kept in self._classes.values():
                for place, (size, seconds) in enumerate(kept):
                    kept[place] = size, seconds * pace
        for sample in block:
            _keep(sample, self._classes, _class_of(sample[0]), keys=_CLASSES, each=_IN_CLASS)

    def _new_pace(self, block: list[_Sample]) -> float | None:
        """Returns by which factor batches run slower than before; None for no clear change."""
        # Only classes measured before are compared: others may take longer because of their size.
        # The more the times vary anyway, the larger the change must be.
        paces: list[float] = []
        for size, seconds in block:
            if known := self._classes.get(_class_of(size)):
                paces.append(seconds / _middle(known)[1])
        if len(paces) * 2 < _BLOCK:
            return None
        pace = _median(paces)
        clear = max(_OTHER_PACE, self._spread)
        return pace if pace > clear or pace * clear < 1 else None

    def _draw(self) -> None:
        """Fits the line to the classes, and computes the ratios of the last batches to it."""
        points = sorted((*_middle(kept), float(len(kept))) for kept in self._classes.values())
        self._largest = points[-1][0]
        self._one_size = points[0][0] if len(points) == 1 else 0
        a, b = line_through(points)
        self._a, self._b = a, max(b, _GRAIN_S)  # if this is too high, the level is below 1
        self._paces.clear()
        self._paces.extend([seconds / (a * size + self._b) for size, seconds in self._recent])
        if len(self._ratios) >= _FEW:
            falling = sorted(self._ratios, reverse=True)
            normal = 1 + (falling[len(falling) // 10] - 1) * _NORMAL_TAIL
            self._spread = max(1.0, normal, falling[max(1, len(falling) // 50)])


def _class_of(size: float) -> int:
    return round(2 * math.log2(size)) if size > 0 else -1_000_000


def _keep(
    value: _Kept, by_key: dict[_Key, deque[_Kept]], key: _Key, *, keys: int, each: int
) -> None:
    """Adds to the last `each` values of a key; drops the least recently used of `keys`."""
    kept = by_key.pop(key) if key in by_key else deque[_Kept](maxlen=each)
    kept.append(value)
    if len(by_key) >= keys:
        del by_key[next(iter(by_key))]
    by_key[key] = kept


def _median(values: Iterable[float]) -> float:
    # The lower one of two, since disturbances only make a handler slower.
    rising = sorted(values)
    return rising[(len(rising) - 1) // 2]


def _middle(samples: Iterable[_Sample]) -> tuple[float, float]:
    sizes, seconds = zip(*samples, strict=True)
    return _median(sizes), _median(seconds)


def _weighted_median(values: list[tuple[float, float]]) -> float:
    rising = sorted(values)
    weights = list(accumulate(weight for _, weight in rising))
    return rising[bisect_left(weights, weights[-1] / 2)][0]


def line_through(points: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Fits a line to sizes, times and weights; returns its slope, at least 0, and the rest."""
    a = _slope(points)
    return a, _weighted_median([(seconds - a * size, weight) for size, seconds, weight in points])


def _slope(points: Sequence[tuple[float, float, float]]) -> float:
    slopes: list[tuple[float, float]] = []
    for (size, seconds, weight), (larger, more, other) in combinations(points, 2):
        if wider := larger - size:
            slopes.append(((more - seconds) / wider, wider * min(weight, other)))
    return max(0.0, _weighted_median(slopes)) if slopes else 0.0
