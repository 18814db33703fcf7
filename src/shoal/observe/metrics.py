"""The counts of HTTP responses, and the times of streams; those of calls are the engine's."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shoal.core.counters import TIME_BOUNDS_S, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        between: The times from each item to the next one, in seconds.
    """

    def __init__(self) -> None:
        self.first = Histogram(TIME_BOUNDS_S)
        self.between = Histogram(TIME_BOUNDS_S)

    def clock(self, now: Callable[[], float]) -> ItemClock:
        """Returns the clock of one stream, which starts now.

        Args:
            now: The event loop's clock.
        """
        return ItemClock(self, now)


class ItemClock:
    """Counts when the items of one stream come."""

    __slots__ = ("_between", "_last", "_now", "_observe")

    def __init__(self, times: ItemTimes, now: Callable[[], float]) -> None:
        self._between = times.between.observe
        self._now = now
        self._observe = times.first.observe
        self._last = now()

    def tick(self) -> None:
        """Counts an item that has come now."""
        now = self._now()
        self._observe(now - self._last)
        self._observe = self._between
        self._last = now


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

    def __iter__(self) -> Iterator[tuple[str, ItemTimes]]:
        """Yields each endpoint that had a stream, and its times."""
        return iter(self._times.items())
