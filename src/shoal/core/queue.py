"""Ordered queues of requests, from which any request can leave in O(1).

A request that leaves is not searched for: its state shows that it no longer waits, and its entry, a
leftover, is skipped when its turn comes. A queue is swept when more than half of its entries are
leftovers, so callers that arrive and leave behind a busy slot can't make it grow.

There are three queues: by arrival, which is a deque; by any rank, which is a heap; and by priority
level and arrival. The last one has the order of a heap of all requests, at lower cost: the requests
of a level are in order of arrival, so only the first of each level is compared with the others.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from shoal.core.request import Request, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shoal.core.amount import Amount

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
    def take(self, room: Amount) -> list[Request]:
        """Removes and returns requests in order, until the next one does not fit into `room`."""

    @abstractmethod
    def pop(self) -> None: ...

    @abstractmethod
    def put_back(self, requests: Sequence[Request]) -> None: ...

    @abstractmethod
    def sweep(self) -> None: ...

    @abstractmethod
    def clear(self) -> None: ...

    @abstractmethod
    def __len__(self) -> int:
        """Includes leftovers."""

    def is_led_by(self, request: Request) -> bool:
        return self.first() is request

    @abstractmethod
    def __iter__(self) -> Iterator[Request]: ...


class ArrivalQueue(Queue):
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

    def take(self, room: Amount) -> list[Request]:
        most, most_cost = room
        entries, state = self.entries, self._state
        taken: list[Request] = []
        cost: float = 0
        while entries:
            request = entries[0]
            if request.state is state:
                asked = request.options
                cost += 1 if asked is None else asked.cost
                if cost > most_cost or len(taken) >= most:
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

    def __iter__(self) -> Iterator[Request]:
        return iter([request for request in self.entries if request.state is self._state])


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

    def take(self, room: Amount) -> list[Request]:
        most, most_cost = room
        heap, heappop = self._heap, heapq.heappop
        taken: list[Request] = []
        cost: float = 0
        while heap:
            _rank, number, request = heap[0]
            asked = request.options
            assert asked is not None
            if asked.number == number and request.state is QUEUED:
                cost += asked.cost
                if cost > most_cost or len(taken) >= most:
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


class LevelQueue(Queue):
    """A queue by priority level, and by arrival within each level."""

    # Invariants: `_heads` has one entry for each lane, and no lane is empty. An entry refers to a
    # request that is or was the first of its lane, so it never sorts behind the current first one.

    __slots__ = ("_heads", "_lanes", "_places", "_rank")

    def __init__(self, rank: Callable[[Request], Any]) -> None:
        self._rank = rank
        # By level; the delayed requests of a level have their own lane, under the negated level.
        self._lanes: dict[int, deque[Request]] = {}
        self._heads: list[tuple[Any, int, int]] = []
        self._places = 0

    def push(self, request: Request) -> None:
        asked = request.options
        assert asked is not None
        key = asked.priority if asked.delayed_at is None else -asked.priority
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = deque((request,))
            heapq.heappush(self._heads, (*self._place(request), key))
        elif asked.delayed_at is None or _delay(lane[-1]) <= asked.delayed_at:
            lane.append(request)
        else:  # it was delayed before, and is added again after a change of options
            insort(lane, request, key=_delay)
        self._places += 1

    def first(self) -> Request | None:
        lane = self._first_lane()
        return None if lane is None else lane[0]

    def take(self, room: Amount) -> list[Request]:
        most, most_cost = room
        taken: list[Request] = []
        cost: float = 0
        while (lane := self._first_lane()) is not None:
            _rank, _number, key = self._heads[0]
            # Until the first of another lane is ahead.
            bound = min(self._heads[1:3]) if len(self._heads) > 1 else None
            while lane:
                request = lane[0]
                asked = request.options
                assert asked is not None
                if request.state is QUEUED and (asked.delayed_at is not None) == (key < 0):
                    if bound is not None and (self._rank(request), asked.number) > bound[:2]:
                        break
                    cost += asked.cost
                    if cost > most_cost or len(taken) >= most:
                        return taken
                    taken.append(request)
                lane.popleft()
                self._places -= 1
            else:
                heapq.heappop(self._heads)
                del self._lanes[key]
        return taken

    def pop(self) -> None:
        self._lanes[self._heads[0][2]].popleft()
        self._places -= 1

    def put_back(self, requests: Sequence[Request]) -> None:
        for request in reversed(requests):
            self._lanes.setdefault(_lane_of(request), deque()).appendleft(request)
        self._places += len(requests)
        self._order()

    def sweep(self) -> None:
        waiting = {
            key: deque(request for request in lane if _is_in_lane(request, key))
            for key, lane in self._lanes.items()
        }
        self._lanes = waiting
        self._places = sum(map(len, waiting.values()))
        self._order()

    def clear(self) -> None:
        self._lanes.clear()
        self._heads.clear()
        self._places = 0

    def __len__(self) -> int:
        return self._places

    def __iter__(self) -> Iterator[Request]:
        waiting = [
            request
            for key, lane in self._lanes.items()
            for request in lane
            if _is_in_lane(request, key)
        ]
        return iter(sorted(waiting, key=self._place))

    def _order(self) -> None:
        self._lanes = {key: lane for key, lane in self._lanes.items() if lane}
        self._heads = [(*self._place(lane[0]), key) for key, lane in self._lanes.items()]
        heapq.heapify(self._heads)

    def _first_lane(self) -> deque[Request] | None:
        heads = self._heads
        while heads:
            rank, number, key = heads[0]
            lane = self._lanes[key]
            while lane and not _is_in_lane(lane[0], key):
                lane.popleft()
                self._places -= 1
            if not lane:
                heapq.heappop(heads)
                del self._lanes[key]
            elif len(heads) == 1 or (now := self._place(lane[0])) == (rank, number):
                return lane
            else:
                heapq.heapreplace(heads, (*now, key))
        return None

    def _place(self, request: Request) -> tuple[Any, int]:
        asked = request.options
        assert asked is not None
        return self._rank(request), asked.number


def _delay(request: Request) -> float:
    asked = request.options
    assert asked is not None
    assert asked.delayed_at is not None
    return asked.delayed_at


def _lane_of(request: Request) -> int:
    asked = request.options
    assert asked is not None
    return asked.priority if asked.delayed_at is None else -asked.priority


def _is_in_lane(request: Request, key: int) -> bool:
    """Returns whether a request waits in this lane; a negative key is that of delayed requests."""
    asked = request.options
    assert asked is not None
    return request.state is QUEUED and (asked.delayed_at is not None) == (key < 0)
