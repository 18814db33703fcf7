"""One bucket of requests that are not all alike: in an order, with costs, sizes and a window.

It is the rule of size or wait once more, with each of its words made wider: *full* by what the
costs sum up to or by a size that is worth sending (`sizing`), *the wait* by level, until idle or by
a latency target (`windows`), *in order* by rank (`ranks`). What does not fit stays first in line;
nothing overtakes it, or a large item might never find room.

Each of its steps costs O(log n) in the number of requests that wait, or O(1) in order of arrival.

Invariants:
    ``count`` == number of requests in the queue in the state QUEUED; ``size`` == the sum of their
    costs.
    ``asleep_until`` is when a slot that waits here decides again; minus infinity if none waits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shoal.core.batch import DispatchReason
from shoal.core.policies.rule import Rule
from shoal.core.policy import Dispatch, Wait
from shoal.core.queues.level_queue import LevelQueue
from shoal.core.queues.queue import ArrivalQueue, RankedQueue, is_worth_a_sweep
from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shoal.core.policies.adaptive import AdaptiveRule
    from shoal.core.policies.ranks import Rank
    from shoal.core.policies.sizing import Sizing
    from shoal.core.policies.windows import Window
    from shoal.core.policy import Pressure
    from shoal.core.queues.queue import Queue
    from shoal.core.request import Request

QUEUED = State.QUEUED
NOBODY_WAITS = -math.inf


class Ranked(Rule):
    """A rule for one bucket.

    Args:
        rank: What requests are ordered by; None for their arrival.
        sizing: How much goes into one batch.
        window: How long requests wait for company.
        adaptive: What wants to know of each arrival; None for nothing.
        numbers: Gives each arrival its number.
        by_level: Whether the requests of one level are in order of arrival by their ranks.

    Attributes:
        queue: Those that wait, in order.
        count: How many requests wait.
        size: What their costs sum up to.
        asleep_until: When a slot that waits decides again, in seconds.
    """

    __slots__ = (
        "_adaptive",
        "_by_due",
        "_has_two_batchers",
        "_newest_at",
        "_numbers",
        "_sizing",
        "_target",
        "_window",
        "asleep_until",
        "count",
        "queue",
        "size",
    )

    def __init__(
        self,
        rank: Rank | None,
        sizing: Sizing,
        window: Window,
        adaptive: AdaptiveRule | None,
        numbers: Iterator[int],
        *,
        by_level: bool,
    ) -> None:
        self.queue: Queue = ArrivalQueue()
        if rank is not None:
            self.queue = (LevelQueue if by_level else RankedQueue)(rank)
        by_due = window.queue()
        both_by_arrival = rank is None and isinstance(by_due, ArrivalQueue)
        self._by_due = self.queue if both_by_arrival or by_due is None else by_due
        self._has_two_batchers = self._by_due is not self.queue
        self._sizing = sizing
        self._window = window
        self._adaptive = adaptive
        self._numbers = numbers
        self._newest_at = NOBODY_WAITS
        self._target: float = 0
        self.count = 0
        self.size: float = 0
        self.asleep_until = NOBODY_WAITS

    def add(self, request: Request) -> bool:
        self.put(request)
        if self.asleep_until == NOBODY_WAITS:
            return False
        return self.due_at(request.arrived_at) < self.asleep_until

    def put(self, request: Request) -> None:
        """Takes in a request, where somebody else knows who waits for it."""
        asked = request.options
        assert asked is not None
        asked.number = next(self._numbers)
        self.queue.push(request)
        if self._has_two_batchers:
            self._by_due.push(request)
        self._newest_at = request.arrived_at
        self.count += 1
        self.size += asked.cost
        if self._adaptive is not None:
            self._adaptive.arrived(request.arrived_at)

    def remove(self, request: Request) -> None:
        self.count -= 1
        # Sums of fractions drift; an empty line is 0 for certain.
        self.size = self.size - request.cost if self.count else 0
        self._tidy()

    def demote(self, request: Request) -> bool:
        if isinstance(self.queue, ArrivalQueue):
            return False
        asked = request.options
        assert asked is not None
        asked.number = next(self._numbers)
        self.queue.push(request)
        if isinstance(self._by_due, RankedQueue) and self._has_two_batchers:
            self._by_due.push(request)
        self._tidy()
        return True

    def due_at(self, now: float) -> float:
        """Returns when a batch leaves, as things are; the past if it is due."""
        if self.size >= self._sizing.enough(self.size):
            return NOBODY_WAITS
        return self._due(now)[0]

    def size_of_all(self) -> float:
        return self.size

    def head(self) -> Request | None:
        """Returns the request whose turn it is; None if nobody waits."""
        return self.queue.first()

    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        self.asleep_until = NOBODY_WAITS
        self._tidy()
        if not self.count:
            return Wait(None, 1)
        due, reason = self._due(now)
        if self.size >= self._sizing.enough(self.size):
            waits = pressure is None and due > now
            self._target = self._sizing.target(self.size, self._costs, waits=waits)
            if self._target:
                return Dispatch(self.count, DispatchReason.FULL)
        if pressure is not None or due <= now:
            self._target = self._sizing.target(self.size, self._costs, waits=False)
            return Dispatch(self.count, reason if pressure is None else pressure.reason)
        self.asleep_until = due
        return Wait(None if due == math.inf else due)

    def take(self, dispatch: Dispatch) -> list[Request]:
        taken = self.take_within(self._target)
        if not taken:  # the first is larger than the size to which a batch had better be cut back
            first = self.queue.first()
            assert first is not None
            taken = self.take_within(first.cost)
        return taken

    def take_within(self, room: float) -> list[Request]:
        taken = self.queue.take(room)
        self.count -= len(taken)
        if self.count:
            self.size -= sum([request.options.cost for request in taken if request.options])
        else:
            # What has ended is not kept for longer than others wait.
            self.size = 0
            self.queue.clear()
            self._by_due.clear()
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        self.queue.put_back(requests)
        if not self.count and self._has_two_batchers:
            for request in sorted(requests, key=_arrival):
                self._by_due.push(request)
        self.count += len(requests)
        self.size += sum(request.cost for request in requests)

    def waiting(self) -> Iterable[Request]:
        return self.queue

    def _due(self, now: float) -> tuple[float, DispatchReason]:
        first = self._by_due.first()
        assert first is not None
        return self._window.due(first, self._newest_at, self.count, self.size, now)

    def _costs(self, most: float) -> list[float]:
        seen: list[Request] = []
        total: float = 0
        while total <= most and (first := self.queue.first()) is not None:
            self.queue.pop()
            seen.append(first)
            total += first.cost
        self.queue.put_back(seen)
        return [request.cost for request in seen]

    def _tidy(self) -> None:
        for queue in (self.queue, self._by_due):
            if is_worth_a_sweep(queue, self.count) or (not self.count and len(queue)):
                queue.sweep()


def _arrival(request: Request) -> float:
    return request.arrived_at
