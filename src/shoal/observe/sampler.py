"""The activity of batchers in each of the last seconds, as rates, sizes and percentiles.

Rates are differences of the engine's own counters, so the engine does nothing for them. A
`BatchHistory` notes the latencies.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal.core.counters import BatcherStatistics
    from shoal.core.histogram import HistogramSnapshot
    from shoal.observe.history import BatchHistory

MOST_SAMPLES: Final = 180
"""How many samples are kept."""

PERIOD_S: Final = 1.0
"""How long one sample lasts, in seconds."""

_LONGEST_S: Final = 3 * PERIOD_S
_PERCENTS: Final = (50, 95, 99)
# Above the period: a sampler that is called each second is called a little early, too.
_EARLY_S: Final = 0.05

Sample = dict[str, Any]


class Watched(NamedTuple):
    name: str
    statistics: BatcherStatistics
    is_open: bool  # whether requests join its batches while they run
    streams: bool  # whether its calls return streams


class Sampler:
    """Computes a sample each second, as long as it is called."""

    def __init__(
        self,
        history: BatchHistory,
        batchers: Callable[[], Iterable[Watched]],
    ) -> None:
        # The oldest first. `at` is when each ended, `all` is about all batchers and `batchers`
        # about each of them.
        self.samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self.number = 0
        self.latest: Sequence[Watched] = ()
        self._history = history
        self._batchers = batchers
        self._before: Mapping[str, BatcherStatistics] = {}
        self._before_at = -math.inf

    def step(self, now: float) -> bool:
        """Adds a sample if a second has passed; returns whether it did, or began to count."""
        passed_s = now - self._before_at
        if passed_s < PERIOD_S - _EARLY_S:
            return False
        self.latest = list(self._batchers())
        latencies = {
            one.name: sorted(self._history.of(one.name).take_latencies()) for one in self.latest
        }
        # Nobody has called it for long: a mean of that time would look like one second, and the
        # last sample of an earlier time like what happens now.
        if passed_s <= _LONGEST_S:
            self._add(now, passed_s, latencies)
        else:
            self.samples.clear()
        self._before = {one.name: one.statistics for one in self.latest}
        self._before_at = now
        return True

    def since(self, number: int) -> list[Sample]:
        return [sample for sample in self.samples if sample["number"] > number]

    def _add(self, now: float, passed_s: float, latencies: Mapping[str, list[float]]) -> None:
        by_batcher: dict[str, Sample] = {
            one.name: {
                **_rates(one.statistics, self._before.get(one.name), passed_s),
                **_percentiles(latencies[one.name]),
                "queued": one.statistics.queued + one.statistics.parked,
                "levels": {str(level): n for level, n in one.statistics.queued_by_level.items()},
                "running": one.statistics.running,
                "limit": float(min(one.statistics.max_batch_size, 2**53)),
                "streams": one.statistics.running if one.streams else 0,
            }
            for one in self.latest
        }
        everything: Sample = {
            key: sum([one[key] for one in by_batcher.values()])
            for key in (*_OUTCOMES, "batches", "queued", "running", "streams")
        }
        in_batches = sum([one["size"] * one["batches"] for one in by_batcher.values()])
        everything["size"] = in_batches / everything["batches"] if everything["batches"] else 0
        merged = sorted([each for one in latencies.values() for each in one])
        self.number += 1
        self.samples.append(
            {
                "number": self.number,
                "at": round(now, 3),
                "all": {**everything, **_percentiles(merged)},
                "batchers": by_batcher,
            }
        )


_OUTCOMES: Final = ("finished", "failed", "declined", "left", "refused")


def _rates(now: BatcherStatistics, before: BatcherStatistics | None, passed_s: float) -> Sample:
    """Returns rates per second, and the mean size of a batch."""
    if before is None or before.finished > now.finished:  # another batcher of that name
        return {
            **dict.fromkeys((*_OUTCOMES, "batches", "size", "wait_s", "run_s"), 0),
            "reasons": {},
        }
    batches = now.batch_size.total - before.batch_size.total

    def rate(*names: str) -> float:
        return float(
            round(sum([getattr(now, n) - getattr(before, n) for n in names]) / passed_s, 3)
        )

    return {
        "finished": rate("finished"),
        "failed": rate("failed"),
        "declined": rate("declined"),
        "left": rate("cancelled", "expired"),
        "refused": rate("rejected", "shed"),
        "batches": round(batches / passed_s, 3),
        "size": _mean(now.batch_size, before.batch_size),
        "wait_s": _mean(now.wait_s, before.wait_s),
        "run_s": _mean(now.run_s, before.run_s),
        "reasons": {
            reason.value: round((count - before.batches[reason]) / passed_s, 3)
            for reason, count in now.batches.items()
            if count > before.batches[reason]
        },
    }


def _mean(now: HistogramSnapshot, before: HistogramSnapshot) -> float:
    """Returns the mean of the observations in between; 0 for none."""
    count = now.total - before.total
    return round((now.sum - before.sum) / count, 6) if count else 0


def _percentiles(times: Sequence[float]) -> Sample:
    """Returns the percentiles of sorted times, by nearest rank; None where there are none."""
    if not times:
        return {f"p{percent}": None for percent in _PERCENTS}
    return {
        f"p{percent}": round(times[-(-len(times) * percent // 100) - 1], 6) for percent in _PERCENTS
    }
