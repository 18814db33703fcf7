"""The times of streams; those of requests and calls are counted by the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.core.histogram import MOST_NEW, TIME_BOUNDS_S, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

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
        self.first.observe(arrived_at - last)
        between = self.between
        new = between.new
        while True:
            last = arrived_at
            yield
            arrived_at = now()
            new.append(arrived_at - last)
            if len(new) >= MOST_NEW:
                between.count_new()


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
