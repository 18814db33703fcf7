"""Ordered queues of requests, from which any request can leave in O(1).

A request that leaves is not searched for: its state tells that it no longer waits, and its entry, a
leftover, is skipped when its turn comes. A queue is swept when more than half of its entries are
leftovers, so callers that arrive and leave behind a busy slot can't make it grow.

There are three queues: by arrival, which is a deque; by any rank, which is a heap; and by priority
level and arrival (`level_queue`).
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from shoal.core.request import Request, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

QUEUED = State.QUEUED
LEFTOVERS_WORTH_A_SWEEP: Final = 64


class Queue(ABC):
    """An ordered queue of requests; entries of requests that no longer wait are leftovers."""

    __slots__ = ()

    @abstractmethod
    def push(self, request: Request) -> None: ...

    @abstractmethod
    def first(self) -> Request | None:
        """Drops leftovers before the first request, and returns it."""

    @abstractmethod
    def take(self, room: float) -> list[Request]:
        """Removes and returns requests in order, while the sum of their costs is within `room`."""

    @abstractmethod
    def pop(self) -> None:
        """Removes the request that `first` returned."""

    @abstractmethod
    def put_back(self, requests: Sequence[Request]) -> None:
        """Puts the last removed requests back to their old positions."""

    @abstractmethod
    def sweep(self) -> None: ...

    @abstractmethod
    def clear(self) -> None: ...

    @abstractmethod
    def __len__(self) -> int:
        """Includes leftovers."""

    @abstractmethod
    def is_led_by(self, request: Request) -> bool:
        """Returns whether a request that has just been pushed is the first."""

    @abstractmethod
    def __iter__(self) -> Iterator[Request]: ...


class ArrivalQueue(Queue):
    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: deque[Request] = deque()

    def push(self, request: Request) -> None:
        self.entries.append(request)

    def first(self) -> Request | None:
        entries = self.entries
        while entries:
            if entries[0].state is QUEUED:
                return entries[0]
            entries.popleft()
        return None

    def take(self, room: float) -> list[Request]:
        entries = self.entries
        taken: list[Request] = []
        total: float = 0
        while entries:
            request = entries[0]
            if request.state is QUEUED:
                asked = request.options
                total += 1 if asked is None else asked.cost
                if total > room:
                    break
                taken.append(request)
            entries.popleft()
        return taken

    def pop(self) -> None:
        self.entries.popleft()

    def put_back(self, requests: Sequence[Request]) -> None:
        self.entries.extendleft(reversed(requests))

    def sweep(self) -> None:
        waiting = list(self)
        self.entries.clear()
        self.entries.extend(waiting)

    def clear(self) -> None:
        self.entries.clear()

    def __len__(self) -> int:
        return len(self.entries)

    def is_led_by(self, request: Request) -> bool:
        return self.first() is request

    def __iter__(self) -> Iterator[Request]:
        return iter([request for request in self.entries if request.state is QUEUED])


class RankedQueue(Queue):
    """A queue by rank, lowest first, and by arrival among equals."""

    # A pushed request must have a number higher than all earlier ones. A request that gets a new
    # number and is pushed again is placed by its current rank, and its old entry becomes a
    # leftover.

    __slots__ = ("_heap", "_rank")

    def __init__(self, rank: Callable[[Request], Any]) -> None:
        self._rank = rank
        self._heap: list[tuple[Any, int, Request]] = []

    def push(self, request: Request) -> None:
        asked = request.options
        assert asked is not None
        heapq.heappush(self._heap, (self._rank(request), asked.number, request))

    def first(self) -> Request | None:
        heap = self._heap
        while heap:
            entry = heap[0]
            if _waits(entry):
                return entry[2]
            heapq.heappop(heap)
        return None

    def take(self, room: float) -> list[Request]:
        heap, heappop = self._heap, heapq.heappop
        taken: list[Request] = []
        total: float = 0
        while heap:
            _rank, number, request = heap[0]
            asked = request.options
            assert asked is not None
            if asked.number == number and request.state is QUEUED:
                total += asked.cost
                if total > room:
                    break
                taken.append(request)
            heappop(heap)
        return taken

    def pop(self) -> None:
        heapq.heappop(self._heap)

    def put_back(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.push(request)

    def sweep(self) -> None:
        self._heap = [entry for entry in self._heap if _waits(entry)]
        heapq.heapify(self._heap)

    def clear(self) -> None:
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._heap)

    def is_led_by(self, request: Request) -> bool:
        return self._heap[0][2] is request or self.first() is request

    def __iter__(self) -> Iterator[Request]:
        return iter([entry[2] for entry in sorted(self._heap) if _waits(entry)])


def is_worth_a_sweep(queue: Queue, live: int) -> bool:
    """Returns whether the leftovers of a queue outnumber its `live` requests."""
    return len(queue) - live > max(live, LEFTOVERS_WORTH_A_SWEEP)


def _waits(entry: tuple[Any, int, Request]) -> bool:
    request = entry[2]
    assert request.options is not None
    return request.state is QUEUED and request.options.number == entry[1]
