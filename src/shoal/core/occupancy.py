"""How full batches are over time that take requests while their handler runs.

Such a batch has no one size: requests join and leave, and a continuous one lasts as long as its
batcher. So its requests are integrated over time, and counted at each step of its handler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.core.histogram import SIZE_BOUNDS, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.core.batch import Batch
    from shoal.core.histogram import HistogramSnapshot


@dataclass(frozen=True, slots=True)
class OccupancyStatistics:
    """The occupancy of a batcher's open or continuous batches, until one moment."""

    # Requests that have joined a batch, including those that it began with.
    joined: int
    # Requests that have left a batch, with any outcome.
    left: int
    # The sum of the times that requests were in a batch, in seconds. Divided by the elapsed time,
    # it is the mean number of requests.
    request_s: float
    # How long there was at least one request, in seconds.
    busy_s: float
    # Requests in a continuous batch, at each step of its handler that had any.
    steps: HistogramSnapshot
    # Continuous batches with a handler that waits for requests now.
    idle_batches: int


class Occupancy:
    """Counts the requests of a batcher's open or continuous batches."""

    # `note` looks at the batches themselves, so a missed event delays a sum and never falsifies it.

    __slots__ = ("_active", "_at", "_batches", "_busy_s", "_request_s", "joined", "steps")

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = batches
        self._active = 0
        self._at = 0.0
        self._request_s = 0.0
        self._busy_s = 0.0
        self.joined = 0
        self.steps = Histogram(SIZE_BOUNDS)

    def note(self, now: float) -> None:
        active = self._active
        if active:
            took_s = now - self._at
            self._request_s += active * took_s
            self._busy_s += took_s
        self._at = now
        self._active = sum([batch.active for batch in self._batches])

    def statistics(self, now: float) -> OccupancyStatistics:
        self.note(now)
        return OccupancyStatistics(
            joined=self.joined,
            left=self.joined - self._active,
            request_s=self._request_s,
            busy_s=self._busy_s,
            steps=self.steps.snapshot(),
            idle_batches=sum([not batch.active for batch in self._batches]),
        )
