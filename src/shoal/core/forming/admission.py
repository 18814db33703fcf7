"""Admission: who is let into a full queue, who makes room there, and who waits outside.

`AdmissionControl` has the rules for requests that are not all alike, `Shedding` finds those that
make room, and `Parked` holds those that wait to be let in, in order of arrival.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal.core.batch import Batch
    from shoal.core.latency_model import LatencyModel
    from shoal.core.options.options import BatchOptions
    from shoal.core.request import Request

QUEUED = State.QUEUED
_LEFTOVERS_WORTH_A_SWEEP: Final = 64


class Shedding:
    """Finds the request that is to be shed for a newcomer.

    Args:
        newest: Whether the newest of the lowest level goes, and only for a newcomer of a higher
            level; else it is the oldest, also for a newcomer of the same level.
    """

    __slots__ = ("_by_level", "_levels", "_newest", "_places")

    def __init__(self, *, newest: bool) -> None:
        self._newest = newest
        self._by_level: dict[int, deque[Request]] = {}
        # The levels of `_by_level`, each negated, so that the lowest comes first.
        self._levels: list[int] = []
        self._places = 0

    def add(self, request: Request, live: int) -> None:
        """Takes in a request that waits from now on, beside `live` others."""
        level = request.priority
        queue = self._by_level.get(level)
        if queue is None:
            queue = self._by_level[level] = deque()
            heapq.heappush(self._levels, -level)
        queue.append(request)
        self._places += 1
        if self._places - live > max(live, _LEFTOVERS_WORTH_A_SWEEP):
            self._sweep()

    def victim(self, newcomer: Request) -> Request | None:
        """Returns the request that makes room for a newcomer; None if the newcomer must go."""
        while self._levels:
            level = -self._levels[0]
            queue = self._by_level[level]
            while queue and queue[-1 if self._newest else 0].state is not QUEUED:
                self._drop(queue)
            if not queue:
                heapq.heappop(self._levels)
                del self._by_level[level]
                continue
            if level < newcomer.priority or (self._newest and level == newcomer.priority):
                return None
            return queue[-1 if self._newest else 0]
        return None

    def clear(self) -> None:
        """Forgets what has ended, when nobody waits any more."""
        self._by_level.clear()
        self._levels.clear()
        self._places = 0

    def _drop(self, queue: deque[Request]) -> None:
        self._places -= 1
        if self._newest:
            queue.pop()
        else:
            queue.popleft()

    def _sweep(self) -> None:
        self._by_level = {
            level: deque(request for request in queue if request.state is QUEUED)
            for level, queue in self._by_level.items()
        }
        self._places = sum(map(len, self._by_level.values()))


class Admission(NamedTuple):
    """What became of a request that wanted to be let in.

    Attributes:
        refusal: Why it was not let in; None if it was.
        victim: The request that was shed for it; None for none. It has left the line.
        ring: Whether the slot that waits for requests must be woken.
    """

    refusal: str | None = None
    victim: Request | None = None
    ring: bool = False


class AdmissionControl:
    """Bounds of levels, calls that would be late, and who makes room for whom.

    Attributes:
        size: What the costs of the requests in line sum up to, without those that are parked.
    """

    @classmethod
    def for_options(cls, options: BatchOptions, model: LatencyModel) -> AdmissionControl | None:
        """Makes the control that the options need; None where a bound is the only rule."""
        policies = [*options.queue_policies.values(), options.default_queue_policy]
        is_needed = (
            options.refuse_late
            or options.overload in ("shed_oldest", "shed_lowest")
            or any(p is not None and p.max_queued_requests is not None for p in policies)
        )
        return cls(options, model) if is_needed else None

    def __init__(self, options: BatchOptions, model: LatencyModel) -> None:
        self._options = options
        self._model = model
        # How many requests of each level are in line or parked.
        self._by_level: dict[int, int] = {}
        self._shedding = (
            Shedding(newest=options.overload == "shed_lowest")
            if options.overload in ("shed_oldest", "shed_lowest")
            else None
        )
        self.size: float = 0

    def note_added(self, request: Request, live: int) -> None:
        """Notes that a request has been parked, or put in line beside `live` others."""
        self.note_returned(request)
        if request.state is State.QUEUED and self._shedding is not None:
            self._shedding.add(request, live)

    def note_returned(self, request: Request) -> None:
        """Notes that a request that was handed out is where it was."""
        level = request.priority
        self._by_level[level] = self._by_level.get(level, 0) + 1
        if request.state is State.QUEUED:
            self.size += request.cost

    def note_admitted(self, request: Request, live: int) -> None:
        """Notes that a request that was parked is in line, beside `live` others."""
        self.size += request.cost
        if self._shedding is not None:
            self._shedding.add(request, live)

    def note_left(self, request: Request, was: State) -> None:
        """Notes that a request has left the line, to a slot or for good, or was parked and left."""
        level = request.priority
        self._by_level[level] -= 1
        if not self._by_level[level]:
            del self._by_level[level]
        if was is State.QUEUED:
            # Sums of fractions drift; an empty line is 0 for certain.
            self.size = self.size - request.cost if self._by_level else 0

    def tidy(self) -> None:
        """Forgets what has ended, when nobody waits any more."""
        if self._shedding is not None:
            self._shedding.clear()

    def victim(self, newcomer: Request) -> Request | None:
        """Returns the request that makes room for a newcomer; None if none does."""
        return None if self._shedding is None else self._shedding.victim(newcomer)

    def full_level(self, request: Request, takes_at_once: float) -> str | None:
        """Says why a request's level has no room for it; None if it has.

        Args:
            request: The newcomer.
            takes_at_once: How much of the line slots are about to take.
        """
        policy = self._options.queue_policy(request.priority)
        bound = None if policy is None else policy.max_queued_requests
        if bound is None or self._by_level.get(request.priority, 0) < bound:
            return None
        if self.size + request.cost <= takes_at_once:
            return None
        return f"{bound} requests of priority {request.priority} are waiting, which is its bound"

    def lateness(self, request: Request, now: float, batches: Mapping[Batch, float]) -> str | None:
        """Says why a request can't end in time, by the run times measured; None if it may.

        Those who say that a request can't do so must not err, so only what is certain to go first
        counts as being ahead of it. And a batcher that has nothing to do lets anyone in, or it
        would never hear that its handler has become faster.
        """
        if not batches and not self._by_level:
            return None
        due = None if request.options is None else request.options.due
        if due is None or not self._options.refuse_late:
            return None
        most = self._options.max_batch_size
        full_s = self._model.run_s(most)
        if full_s is None:
            return None
        ahead = self._size_ahead(request)
        full_batches = int(ahead // most)
        own_s = self._model.run_s(min(most, ahead - full_batches * most + request.cost))
        assert own_s is not None
        # Of more slots than that, nobody ahead needs the others.
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

    def _size_ahead(self, request: Request) -> float:
        options = self._options
        if options.order == "deadline" or options.bucket_by is not None or not self.size:
            return 0
        if options.priority_levels == 1:
            return self.size
        ahead = sum(n for level, n in self._by_level.items() if level <= request.priority)
        return ahead * self.size / sum(self._by_level.values())


def _free_times(
    batches: Mapping[Batch, float], now: float, slots: int, model: LatencyModel
) -> list[float]:
    """Returns when each slot is expected to be free, soonest first."""
    ends = [max(now, since + (model.run_s(batch.load) or 0)) for batch, since in batches.items()]
    return sorted([*ends, *[now] * (slots - len(ends))])


PARKED = State.PARKED


class Parked:
    """Requests in the state PARKED; those that have left are leftovers, and skipped."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """Takes in a request as the last."""
        self._requests.append(request)

    def first(self) -> Request | None:
        """Returns the request that is let in next; None if there is none."""
        requests = self._requests
        while requests and requests[0].state is not PARKED:
            requests.popleft()
        return requests[0] if requests else None

    def pop(self) -> None:
        """Takes the request out that `first` returned."""
        self._requests.popleft()

    def tidy(self, live: int) -> None:
        """Drops leftovers if they are many, beside `live` requests that wait."""
        if not live:
            self._requests.clear()
        elif len(self) - live > max(live, _LEFTOVERS_WORTH_A_SWEEP):
            self._requests = deque(self)

    def clear(self) -> None:
        """Drops everything."""
        self._requests.clear()

    def __len__(self) -> int:
        """Returns the number of its places, leftovers among them."""
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter([request for request in self._requests if request.state is PARKED])
