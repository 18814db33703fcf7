"""The times of streams; those of requests and calls are counted by the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.core.histogram import MOST_NEW, TIME_BOUNDS_S, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

NO_ENDPOINT = "-"
"""The endpoint label of requests that no endpoint answered."""


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

    __slots__ = ("_has_come", "_last", "_new_gaps", "_now", "_times")

    def __init__(self, times: ItemTimes, now: Callable[[], float]) -> None:
        self._times = times
        self._new_gaps = times.between.new
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
            if len(new_gaps) >= MOST_NEW:
                self._times.between.count_new()
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
