"""A queue by priority level, and by arrival within each level: one deque per level.

Its order is that of a heap of all requests, at lower cost: the requests of a level are in order of
arrival, so only the first of each level has to be compared with the others.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Any

from shoal.core.queues.queue import Queue
from shoal.core.request import Request, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

QUEUED = State.QUEUED


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
            heapq.heappush(self._heads, (self._rank(request), asked.number, key))
        elif asked.delayed_at is None or _delay(lane[-1]) <= asked.delayed_at:
            lane.append(request)
        else:  # it was delayed before, and is added again after a change of options
            insort(lane, request, key=_delay)
        self._places += 1

    def first(self) -> Request | None:
        lane = self._first_lane()
        return None if lane is None else lane[0]

    def take(self, room: float) -> list[Request]:
        taken: list[Request] = []
        total: float = 0
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
                    total += asked.cost
                    if total > room:
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

    def is_led_by(self, request: Request) -> bool:
        return self.first() is request

    def __iter__(self) -> Iterator[Request]:
        waiting = [
            request
            for key, lane in self._lanes.items()
            for request in lane
            if _is_in_lane(request, key)
        ]
        return iter(sorted(waiting, key=self._place))

    def _order(self) -> None:
        """Drops the empty lanes, and sorts the others."""
        self._lanes = {key: lane for key, lane in self._lanes.items() if lane}
        self._heads = [(*self._place(lane[0]), key) for key, lane in self._lanes.items()]
        heapq.heapify(self._heads)

    def _first_lane(self) -> deque[Request] | None:
        """Returns the lane that has the first request of the queue."""
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
