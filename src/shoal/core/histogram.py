"""Histograms with fixed bounds, and those of the times of requests and of the items of streams.

An observation costs an `append`. Many are counted together, and statuses become outcomes only then.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from shoal.errors import (
    BackendUnavailable,
    BatcherClosed,
    DeadlineExceeded,
    HandlerTimeout,
    ItemTooLarge,
    NoSuchModel,
    NoSuchName,
    Overloaded,
    ReplicaDied,
    ShutDown,
    SlowReader,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping


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
        # Changes nothing here: statistics may be read in another thread.
        now = Histogram(self._bounds)
        now._counts, now._sum = self._counts.copy(), self._sum
        now.observe_all(self.new)
        return HistogramSnapshot(now._bounds, tuple(now._counts), sum(now._counts), now._sum)


OUTCOMES: Final = ("ok", "invalid", "unavailable", "timeout", "failed", "left")
"""How requests end: answered; refused for what the client sent; refused or lost since the server
was overloaded, closed or without a replica; out of time; failed; or left by their clients."""

LEFT: Final = 499
"""What is counted in place of a status if the client has left."""


class TimesOfOne(NamedTuple):
    """The times of requests to one endpoint with the same protocol and outcome."""

    endpoint: str
    protocol: str
    outcome: str
    times: HistogramSnapshot


class RequestTimes:
    def __init__(self) -> None:
        # By endpoint, protocol and outcome.
        self._series: defaultdict[tuple[str, str, str], Histogram]
        self._series = defaultdict(partial(Histogram, TIME_BOUNDS_S))
        # By endpoint, protocol and status.
        self._new: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)

    def count(self, endpoint: str, protocol: str, status: int, took_s: float) -> None:
        """Counts an ended request; `status` may be `LEFT`."""
        new = self._new[endpoint, protocol, status]
        new.append(took_s)
        if len(new) >= MOST_NEW:
            self.count_new()

    def __iter__(self) -> Iterator[TimesOfOne]:
        self.count_new()
        for (endpoint, protocol, outcome), series in self._series.items():
            yield TimesOfOne(endpoint, protocol, outcome, series.snapshot())

    def keep(self, endpoints: Container[str]) -> None:
        for key in [key for key in self._series if key[0] not in endpoints]:
            del self._series[key]
        for new in [new for new in self._new if new[0] not in endpoints]:
            del self._new[new]

    def count_new(self) -> None:
        for (endpoint, protocol, status), new in self._new.items():
            if new:
                self._series[endpoint, protocol, outcome_of(status)].observe_all(new)
                new.clear()


def outcome_of(status: int) -> str:
    if status < 400:
        return "ok"
    return _OUTCOMES.get(status) or ("invalid" if status < 500 else "failed")


def status_of(error: BaseException) -> int:
    if not isinstance(error, Exception):
        return LEFT
    return next((status for kinds, status in _STATUSES if isinstance(error, kinds)), 500)


_OUTCOMES: Final[Mapping[int, str]] = {
    408: "timeout",
    429: "unavailable",
    LEFT: "left",
    503: "unavailable",
    504: "timeout",
}
_STATUSES: Final[tuple[tuple[tuple[type[Exception], ...], int], ...]] = (
    ((Overloaded, BatcherClosed, ShutDown, BackendUnavailable, ReplicaDied), 503),
    ((DeadlineExceeded, HandlerTimeout, SlowReader), 504),
    ((ItemTooLarge, NoSuchModel, NoSuchName), 400),
)


NO_ENDPOINT = "-"
"""The endpoint label of requests that no endpoint answered."""


class ItemTimes:
    def __init__(self) -> None:
        self.first = Histogram(TIME_BOUNDS_S)  # from the request, once its body was read
        self.between = Histogram(TIME_BOUNDS_S)  # from each item to the next one

    def clock(self, now: Callable[[], float]) -> Callable[[], None]:
        """Starts the clock of one stream; the returned function counts an item."""
        # A generator keeps its state in half as many steps as an object.
        ticks = self._ticks(now)
        next(ticks)
        return ticks.__next__

    def _ticks(self, now: Callable[[], float]) -> Iterator[None]:
        last = now()
        yield
        arrived_at = now()
        self.first.gather((arrived_at - last,))
        while True:
            last = arrived_at
            yield
            arrived_at = now()
            self.between.gather((arrived_at - last,))
