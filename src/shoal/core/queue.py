"""Ordered queues of requests, from which any request can leave in O(1).

A request that leaves is not searched for: its state shows that it no longer waits, and its entry, a
leftover, is skipped when its turn comes. A queue is swept when more than half of its entries are
leftovers, so callers that arrive and leave behind a busy slot can't make it grow.

There are two queues: by arrival, which is a deque; and by any rank, which is a heap.

What waits, what a batch may hold, and its room are amounts: a number of requests, and their cost
together. A batch is full when either part has reached its limit.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from shoal.core.request import Request, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shoal.core.request import Returned


class Amount(NamedTuple):
    # A limit may be infinite.
    requests: float
    cost: float

    def fits(self, requests: float, cost: float) -> bool:
        return requests <= self.requests and cost <= self.cost

    @property
    def is_used_up(self) -> bool:
        return self.requests <= 0 or self.cost <= 0

    def plus(self, requests: float, cost: float) -> Amount:
        return Amount(self.requests + requests, self.cost + cost)

    def minus(self, requests: float, cost: float) -> Amount:
        return Amount(self.requests - requests, self.cost - cost)

    def times(self, number: float) -> Amount:
        # 0 * infinity is not a number.
        return Amount(self.requests * number, self.cost * number) if number else NOTHING


NOTHING: Final = Amount(0, 0)


def cost_of(requests: Iterable[Request]) -> float:
    return sum([request.cost for request in requests])


QUEUED = State.QUEUED
LEFTOVERS_WORTH_A_SWEEP: Final = 64


class ArrivalQueue:
    """A queue by arrival; the requests that wait in it have the given state."""

    __slots__ = ("_state", "entries")

    def __init__(self, state: State = QUEUED) -> None:
        self._state = state
        self.entries: deque[Request] = deque()

    def push(self, request: Request) -> None:
        self.entries.append(request)

    def first(self) -> Request | None:
        entries, state = self.entries, self._state
        while entries:
            if entries[0].state is state:
                return entries[0]
            entries.popleft()
        return None

    def pop(self) -> None:
        self.entries.popleft()

    def put_back(self, requests: Sequence[Request]) -> None:
        self.entries.extendleft(reversed(requests))

    def insert(self, request: Request) -> None:
        entries, place = self.entries, _place(request)
        ahead: list[Request] = []  # of batches that were put back before
        while entries and _place(entries[0]) < place:
            ahead.append(entries.popleft())
        entries.appendleft(request)
        entries.extendleft(reversed(ahead))

    def sweep(self) -> None:
        waiting = list(self)
        self.entries.clear()
        self.entries.extend(waiting)

    def clear(self) -> None:
        self.entries.clear()

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Request]:
        return iter([request for request in self.entries if request.state is self._state])


class RankedQueue:
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

    def pop(self) -> None:
        heapq.heappop(self._heap)

    def put_back(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.push(request)

    def insert(self, request: Request) -> None:
        self.push(request)

    def sweep(self) -> None:
        self._heap = [entry for entry in self._heap if _waits(entry)]
        heapq.heapify(self._heap)

    def clear(self) -> None:
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return iter([entry[2] for entry in sorted(self._heap) if _waits(entry)])


Queue: TypeAlias = ArrivalQueue | RankedQueue
"""Its length includes leftovers; `first` drops those before the first request."""


def take_from(queue: Queue, room: Amount) -> list[Request]:
    """Removes and returns requests in order, until the next one does not fit into `room`."""
    taken: list[Request] = []
    cost: float = 0
    while (request := queue.first()) is not None:
        asked = request.options
        cost += 1 if asked is None else asked.cost
        if cost > room.cost or len(taken) >= room.requests:
            break
        queue.pop()
        taken.append(request)
    return taken


def is_worth_a_sweep(queue: Queue, live: int) -> bool:
    return len(queue) - live > max(live, LEFTOVERS_WORTH_A_SWEEP)


def _place(request: Request) -> tuple[float, float, int]:
    # Those that no batch has had are behind all others that arrived at that time.
    returned: Returned | None = getattr(request, "returned", None)
    if returned is None:
        return request.arrived_at, math.inf, 0
    return request.arrived_at, returned.batch, returned.place


def _waits(entry: tuple[Any, int, Request]) -> bool:
    request = entry[2]
    assert request.options is not None
    return request.state is QUEUED and request.options.number == entry[1]
