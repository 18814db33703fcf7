"""How long the handler takes for a batch of some size: ``seconds = a * size + b``, kept up to date.

The times are noisy (a collector's pause, a cold first batch), they drift (a neighbour takes the
processor), and a batcher under steady load runs batches of one size only. So:

- Samples are kept by *size class*, each a step of the square root of 2, the last few in each. So
  however steady the load, other sizes are not forgotten, and the line keeps its slope.
- The line is Theil and Sen's, weighted: the median of the slopes between the medians of any two
  classes, by how far they are apart (Theil 1950, Sen 1968; the weights are Jaeckel's, 1972). More
  than a quarter of the points may be wild. `a` and `b` are never negative.
- The *level* is the median of the last 11 batches' times against the line, and a factor on all of
  it. It follows the handler within 6 batches, up and down. When batches of classes that are known
  run at another pace, what is remembered of all classes is brought to that pace, so that no line is
  drawn through times of before and times of after.
- What 99% stay within is the line times the upper tail of the last 128 ratios of a batch's time to
  the level around it. One pause in fifty batches counts for nothing; more of them do.

Rivals that were turned down: least squares over the last 50 batches, BentoML's, because one pause
tilts its line and a steady load makes its slope a guess; quantile regression, which Clipper tried
(arXiv 1612.03079, section 4.3), because it needs a solver and many samples in the tail; an average
for each size (TensorFlow's, for padding), because it says nothing of sizes that were not tried.

While all batches were of about one size nothing says how much of their time is `a`. Then the line
is flat, the least that it can mean, and the bound rises in proportion, the most.

What it costs: `observe` is one append. The rest is done when somebody asks, at most once for a
batch: some 5 microseconds to follow the level, and after every 8th batch some 50 to draw the line
anew, 120 at most (24 classes). If nobody asks, the last 64 batches are kept, and nothing is done.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

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
# Of fewer batches than this each is learned from at once, and the spread is not measured yet.
_FEW: Final = 16
_SPREAD_OF_FEW: Final = 1.25
# How much farther out 99% of what is spread normally is than 90%; the level is a guess as well.
_NORMAL_TAIL: Final = 2.2
_OTHER_PACE: Final = 1.2
# The least that a batch is taken to last, so that there are ratios.
_GRAIN_S: Final = 1e-9
# By how much a run that was interrupted is taken to have been too short.
_AT_LEAST: Final = 1.1


@dataclass(frozen=True, slots=True)
class LatencyModelSnapshot:
    """What is known of the handler's run time at one moment.

    Attributes:
        a_s: The part of a run for each unit of size, in seconds.
        b_s: The part of a run that does not depend on the size, in seconds.
        spread: How many times the usual run time 99% of the batches stay within, at least 1.
        samples: How many batches were measured.
    """

    a_s: float
    b_s: float
    spread: float
    samples: int


class LatencyModel:
    """The run time of batches by their size, learned from those that ran.

    A size is the number of a batch's items, or the sum of their costs.
    """

    def __init__(self) -> None:
        # What was observed since somebody asked.
        self._unread: deque[_Sample] = deque(maxlen=_UNREAD)
        self._samples = 0
        # The last batches, the ratios of their times to the line, and of those to the level.
        self._recent: deque[_Sample] = deque(maxlen=_RECENT)
        self._paces: deque[float] = deque(maxlen=_RECENT)
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        # Batches of known classes that the line was not drawn through yet.
        self._block: list[_Sample] = []
        # The last of each class, and of each exact size; what ran least recently is first.
        self._classes: dict[int, deque[_Sample]] = {}
        self._sizes: dict[float, deque[float]] = {}
        self._a = self._b = 0.0
        self._level = 1.0
        self._spread = _SPREAD_OF_FEW
        self._largest: float = 0
        # The size of the only class; 0 if there are others.
        self._one_size: float = 0

    def observe(self, size: float, seconds: float) -> None:
        """Takes note of a batch that has run.

        Args:
            size: How many items it had, or what their costs summed up to.
            seconds: How long the handler had it.
        """
        self._unread.append((size, seconds))

    def interrupted(self, size: float, seconds: float) -> None:
        """Takes note of a run that would have taken longer, had it not been cancelled.

        That it takes at least so long is news only where less was expected. The arguments are those
        of `observe`.
        """
        expected_s = self.run_s(size)
        if expected_s is None or expected_s <= seconds:
            self.observe(size, seconds * _AT_LEAST)

    def run_s(self, size: float) -> float | None:
        """Returns how long a batch of a size usually runs, in seconds; None before the first."""
        return self._level * self._on_line(size) if self._is_known() else None

    def bound_s(self, size: float) -> float | None:
        """Returns the seconds that about 99% of the batches of a size run within, or None."""
        usual_s = self.run_s(size)
        if usual_s is None:
            return None
        beyond = max(1.0, size / self._one_size) if self._one_size else 1.0
        return usual_s * beyond * self._spread

    def size_within(self, seconds: float) -> float | None:
        """Returns the largest size of which about 99% of the batches run within some seconds.

        Infinity where size does not matter; 0 if not even the smallest batch would do; None before
        the first batch.
        """
        if not self._is_known():
            return None
        on_line = seconds / (self._level * self._spread)
        if on_line < self._b:
            return 0.0
        if self._one_size:
            return self._one_size * on_line / self._b
        return (on_line - self._b) / self._a if self._a else math.inf

    def mean_s_of(self, size: float) -> float | None:
        """Returns the median time of the last batches of exactly this size; None for none."""
        self._is_known()
        measured = self._sizes.get(size)
        return None if measured is None else _median(measured)

    def per_size_s(self) -> tuple[float, float]:
        """Returns `a` and `b` as they are now, in seconds; zeros before the first batch."""
        self._is_known()
        return self._level * self._a, self._level * self._b

    def samples(self) -> int:
        """Returns how many batches were measured."""
        self._is_known()
        return self._samples

    def largest(self) -> float:
        """Returns the largest size that was measured, about; 0 before the first batch."""
        self._is_known()
        return self._largest

    def snapshot(self) -> LatencyModelSnapshot:
        """Returns what is known now."""
        return LatencyModelSnapshot(*self.per_size_s(), self._spread, self._samples)

    def _is_known(self) -> bool:
        """Reads what was observed; returns whether there ever was anything."""
        while self._unread:
            size, seconds = self._unread.popleft()
            self._read(size, max(seconds, _GRAIN_S))
        return self._samples > 0

    def _on_line(self, size: float) -> float:
        return self._a * size + self._b

    def _read(self, size: float, seconds: float) -> None:
        self._samples += 1
        _keep(seconds, self._sizes, size, keys=_SIZES, each=_OF_SIZE)
        sample = size, seconds
        self._recent.append(sample)
        class_ = _class_of(size)
        if class_ not in self._classes:
            # What was never seen says most about the line, and there is nothing to hold it against.
            _keep(sample, self._classes, class_, keys=_CLASSES, each=_IN_CLASS)
            self._draw()
        else:
            self._block.append(sample)
            if len(self._block) >= _BLOCK or self._samples <= _FEW:
                self._learn()
                self._draw()
            else:
                self._paces.append(seconds / self._on_line(size))
        self._level = _median(self._paces)
        if len(self._paces) == _RECENT:
            # The one in the middle of those that the level is the median of, so that a step up or
            # down, which the level follows, is no spread.
            self._ratios.append(self._paces[_RECENT // 2] / self._level)

    def _learn(self) -> None:
        """Takes the samples of the block into their classes."""
        block, self._block = self._block, []
        pace = self._new_pace(block)
        if pace is not None:
            for kept in self._classes.values():
                for place, (size, seconds) in enumerate(kept):
                    kept[place] = size, seconds * pace
        for sample in block:
            _keep(sample, self._classes, _class_of(sample[0]), keys=_CLASSES, each=_IN_CLASS)

    def _new_pace(self, block: list[_Sample]) -> float | None:
        """Says how many times as long as before batches run; None for no clear change.

        Only those of classes that were measured before can tell: others may take their time because
        of their size. And times that vary much by themselves must differ by more.
        """
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
        """Draws the line through the classes, and holds the last batches against it."""
        points = sorted((*_middle(kept), float(len(kept))) for kept in self._classes.values())
        self._largest = points[-1][0]
        self._one_size = points[0][0] if len(points) == 1 else 0
        self._a = a = _slope(points)
        b = _weighted_median([(seconds - a * size, weight) for size, seconds, weight in points])
        self._b = max(b, _GRAIN_S)  # where the line is too steep by this, the level is below 1
        self._paces.clear()
        self._paces.extend(seconds / self._on_line(size) for size, seconds in self._recent)
        if len(self._ratios) >= _FEW:
            falling = sorted(self._ratios, reverse=True)
            normal = 1 + (falling[len(falling) // 10] - 1) * _NORMAL_TAIL
            self._spread = max(1.0, normal, falling[max(1, len(falling) // 50)])


def _class_of(size: float) -> int:
    return round(2 * math.log2(size)) if size > 0 else -1_000_000


def _keep(
    value: _Kept, by_key: dict[_Key, deque[_Kept]], key: _Key, *, keys: int, each: int
) -> None:
    """Keeps the last few values of a key, which becomes the freshest of so many keys at most."""
    kept = by_key.pop(key) if key in by_key else deque[_Kept](maxlen=each)
    kept.append(value)
    if len(by_key) >= keys:
        del by_key[next(iter(by_key))]
    by_key[key] = kept


def _median(values: Iterable[float]) -> float:
    """Returns the median, the lower one of two: what disturbs a handler only makes it slower."""
    rising = sorted(values)
    return rising[(len(rising) - 1) // 2]


def _middle(samples: Iterable[_Sample]) -> tuple[float, float]:
    """Returns the median size and the median time of samples of one class."""
    sizes, seconds = zip(*samples, strict=True)
    return _median(sizes), _median(seconds)


def _weighted_median(values: list[tuple[float, float]]) -> float:
    """Returns the least of the values, each with its weight, up to which half of the weight is."""
    rising = sorted(values)
    weights = list(accumulate(weight for _, weight in rising))
    return rising[bisect_left(weights, weights[-1] / 2)][0]


def _slope(points: list[tuple[float, float, float]]) -> float:
    """Returns how much longer batches run for each unit of size, by points in order of size."""
    slopes: list[tuple[float, float]] = []
    for (size, seconds, weight), (larger, more, other) in combinations(points, 2):
        if wider := larger - size:
            slopes.append(((more - seconds) / wider, wider * min(weight, other)))
    return max(0.0, _weighted_median(slopes)) if slopes else 0.0
