"""Histograms with fixed bounds, and those of the times of requests and of the items of streams."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
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
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence


SIZE_BOUNDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""Upper bounds of the batch size histogram, in requests."""

TIME_BOUNDS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
)  # fmt: skip
"""Upper bounds of the wait and run time histograms, in seconds."""


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
    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        counts, bounds = self._counts, self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self._sum += sum(values)

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(self._bounds, tuple(self._counts), sum(self._counts), self._sum)


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
        self._series: dict[tuple[str, str, str], Histogram] = {}

    def count(self, endpoint: str, protocol: str, status: int, took_s: float) -> None:
        """Counts an ended request; `status` may be `LEFT`."""
        key = endpoint, protocol, _OUTCOMES.get(status) or outcome_of(status)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Histogram(TIME_BOUNDS_S)
        series.observe(took_s)

    def __iter__(self) -> Iterator[TimesOfOne]:
        for (endpoint, protocol, outcome), series in self._series.items():
            yield TimesOfOne(endpoint, protocol, outcome, series.snapshot())

    def keep(self, endpoints: Container[str]) -> None:
        for key in [key for key in self._series if key[0] not in endpoints]:
            del self._series[key]


def outcome_of(status: int) -> str:
    if status < 400:
        return "ok"
    return _OUTCOMES.get(status) or ("invalid" if status < 500 else "failed")


def status_of(error: BaseException) -> int:
    if not isinstance(error, Exception):
        return LEFT
    return next((status for kinds, status in _STATUSES if isinstance(error, kinds)), 500)


_OUTCOMES: Final[Mapping[int, str]] = {
    200: "ok",
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
        last, times = now(), self.first

        def tick() -> None:
            nonlocal last, times
            arrived_at = now()
            times.observe(arrived_at - last)
            last, times = arrived_at, self.between

        return tick


class StreamTimes:
    def __init__(self) -> None:
        self._times: dict[str, ItemTimes] = {}

    def of(self, endpoint: str) -> ItemTimes:
        times = self._times.get(endpoint)
        if times is None:
            times = self._times[endpoint] = ItemTimes()
        return times

    def keep(self, endpoints: Container[str]) -> None:
        self._times = {name: times for name, times in self._times.items() if name in endpoints}

    def __iter__(self) -> Iterator[tuple[str, ItemTimes]]:
        return iter(self._times.items())
