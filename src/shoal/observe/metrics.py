"""The counts of HTTP responses, and the times of streams; those of calls are the engine's."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from shoal.core.counters import TIME_BOUNDS_S, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

_MOST_NEW_GAPS: Final = 256

NO_ENDPOINT = "-"
"""The endpoint label of responses that no endpoint gave."""


class AnswerCounts:
    """Counts HTTP responses by endpoint and class of status."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()

    def count(self, endpoint: str, status: int) -> None:
        """Counts one response.

        Args:
            endpoint: The endpoint's name, or `NO_ENDPOINT`.
            status: The response's HTTP status.
        """
        self._counts[endpoint, status] += 1

    def keep(self, endpoints: Container[str]) -> None:
        """Forgets the responses of other endpoints, which were deleted."""
        for endpoint, status in list(self._counts):
            if endpoint != NO_ENDPOINT and endpoint not in endpoints:
                del self._counts[endpoint, status]

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """Yields the endpoint, status class (``"2xx"``) and count of each pair counted so far."""
        by_class: Counter[tuple[str, int]] = Counter()
        for (endpoint, status), count in self._counts.items():
            by_class[endpoint, status // 100] += count
        for (endpoint, hundreds), count in by_class.items():
            yield endpoint, f"{hundreds}xx", count


class ItemTimes:
    """When the items of one endpoint's streams came.

    Attributes:
        first: The times from the request, once its body was read, to the first item, in seconds.
        new_gaps: Times between items that `between` has not counted yet. They are counted together,
            which is a third of the cost of an item's times.
    """

    def __init__(self) -> None:
        self.first = Histogram(TIME_BOUNDS_S)
        self.new_gaps: list[float] = []
        self._between = Histogram(TIME_BOUNDS_S)

    @property
    def between(self) -> Histogram:
        """The times from each item to the next one, in seconds."""
        self.count_new_gaps()
        return self._between

    def count_new_gaps(self) -> None:
        """Counts the times that were not counted yet."""
        self._between.observe_all(self.new_gaps)
        self.new_gaps.clear()

    def clock(self, now: Callable[[], float]) -> ItemClock:
        """Returns the clock of one stream, which starts now.

        Args:
            now: The event loop's clock.
        """
        return ItemClock(self, now)


class ItemClock:
    """Counts when the items of one stream come."""

    __slots__ = ("_has_come", "_last", "_new_gaps", "_now", "_times")

    def __init__(self, times: ItemTimes, now: Callable[[], float]) -> None:
        self._times = times
        self._new_gaps = times.new_gaps
        self._now = now
        self._has_come = False
        self._last = now()

    def tick(self) -> None:
        """Counts an item that has come now."""
        now = self._now()
        gap = now - self._last
        self._last = now
        if self._has_come:
            new_gaps = self._new_gaps
            new_gaps.append(gap)
            if len(new_gaps) >= _MOST_NEW_GAPS:
                self._times.count_new_gaps()
        else:
            self._has_come = True
            self._times.first.observe(gap)


class StreamTimes:
    """The times of streams, by endpoint."""

    def __init__(self) -> None:
        self._times: dict[str, ItemTimes] = {}

    def of(self, endpoint: str) -> ItemTimes:
        """Returns those of an endpoint."""
        times = self._times.get(endpoint)
        if times is None:
            times = self._times[endpoint] = ItemTimes()
        return times

    def keep(self, endpoints: Container[str]) -> None:
        """Forgets the times of other endpoints, which were deleted."""
        self._times = {name: times for name, times in self._times.items() if name in endpoints}

    def __iter__(self) -> Iterator[tuple[str, ItemTimes]]:
        """Yields each endpoint that had a stream, and its times."""
        return iter(self._times.items())
