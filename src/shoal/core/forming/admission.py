"""Admission control for requests that are not all alike: which are refused, and which are shed.

`Former` has the rule for the whole queue: its bound.
"""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from shoal.core.options.mixes import queue_policies_of, sheds
from shoal.core.queue import LEFTOVERS_WORTH_A_SWEEP
from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.core.latency_model import LatencyModel
    from shoal.core.options.options import BatchOptions
    from shoal.core.request import Batch, Request

QUEUED = State.QUEUED


class Admission(NamedTuple):
    # Why it was refused; None if it was queued or parked.
    refusal: str | None = None
    # The request that was shed for it and has left the queue.
    victim: Request | None = None
    # Whether the waiting slot must be woken.
    ring: bool = False


QUIET: Final = Admission()
"""It was queued or parked, and no more is to be done."""
RINGING: Final = Admission(ring=True)


class AdmissionControl:
    """Bounds of priority levels, refusal of late calls, and shedding."""

    @classmethod
    def for_options(cls, options: BatchOptions, model: LatencyModel) -> AdmissionControl | None:
        """Returns None if a bound on the queue is the only rule."""
        is_needed = (
            options.refuse_late
            or sheds(options)
            or any(one.max_queued_requests is not None for one in queue_policies_of(options))
        )
        return cls(options, model) if is_needed else None

    def __init__(self, options: BatchOptions, model: LatencyModel) -> None:
        self._options = options
        self._model = model
        # How many requests of each level are queued or parked.
        self._by_level: Counter[int] = Counter()
        self._sheds = sheds(options)
        # Whether to shed the newest request of the lowest level, and only for a request of a higher
        # level. Otherwise the oldest is shed, also for a request of the same level.
        self._sheds_newest = options.overload == "shed_lowest"
        self._numbers = count()
        # The requests to shed: by level, the lowest first, by arrival, and by number. Requests that
        # left are dropped later; one that is queued again is as old as before.
        self._heap: list[tuple[int, float, int, Request]] = []

    def note_added(self, request: Request, live: int) -> None:
        self.note_returned(request)
        self.note_admitted(request, live)

    def note_returned(self, request: Request) -> None:
        self._by_level[request.priority] += 1

    def note_admitted(self, request: Request, live: int) -> None:
        if not self._sheds or request.state is not QUEUED:
            return
        sign = -1 if self._sheds_newest else 1
        at, number = sign * request.arrived_at, sign * next(self._numbers)
        heapq.heappush(self._heap, (-request.priority, at, number, request))
        if len(self._heap) - live > max(live, LEFTOVERS_WORTH_A_SWEEP):
            self._heap = [entry for entry in self._heap if entry[-1].state is QUEUED]
            heapq.heapify(self._heap)

    def note_left(self, request: Request) -> None:
        level = request.priority
        self._by_level[level] -= 1
        if not self._by_level[level]:
            del self._by_level[level]

    def tidy(self) -> None:
        self._heap.clear()

    def victim(self, request: Request) -> Request | None:
        """Returns the request to shed for a new one; None if the new one must be refused."""
        heap = self._heap
        while heap and heap[0][-1].state is not QUEUED:
            heapq.heappop(heap)
        if not heap:
            return None
        level = -heap[0][0]
        if level < request.priority or (self._sheds_newest and level == request.priority):
            return None
        return heap[0][-1]

    def full_level(self, request: Request) -> str | None:
        policy = self._options.queue_policy(request.priority)
        bound = None if policy is None else policy.max_queued_requests
        if bound is None or self._by_level[request.priority] < bound:
            return None
        return (
            f"{bound} requests of priority {request.priority} are waiting, the limit of the level"
        )

    def lateness(self, request: Request, cost: float, batches: Mapping[Batch, float]) -> str | None:
        # `cost` is that of the queued requests.
        # Only requests that certainly go first count as ahead, so that none is refused by mistake.
        # An idle batcher admits every request; otherwise it never learns that its handler has
        # become faster.
        if not batches and not self._by_level:
            return None
        due = None if request.options is None else request.options.due
        if due is None or not self._options.refuse_late:
            return None
        now, most = request.arrived_at, self._options.batch_limit.cost
        ahead = self._cost_ahead(request, cost)
        full_batches, rest = int(ahead // most), ahead % most
        full_s = self._model.run_s(min(most, ahead))
        own_s = self._model.run_s(min(most, rest + request.cost))
        if full_s is None or own_s is None:
            return None
        # The requests ahead need no more slots than that.
        slots = int(min(self._options.slots, len(batches) + full_batches + 1))
        free = _free_times(batches, now, slots, self._model)
        slot = full_batches % len(free)
        end = free[slot] + full_batches // len(free) * full_s + own_s
        if end <= due:
            return None
        return (
            f"the call would end {end - now:.3g} s from now, "
            f"and is due in {max(0.0, due - now):.3g} s"
        )

    def _cost_ahead(self, request: Request, waiting_cost: float) -> float:
        options = self._options
        if options.order == "deadline" or options.bucket_by is not None or not waiting_cost:
            return 0
        if options.priority_levels == 1:
            return waiting_cost
        ahead = sum(n for level, n in self._by_level.items() if level <= request.priority)
        return ahead * waiting_cost / sum(self._by_level.values())


def _free_times(
    batches: Mapping[Batch, float], now: float, slots: int, model: LatencyModel
) -> list[float]:
    ends = [max(now, since + (model.run_s(batch.load) or 0)) for batch, since in batches.items()]
    return sorted([*ends, *[now] * (slots - len(ends))])
