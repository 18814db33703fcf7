"""The rule for one bucket of requests that are not all alike: ranks, costs, limits and windows.

It generalizes `SizeOrWait`. A batch is *full* by its requests, their cost or at a preferred size,
and the *wait* depends on the level, on an idle timeout or on a latency target (`Filling`). The
*order* is by rank, the lowest first. A request that does not fit stays first in the queue; nothing
overtakes it, or a large item might never find room.

Ageing needs no reordering. A request's level improves by one for each ``priority_aging_s`` that it
has waited, so of two requests the one with the lower ``arrived_at + level * priority_aging_s`` is
ahead at any time. The order does not change while they wait, so a heap can keep it. A delayed
request is ranked as if it had arrived when it was delayed, one level lower.

Each step costs O(log n) in the number of waiting requests, or O(1) in order of arrival.

Invariants:
    ``count`` is the number of requests in the queue in the state QUEUED; ``cost`` is the sum of
    their costs.
    ``asleep_until`` is when the slot that waits here decides again; minus infinity if none waits.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from shoal.core.options.mixes import queue_policies_of
from shoal.core.policies.rule import Rule
from shoal.core.policy import Dispatch, Wait
from shoal.core.queue import Amount, ArrivalQueue, RankedQueue, cost_of, is_worth_a_sweep, take_from
from shoal.core.request import DispatchReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shoal.core.options.options import BatchOptions
    from shoal.core.policies.sizing import Filling
    from shoal.core.policy import Pressure
    from shoal.core.request import Request

    Rank = Callable[[Request], Any]

NOBODY_WAITS: Final = -math.inf
DUE_NOW: Final = -math.inf
# Before any time, so that only a batch that is `DUE_NOW` wakes the slot.
_UNTIL_FULL: Final = -sys.float_info.max


class Ranked(Rule):
    def __init__(
        self,
        rank: Rank | None,
        filling: Filling,
        numbers: Iterator[int],
    ) -> None:
        self.queue = ArrivalQueue() if rank is None else RankedQueue(rank)
        by_due = filling.by_due()
        both_by_arrival = rank is None and isinstance(by_due, ArrivalQueue)
        self._by_due = self.queue if both_by_arrival or by_due is None else by_due
        self._has_two_queues = self._by_due is not self.queue
        self._filling = filling
        self._numbers = numbers
        self._newest_at = NOBODY_WAITS
        self._most = filling.limit.requests
        self._target_cost: float = 0
        self.count = 0
        self.cost: float = 0
        # When the waiting slot decides again.
        self.asleep_until = NOBODY_WAITS

    def hold(self) -> None:
        self.asleep_until = _UNTIL_FULL

    def add(self, request: Request) -> bool:
        self.put(request)
        asleep_until = self.asleep_until
        return asleep_until != NOBODY_WAITS and self.due_at(request.arrived_at) < asleep_until

    def put(self, request: Request) -> None:
        """Adds a request without checking whether a slot must be woken."""
        asked = request.options
        assert asked is not None
        asked.number = next(self._numbers)
        self.queue.push(request)
        if self._has_two_queues:
            self._by_due.push(request)
        self._newest_at = request.arrived_at
        self.count += 1
        self.cost += asked.cost
        if (adaptive := self._filling.adaptive) is not None:
            adaptive.arrived(request.arrived_at)

    def remove(self, request: Request) -> None:
        self.count -= 1
        # Sums of fractions accumulate rounding errors; an empty queue is reset to exactly 0.
        self.cost = self.cost - request.cost if self.count else 0
        self._tidy()

    def demote(self, request: Request) -> bool:
        if isinstance(self.queue, ArrivalQueue):
            return False
        asked = request.options
        assert asked is not None
        asked.number = next(self._numbers)
        self.queue.push(request)
        if isinstance(self._by_due, RankedQueue) and self._has_two_queues:
            self._by_due.push(request)
        self._tidy()
        return True

    def due_at(self, now: float) -> float:
        """Returns when a batch is due as things are now; minus infinity if it is full."""
        if self.count >= self._most or self.cost >= self._filling.enough(self.cost):
            return DUE_NOW
        return self._due(now)[0]

    def cost_of_all(self) -> float:
        return self.cost

    def head(self) -> Request | None:
        return self.queue.first()

    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        self.asleep_until = NOBODY_WAITS
        self._tidy()
        if not self.count:
            return Wait(None, 1)
        due, reason = self._due(now)
        if self.count >= self._most or self.cost >= self._filling.enough(self.cost):
            waits = pressure is None and due > now
            self._target_cost = self._filling.target(self.cost, self._costs, waits=waits)
            if self._target_cost:
                return Dispatch(self.count, DispatchReason.FULL)
        if pressure is not None or due <= now:
            self._target_cost = self._filling.target(self.cost, self._costs, waits=False)
            return Dispatch(self.count, reason if pressure is None else pressure.reason)
        self.asleep_until = due
        return Wait(None if due == math.inf else due)

    def take(self, dispatch: Dispatch) -> list[Request]:
        taken = self.take_within(Amount(self._most, self._target_cost))
        if not taken:  # the first request costs more than the target
            first = self.queue.first()
            assert first is not None
            taken = self.take_within(Amount(1, first.cost))
        return taken

    def take_within(self, room: Amount) -> list[Request]:
        taken = take_from(self.queue, room)
        self.count -= len(taken)
        if self.count:
            self.cost -= sum([request.options.cost for request in taken if request.options])
        else:
            # Drops references to ended requests.
            self.cost = 0
            self.queue.clear()
            self._by_due.clear()
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        self.queue.put_back(requests)
        if not self.count and self._has_two_queues:
            for request in sorted(requests, key=attrgetter("arrived_at")):
                self._by_due.push(request)
        self.count += len(requests)
        self.cost += cost_of(requests)

    def insert(self, request: Request) -> None:
        asked = request.options
        assert asked is not None
        if not asked.number:  # options have changed, and its record was made again
            asked.number = -next(self._numbers)
        self.queue.insert(request)
        if self._has_two_queues:
            self._by_due.insert(request)
        self.count += 1
        self.cost += asked.cost

    def waiting(self) -> Iterable[Request]:
        return self.queue

    def _due(self, now: float) -> tuple[float, DispatchReason]:
        first = self._by_due.first()
        assert first is not None
        return self._filling.due(first, self._newest_at, self.count, self.cost, now)

    def _costs(self, most_cost: float) -> list[float]:
        seen: list[Request] = []
        total: float = 0
        while total <= most_cost and (first := self.queue.first()) is not None:
            self.queue.pop()
            seen.append(first)
            total += first.cost
        self.queue.put_back(seen)
        return [request.cost for request in seen]

    def _tidy(self) -> None:
        for queue in (self.queue, self._by_due):
            if is_worth_a_sweep(queue, self.count) or (not self.count and len(queue)):
                queue.sweep()


def rank_of(options: BatchOptions) -> Rank | None:
    """Returns the function that ranks requests; None for the order of arrival."""
    by_deadline = options.order == "deadline"
    may_delay = any(one.timeout_action == "delay" for one in queue_policies_of(options))
    if options.priority_levels == 1 and not by_deadline and not may_delay:
        return None
    aging_s = options.priority_aging_s
    if aging_s is None or aging_s == math.inf:
        return partial(_strict, by_deadline)
    return partial(_aged, by_deadline, aging_s)


def _strict(by_deadline: bool, request: Request) -> tuple[int, bool, float]:
    asked = request.options
    assert asked is not None
    due = math.inf if asked.due is None else asked.due
    then = due if by_deadline else asked.delayed_at or 0
    return asked.priority, asked.delayed_at is not None, then


def _aged(by_deadline: bool, aging_s: float, request: Request) -> float:
    asked = request.options
    assert asked is not None
    due = asked.due if by_deadline else None
    if due is None:
        due = request.arrived_at + aging_s
    if asked.delayed_at is None:
        return due + (asked.priority - 1) * aging_s
    return max(due, asked.delayed_at + aging_s) + asked.priority * aging_s
