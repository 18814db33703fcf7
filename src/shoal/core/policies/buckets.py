"""Buckets: the requests of a batch have equal keys, and each key has its own rule.

Two heaps determine which bucket is next, so that a decision costs O(log b) in the number of
non-empty buckets. The *agenda* has the buckets by due time. Buckets that are due move to *ready*,
which orders them by their first requests; the first one there is dispatched. Both are `Timers`, so
the entry of a bucket that changes is cancelled, and not searched for.

A bucket exists only while requests wait in it.

With homes, the requests of a batch also prefer the same replica, and a bucket that is due may be
held back for it (`homes`). A deadline, a flush or a drain does not wait for a replica.

Invariants:
    A bucket has at most one entry in each heap that is not cancelled.
    A bucket that could be dispatched now is in ``ready``, or in the agenda with a due time in the
    past.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.core.policies.ranked import DUE_NOW, NOBODY_WAITS
from shoal.core.policies.rule import Rule
from shoal.core.policy import Dispatch, Wait
from shoal.core.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from shoal.core.policies.homes import Preferences
    from shoal.core.policies.ranked import Rank, Ranked
    from shoal.core.policy import Pressure
    from shoal.core.request import Request, RequestOptions
    from shoal.core.timers import Timer


@dataclass(slots=True, eq=False)
class _Bucket:
    key: Hashable
    rule: Ranked
    # Its entry in the agenda, and the time of that; infinity for none.
    timer: Timer | None = None
    due_at: float = math.inf
    # Its entry in `ready`, with the order of its first request in place of a time.
    ready: Timer | None = None


class Buckets(Rule):
    """A separate rule for each key; the bucket with the first request goes first."""

    def __init__(
        self,
        make: Callable[[], Ranked],
        rank: Rank | None,
        homes: Preferences | None,
        *,
        isolates: bool,
    ) -> None:
        self._make = make
        self._homes = homes
        self._isolates = isolates
        self._rank = rank
        self._buckets: dict[Hashable, _Bucket] = {}
        self._agenda = Timers()
        self._ready = Timers()
        self._chosen: _Bucket | None = None
        self._asleep_until = NOBODY_WAITS
        # Until when a batch that is due waits for a replica that it prefers.
        self._held_until = math.inf
        self.cost: float = 0

    def add(self, request: Request) -> bool:
        asked = request.options
        assert asked is not None
        bucket = self._bucket_for(asked)
        bucket.rule.put(request)
        if bucket.ready is not None:
            if self._rank is not None and bucket.rule.head() is request:
                self._make_ready(bucket)
            return self._homes is not None and self._homes.releases(asked)
        if bucket.due_at <= request.arrived_at:  # it will be checked anyway
            return False
        return self._plan(bucket, request.arrived_at) < self._asleep_until

    def insert(self, request: Request) -> None:
        assert request.options is not None
        bucket = self._bucket_for(request.options)
        bucket.rule.insert(request)
        if bucket.ready is not None:
            self._make_ready(bucket)
        elif bucket.due_at != DUE_NOW:
            self._plan_at(bucket, DUE_NOW)

    def remove(self, request: Request) -> None:
        bucket = self._buckets[self._key(request.options)]
        bucket.rule.remove(request)
        self.cost -= request.cost
        if self._homes is not None:
            self._homes.count(request, -1)
        self._forget_if_empty(bucket)

    def demote(self, request: Request) -> bool:
        return self._buckets[self._key(request.options)].rule.demote(request)

    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        self._asleep_until = NOBODY_WAITS
        self._held_until = math.inf
        self._chosen = None
        if self._homes is not None and self._homes.have_changed():
            self._refile(self._homes)
        if not self._buckets:
            return Wait(None, 1)
        if pressure is not None and pressure.request is not None:
            return self._ask(self._buckets[self._key(pressure.request.options)], now, pressure)
        self._move_due_ones(now)
        decision = self._ask_ready_ones(now, pressure)
        if decision is None and pressure is not None:
            for bucket in self._buckets.values():
                self._make_ready(bucket)
            decision = self._ask_ready_ones(now, pressure)
        if decision is not None:
            return decision
        while (first := self._agenda.first()) is not None:
            due_at = first.rule.due_at(now)
            if due_at <= first.due_at:
                break
            self._plan_at(first, due_at)  # the request that made it due has left, or may wait on
        self._asleep_until = min(self._agenda.next_at(), self._held_until)
        return Wait(None if self._asleep_until == math.inf else self._asleep_until)

    def take(self, dispatch: Dispatch) -> list[Request]:
        bucket = self._chosen
        assert bucket is not None
        before = bucket.rule.cost
        taken = bucket.rule.take(dispatch)
        self.cost -= before - bucket.rule.cost
        if self._homes is not None:
            self._homes.count(taken[0], -len(taken))
        self._unready(bucket)
        if bucket.rule.count:
            # Planned as due, so that it is checked, in its new order, when the next slot asks.
            self._plan_at(bucket, DUE_NOW)
        else:
            self._forget_if_empty(bucket)
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        bucket = self._chosen
        assert bucket is not None
        before = bucket.rule.cost
        bucket.rule.put_back(requests)
        self.cost += bucket.rule.cost - before
        if self._homes is not None and requests:
            self._homes.count(requests[0], len(requests))
        if bucket.rule.count:
            self._buckets[bucket.key] = bucket
            self._plan_at(bucket, DUE_NOW)

    def waiting(self) -> Iterator[Request]:
        waiting = [
            request for bucket in self._buckets.values() for request in bucket.rule.waiting()
        ]
        return iter(sorted(waiting, key=self._order_of))

    def cost_of_all(self) -> float:
        return self.cost

    def cost_beside(self, asked: RequestOptions) -> float:
        if self._homes is not None:
            self._homes.find(asked)  # it has not been added yet
        bucket = self._buckets.get(self._key(asked))
        return 0 if bucket is None else bucket.rule.cost

    def _key(self, asked: RequestOptions | None) -> Hashable:
        assert asked is not None
        key = (asked.key, asked.priority) if self._isolates else asked.key
        return key if self._homes is None else (key, self._homes.preferred(asked))

    def _bucket_for(self, asked: RequestOptions) -> _Bucket:
        """Counts a request, and returns its bucket, which is made if need be."""
        if self._homes is not None:
            self._homes.find(asked)
        key = self._key(asked)
        bucket = self._buckets.get(key)  # a user's key may raise, so nothing is counted before
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(key, self._make())
        if self._homes is not None:
            self._homes.add(asked)
        self.cost += asked.cost
        return bucket

    def _refile(self, homes: Preferences) -> None:
        waiting = self.by_arrival()
        self._buckets.clear()
        self._ready, self._agenda = Timers(), Timers()
        homes.forget_counts()
        self.cost = 0
        for request in waiting:
            self.add(request)

    def _ask(self, bucket: _Bucket, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        self._chosen = bucket
        return bucket.rule.decide(now, pressure)

    def _ask_ready_ones(self, now: float, pressure: Pressure | None) -> Dispatch | None:
        homes = self._homes
        if homes is None or pressure is not None:
            return self._first_ready(now, pressure)
        held: list[_Bucket] = []
        while (decision := self._first_ready(now, None)) is not None:
            bucket: _Bucket = self._ready.first()
            first = bucket.rule.head()
            assert first is not None
            until = homes.held_until(first, now)
            if until <= now:
                break
            self._held_until = min(self._held_until, until)
            self._unready(bucket)  # others go first
            held.append(bucket)
        for bucket in held:
            self._make_ready(bucket)
        homes.is_holding = bool(held)
        return decision

    def _first_ready(self, now: float, pressure: Pressure | None) -> Dispatch | None:
        while (bucket := self._ready.first()) is not None:
            if self._make_ready(bucket):  # its first request had left
                continue
            decision = self._ask(bucket, now, pressure)
            if isinstance(decision, Dispatch):
                return decision
            self._unready(bucket)
            self._plan_at(bucket, math.inf if decision.until is None else decision.until)
        return None

    def _move_due_ones(self, now: float) -> None:
        for bucket in self._agenda.due(now):
            bucket.due_at = math.inf
            if bucket.ready is None:
                self._make_ready(bucket)

    def _make_ready(self, bucket: _Bucket) -> bool:
        """Puts a bucket at its place in ``ready``; returns whether it was not at this place."""
        first = bucket.rule.head()
        assert first is not None
        order = self._order_of(first)
        if bucket.ready is not None and bucket.ready[0] == order:
            return False
        self._unready(bucket)
        bucket.ready = self._ready.add(order, bucket)
        return True

    def _unready(self, bucket: _Bucket) -> None:
        if bucket.ready is not None:
            self._ready.forget(bucket.ready)
            bucket.ready = None

    def _plan(self, bucket: _Bucket, now: float) -> float:
        """Puts a bucket on the agenda at its due time, and returns this time."""
        due_at = bucket.rule.due_at(now)
        if due_at < bucket.due_at:
            self._plan_at(bucket, due_at)
        return due_at

    def _plan_at(self, bucket: _Bucket, at: float) -> None:
        bucket.due_at = at
        if bucket.timer is not None:
            self._agenda.forget(bucket.timer)
        bucket.timer = self._agenda.add(at, bucket) if at < math.inf else None

    def _forget_if_empty(self, bucket: _Bucket) -> None:
        if not bucket.rule.count:
            self._unready(bucket)
            self._plan_at(bucket, math.inf)
            del self._buckets[bucket.key]
            if not self._buckets:
                self.cost = 0  # sums of fractions accumulate rounding errors

    def _order_of(self, request: Request) -> Any:
        rank = request.arrived_at if self._rank is None else self._rank(request)
        return rank, request.options.number if request.options is not None else 0
