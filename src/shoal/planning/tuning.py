"""Finds options that meet a target: simulates pairs of size and wait with measured run times.

The best pair is the one that meets the target up to the highest rate: it leaves the largest margin
for more traffic, and for a handler that is slower than measured. Of nearly equal pairs, the one
with the shorter wait is best, then the one with the lower latency, then the smaller size: a longer
wait or a larger batch must bring a gain.

The alternative was to choose the pair that keeps the handler least busy. That pair always waits as
long as the target allows, which adds latency to save time on a device that nothing else uses. For a
shared device, the table shows how busy each pair keeps it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from shoal.core.simulation import simulate
from shoal.planning.figures import percentile
from shoal.planning.traces import poisson

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.core.options.options import BatchOptions
    from shoal.core.simulation_results import Simulation
    from shoal.planning.recordings import MeasuredRunTimes

_WAITS: Final = (0.0, 1 / 8, 1 / 4, 1 / 2)
"""The waits to try, as shares of the target."""
_BISECTIONS: Final = 6
_GAIN: Final = 1.1
"""Smaller gains of one pair over another are taken for chance, or are not worth a wait."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The simulated result of one pair of options."""

    max_batch_size: int
    batch_wait_timeout_s: float
    p50_s: float  # half of the requests are answered within it
    p99_s: float  # unanswered requests have infinite latency
    mean_batch: float
    busy_share: float  # 0 to 1
    up_to_rate: float = 0.0  # the highest rate at which the target is met; 0 if it is missed

    @property
    def meets_target(self) -> bool:
        return self.up_to_rate > 0


@dataclass(frozen=True, slots=True)
class Search:
    options: BatchOptions  # the other options, which stay as they are
    run_times: MeasuredRunTimes
    rate: float
    p99_s: float  # the target
    # For each pair; 200 of these are above the p99, which makes it stable enough to choose by.
    requests: int = 20_000

    def candidates(self, progress: Callable[[str], None]) -> list[Candidate]:
        """Simulates every measured size with every wait; returns the best first."""
        if self.options.max_concurrent_batches is None:
            raise ValueError(
                "max_concurrent_batches=none has no best size, because enough concurrent batches "
                "can serve any rate; give a number to tune for"
            )
        # A batch of one request never waits.
        pairs = [
            (int(size), float(f"{self.p99_s * part:.2g}"))
            for size in self.run_times.runs_s
            for part in (_WAITS if size > 1 else _WAITS[:1])
        ]
        found: list[Candidate] = []
        for number, pair in enumerate(pairs, 1):
            found.append(self._tried(*pair))
            if number % 7 == 0:
                progress(f"simulated {number} of {len(pairs)} pairs of options")
        found.sort(key=_worse)
        if (best := _best([one for one in found if one.meets_target])) is not None:
            found.remove(best)
            found.insert(0, best)
        return found

    @property
    def batching_helps(self) -> bool:
        """Whether batches raise the handler's throughput; True if none were measured."""
        largest = max(self.run_times.runs_s)
        return largest == 1 or self.most(largest) >= _GAIN * self.most(1)

    def most(self, size: float) -> float:
        """Returns how many items a second the handler can process in batches up to a size."""
        return self.options.slots * max(
            measured / self.run_times(measured)
            for measured in self.run_times.runs_s
            if measured <= size
        )

    def _tried(self, size: int, wait_s: float) -> Candidate:
        simulation = self._simulated(size, wait_s, self.rate)
        candidate = Candidate(
            size,
            wait_s,
            _percentile_of_all_s(simulation, 50),
            _percentile_of_all_s(simulation, 99),
            simulation.mean_batch,
            simulation.busy_share,
        )
        if candidate.p99_s > self.p99_s:
            return candidate
        return replace(candidate, up_to_rate=self._highest_rate(size, wait_s))

    def _highest_rate(self, size: int, wait_s: float) -> float:
        low, high = self.rate, max(self.rate, self.most(size))
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            if _percentile_of_all_s(self._simulated(size, wait_s, middle), 99) <= self.p99_s:
                low = middle
            else:
                high = middle
        return low

    def _simulated(self, size: int, wait_s: float, rate: float) -> Simulation:
        changes: dict[str, Any] = {"max_batch_size": size, "batch_wait_timeout_s": wait_s}
        options = self.options.changed(changes)
        return simulate(poisson(rate, self.requests / rate), options, self.run_times)


def least_busy(fitting: Sequence[Candidate]) -> Candidate | None:
    """Returns the pair that keeps the handler clearly less busy than the best one, or None."""
    least = min(one.busy_share for one in fitting)
    if least * _GAIN > fitting[0].busy_share:
        return None
    near = [one for one in fitting if one.busy_share <= least * _GAIN]
    return min(near, key=lambda one: (one.batch_wait_timeout_s, one.busy_share))


def _best(fitting: Sequence[Candidate]) -> Candidate | None:
    if not fitting:
        return None
    highest = max(one.up_to_rate for one in fitting)
    near = [one for one in fitting if one.up_to_rate * _GAIN >= highest]
    wait_s = min(one.batch_wait_timeout_s for one in near)
    near = [one for one in near if one.batch_wait_timeout_s == wait_s]
    p99_s = min(one.p99_s for one in near)
    return min(
        (one for one in near if one.p99_s <= p99_s * _GAIN), key=lambda one: one.max_batch_size
    )


def _worse(candidate: Candidate) -> tuple[float, ...]:
    """Returns the sort key of a candidate; rounded, since small differences are random."""
    if not candidate.meets_target:
        return 1, candidate.p99_s, candidate.busy_share
    return (
        0,
        -float(f"{candidate.up_to_rate:.2g}"),
        float(f"{candidate.p99_s:.2g}"),
        candidate.busy_share,
    )


def _percentile_of_all_s(simulation: Simulation, percent: float) -> float:
    """Gives unanswered requests an infinite latency."""
    times = sorted(latency if latency == latency else math.inf for latency in simulation.latency_s)
    return percentile(times, percent)
