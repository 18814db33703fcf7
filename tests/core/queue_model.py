"""A simple model of the queue: lists that are sorted again for every question.

It is not fast, and stores nothing that can be computed. Times and costs in the tests are sums of
powers of 2, so that they are exact.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from shoal.core.options.option import SAME
from shoal.core.request import DispatchReason, Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal import BatchOptions
    from shoal.core.forming.former import Former

Batch = tuple[list[Request], DispatchReason]


def cost_of(requests: Iterable[Request]) -> float:
    return sum(request.cost for request in requests)


class QueueModel:
    """The waiting requests, and what the options mean for them.

    Attributes:
        queued, parked: The waiting requests, in order of arrival.
        ended: The outcome of every request that no longer waits.
    """

    def __init__(self, options: BatchOptions, former: Former) -> None:
        self.options = options
        self.former = former  # used only for measured run times
        self.now = 100.0
        self.idle = 0
        self.queued: list[Request] = []
        self.parked: list[Request] = []
        self.ended: dict[Request, str] = {}
        self.flushed: list[Request] = []
        self.closed = self.draining = False
        self.numbers: dict[Request, int] = {}  # the order in which they were queued
        self.places: dict[Request, int] = {}  # the same, but delayed requests are behind the others
        self.newest_at: dict[Any, float] = {}
        self.leave_by: dict[Request, float] = {}
        self.delayed_at: dict[Request, float] = {}
        self.watched: list[tuple[float, int, Request, str]] = []
        self._count = 0

    # Admission

    def may_wait(self) -> bool:
        """Returns whether requests wait for a batch to fill, so that due ones must leave early."""
        o = self.options
        policies = [p for p in (*o.queue_policies.values(), o.default_queue_policy) if p]
        return (
            o.batch_wait_timeout_s != 0
            or o.idle_timeout_s is not None
            or any(policy.batch_wait_timeout_s is not SAME for policy in policies)
        )

    def room(self) -> float:
        o = self.options
        if self.closed:
            return 0
        if o.max_queued_requests is None:
            return math.inf
        idle = 0 if o.batch_size_fn else self.idle * o.max_batch_size
        return o.max_queued_requests + idle

    def has_room(self, request: Request) -> bool:
        if len(self.queued) < self.room():
            return True
        if self.closed or not self.options.batch_size_fn:
            return False
        return cost_of([*self.queued, request]) <= self.idle * self.options.max_batch_size

    def level_is_full(self, request: Request) -> bool:
        policy = self.options.queue_policy(request.priority)
        if policy is None or policy.max_queued_requests is None:
            return False
        if cost_of([*self.queued, request]) <= self.idle * self.options.max_batch_size:
            return False  # it will not wait
        same = [r for r in self.queued + self.parked if r.priority == request.priority]
        return len(same) >= policy.max_queued_requests

    def victim(self, newcomer: Request) -> Request | None:
        """Returns the request to shed: the oldest or the newest of the lowest level."""
        if self.parked or not self.queued or not self.options.overload.startswith("shed"):
            return None
        lowest = max(request.priority for request in self.queued)
        of_it = [request for request in self.queued if request.priority == lowest]
        if self.options.overload == "shed_oldest":
            return of_it[0] if lowest >= newcomer.priority else None
        return of_it[-1] if lowest > newcomer.priority else None

    def admit(self, request: Request) -> tuple[str, Request | None]:
        """Returns the outcome of admitting a new request, and the request that is shed for it."""
        if self.closed or self.level_is_full(request):
            return "refused", None
        if self.parked or not self.has_room(request):
            if self.options.overload == "wait":
                self.parked.append(request)
                return "parked", None
            victim = self.victim(request)
            if victim is None:
                return "refused", None
            self.ended[victim] = "shed"
            self.queued.remove(victim)
            self._enqueue(request)
            self.admit_parked()
            return "queued", victim
        self._enqueue(request)
        return "queued", None

    def _enqueue(self, request: Request) -> None:
        self.queued.append(request)
        self._add(request)
        self.numbers[request] = self._count
        self._note(request)

    def _note(self, request: Request) -> None:
        """Records when a request with a deadline must leave, if batches wait to fill."""
        due = None if request.options is None else request.options.due
        if due is not None and self.may_wait():
            self.leave_by[request] = (request.arrived_at + due) / 2  # no run time is known

    def _add(self, request: Request) -> None:
        self._count += 1
        self.places[request] = self._count
        self.newest_at[self.key(request)] = request.arrived_at

    def admit_parked(self) -> None:
        while self.parked and self.has_room(self.parked[0]):
            self._enqueue(self.parked.pop(0))

    # Leaving

    def leave(self, request: Request, why: str) -> None:
        assert request not in self.ended, "it has ended before"
        self.ended[request] = why
        (self.queued if request in self.queued else self.parked).remove(request)
        self.admit_parked()

    def hand_out(self, requests: Sequence[Request]) -> None:
        for request in requests:
            assert request not in self.ended, "it has ended before"
            self.queued.remove(request)

    def put_back(self, requests: Sequence[Request]) -> None:
        self.queued = sorted([*requests, *self.queued], key=self.numbers.__getitem__)

    def watch(self, request: Request) -> None:
        """Records until when a request may wait."""
        asked = request.options
        if asked is None:
            return
        if asked.deadline is not None:
            self._count += 1
            self.watched.append((asked.deadline, self._count, request, "ends"))
        policy = self.options.queue_policy(asked.priority)
        limits = [asked.queue_timeout_s, None if policy is None else policy.timeout_s]
        limits_s = [limit for limit in limits if limit is not None]
        if limits_s:
            delays = policy is not None and policy.timeout_action == "delay"
            self._count += 1
            at = request.arrived_at + min(limits_s)
            self.watched.append((at, self._count, request, "delay" if delays else "reject"))

    def time_is_up(self) -> list[Request]:
        """Moves timed-out requests behind the others, or returns those that must end, in order."""
        due = sorted(entry[:3] + entry[3:] for entry in self.watched if entry[0] <= self.now)
        self.watched = [entry for entry in self.watched if entry[0] > self.now]
        ending: list[Request] = []
        for _, _, request, what in due:
            if request in self.ended or request in ending:
                continue
            if what != "delay":
                ending.append(request)
                continue
            self.delayed_at[request] = self.now
            if request in self.queued and self.knows_levels():
                self._count += 1
                self.places[request] = self._count
        return ending

    def may_delay(self) -> bool:
        """Returns whether requests that waited for too long are moved behind the others."""
        policies = [*self.options.queue_policies.values(), self.options.default_queue_policy]
        return any(p is not None and p.timeout_action == "delay" for p in policies)

    def knows_levels(self) -> bool:
        """Returns whether the order depends on more than the arrivals."""
        o = self.options
        return o.priority_levels > 1 or o.order == "deadline" or self.may_delay()

    # Batches

    def key(self, request: Request) -> Any:
        isolates = self.options.priority_mixing == "isolate"
        return request.key, request.priority if isolates else None

    def rank(self, request: Request) -> Any:
        """Returns the rank of a request, computed at the current time, with literal ageing."""
        o, asked = self.options, request.options
        place = self.places[request]
        if asked is None or not self.knows_levels():
            return place
        level, aging_s = asked.priority, o.priority_aging_s
        delayed = request in self.delayed_at
        came_at = self.delayed_at.get(request, request.arrived_at)
        if aging_s is None:
            if o.order == "deadline":
                due = math.inf if asked.due is None else asked.due
                return level, delayed, due, place
            return level, delayed, place
        if o.order == "deadline":
            due = request.arrived_at + aging_s if asked.due is None else asked.due
            if delayed:
                due = max(due, came_at + aging_s)
            return due - self.now + (level + delayed) * aging_s, place
        return level + delayed - (self.now - came_at) / aging_s, place

    def buckets(self) -> dict[Any, list[Request]]:
        """Returns the requests that may share a batch, each bucket in order."""
        found: dict[Any, list[Request]] = {}
        for request in sorted(self.queued, key=self.rank):
            found.setdefault(self.key(request), []).append(request)
        return found

    def in_order(self) -> list[Request]:
        """Returns the requests in the order in which they would be taken, one per batch."""
        return sorted(self.queued, key=self.rank)

    def window_of(self, request: Request) -> float:
        o = self.options
        usual = o.batch_wait_timeout_s
        if usual == 0 and o.idle_timeout_s is not None:
            usual = None
        policy = o.queue_policy(request.priority)
        own = (
            usual
            if policy is None or policy.batch_wait_timeout_s is SAME
            else (policy.batch_wait_timeout_s)
        )
        return math.inf if own is None else own

    def due(self, bucket: list[Request]) -> tuple[float, DispatchReason]:
        window = min(request.arrived_at + self.window_of(request) for request in bucket)
        if self.options.idle_timeout_s is not None:
            idle = self.newest_at[self.key(bucket[0])] + self.options.idle_timeout_s
            if idle < window:
                return idle, DispatchReason.IDLE
        return window, DispatchReason.TIMER

    def pressure(self) -> DispatchReason | None:
        """Returns why any batch must be dispatched now."""
        if any(request in self.flushed for request in self.queued):
            return DispatchReason.FLUSH
        return DispatchReason.DRAIN if self.draining and self.queued else None

    def who_must_leave(self) -> list[Request]:
        """Returns the requests that must leave first, if it is time."""
        noted = {r: self.leave_by[r] for r in self.queued if r in self.leave_by}
        first = min(noted.values(), default=math.inf)
        return [request for request, at in noted.items() if at == first <= self.now]

    def next_batch(self, bucket: list[Request], pressure: DispatchReason | None) -> Batch | None:
        """Returns the batch that leaves a bucket now; None if it waits."""
        o = self.options
        size = cost_of(bucket)
        due, reason = self.due(bucket)
        waits = pressure is None and due > self.now
        if o.preferred_batch_sizes is not None:
            return self._next_preferred(bucket, waits, pressure or reason)
        if size >= o.max_batch_size:
            return fitting(bucket, o.max_batch_size), DispatchReason.FULL
        if waits:
            return None
        below = [n for n in o.allowed_batch_sizes or () if n <= size]
        if o.padding == "down" and below:
            return fitting(bucket, below[-1]), pressure or reason
        if o.padding == "cost" and below and below[-1] != size:
            above = min(n for n in o.allowed_batch_sizes or () if n > size)
            costs = [self.former.model.median_s_of(n) for n in (below[-1], above)]
            if costs[0] is None:
                return fitting(bucket, below[-1] if costs[1] is not None else above), (
                    pressure or reason
                )
            if costs[1] is not None and costs[0] / below[-1] < costs[1] / size:
                return fitting(bucket, below[-1]), pressure or reason
        return bucket, pressure or reason

    def _next_preferred(
        self, bucket: list[Request], waits: bool, reason: DispatchReason
    ) -> Batch | None:
        o = self.options
        sizes = o.preferred_batch_sizes or ()
        has_window = o.batch_wait_timeout_s != 0 or o.idle_timeout_s is not None
        fits = fitting(bucket, sizes[-1])
        hits = [n for n in range(1, len(fits) + 1) if cost_of(fits[:n]) in sizes]
        if has_window and not waits:
            fits = fitting(bucket, o.max_batch_size)
            return fits, DispatchReason.FULL if cost_of(bucket) >= sizes[0] else reason
        if hits:
            return fitting(bucket, cost_of(bucket[: hits[-1]])), DispatchReason.FULL
        if waits and len(fits) == len(bucket) and cost_of(fits) < sizes[-1]:
            return None
        return fits, DispatchReason.FULL if cost_of(bucket) >= sizes[0] else reason

    def batches(self) -> list[Batch]:
        """Returns the batches that may be dispatched now; none if all wait."""
        pressure = self.pressure()
        buckets = self.buckets()  # the one with the best head is first
        batches = [self.next_batch(bucket, pressure) for bucket in buckets.values()]
        found = [batch for batch in batches if batch is not None]
        if pressure is not None:
            return found
        wanted = [
            self.next_batch(buckets[self.key(request)], DispatchReason.DEADLINE)
            for request in self.who_must_leave()
        ]
        return [*found[:1], *[batch for batch in wanted if batch is not None]]

    def until(self) -> float:
        """Returns when the next batch is due, if nothing else happens."""
        dues = [self.due(bucket)[0] for bucket in self.buckets().values()]
        noted = [self.leave_by[r] for r in self.queued if r in self.leave_by]
        return min([*dues, *noted], default=math.inf)

    def change(self, options: BatchOptions) -> None:
        """Applies new options; waiting requests are queued again under them, by arrival."""
        self.options = options
        self.queued.sort(key=lambda request: (request.arrived_at, self.numbers[request]))
        self.places, self.newest_at, self.leave_by = {}, {}, {}
        for request in self.queued:
            self._add(request)
            self.numbers[request] = self._count
            self._note(request)


def fitting(bucket: list[Request], most: float) -> list[Request]:
    """Returns the first request of a bucket, and those behind it while they fit."""
    taken = bucket[:1]
    for request in bucket[1:]:
        if cost_of([*taken, request]) > most:
            break
        taken.append(request)
    return taken
