"""A policy as `Former` uses it: the base, the default rule, and the one around a user's own policy.

The default rule, `SizeOrWait`, is the fastest: a batch is dispatched when it is full or has waited
enough. Requests are in order of arrival. The wait is counted from the oldest request's arrival, so
a request that has waited long enough for a busy slot does not wait again. Arrivals are appended to
`queue` without calling the policy, since this is on the hot path of every call. They wake a slot by
their number only.

A user's policy may raise, lose a request or return one twice. Whatever it does, the batcher must be
able to notify all waiting callers: `Guarded` has a list of their requests.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Final

from shoal.core.policy import BatchPolicy, Dispatch, Wait
from shoal.core.queue import Amount, ArrivalQueue, is_worth_a_sweep
from shoal.core.request import DispatchReason, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.core.options.options import BatchOptions
    from shoal.core.policy import Pressure
    from shoal.core.request import Request, RequestOptions


class Rule(BatchPolicy):
    @abstractmethod
    def cost_of_all(self) -> float:
        """Returns the sum of the costs of the waiting requests."""

    def cost_beside(self, asked: RequestOptions) -> float:
        """Returns the cost of the waiting requests that may share a batch with a request."""
        return self.cost_of_all()

    def take_within(self, room: Amount) -> list[Request]:
        """Removes and returns requests that may join an open batch, in order."""
        raise NotImplementedError  # the option `policy` is refused for open batches

    @property
    def append(self) -> Callable[[Request], object]:
        """The function that adds a request: `add`, or a faster one that never wakes the slot."""
        # `Former` reads it once, and calls it for each request.
        return self.add

    def extend(self, requests: Sequence[Request]) -> bool:
        """Adds requests in order; returns whether a waiting slot must decide now."""
        must_decide = False
        for request in requests:
            must_decide = self.add(request) or must_decide
        return must_decide

    def hold(self) -> None:
        """Makes `add` report a full batch while a due one waits, until the next `decide`."""
        # Not needed where the number of requests shows that a batch is full.

    def insert(self, request: Request) -> None:
        """Puts a request of an earlier batch back to its place in the order."""
        # A user's policy need not know that such requests exist.
        self.add(request)

    def by_arrival(self) -> list[Request]:
        return sorted(self.waiting(), key=_arrival)


def _arrival(request: Request) -> tuple[float, int]:
    asked = request.options
    return request.arrived_at, 0 if asked is None else asked.number


class Guarded(Rule):
    # Invariant: `_waiting` has the requests that were added and neither taken nor removed, in order
    # of arrival, whether the policy still has them or not.

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._waiting: dict[Request, None] = {}

    def cost_of_all(self) -> float:
        return len(self._waiting)

    def add(self, request: Request) -> bool:
        rings = self._policy.add(request)
        self._waiting[request] = None
        return rings

    def remove(self, request: Request) -> None:
        del self._waiting[request]
        self._policy.remove(request)

    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        return self._policy.decide(now, pressure)

    def take(self, dispatch: Dispatch) -> list[Request]:
        taken = list(self._policy.take(dispatch))
        if not taken or len(set(taken)) < len(taken) or not self._waiting.keys() >= set(taken):
            raise RuntimeError(
                f"take() of the policy {self._policy!r} returned {taken!r:.200}, but it must "
                "return at least one request, only requests that wait, and none twice; use "
                "shoal.testing.check_policy to find the cause"
            )
        for request in taken:
            del self._waiting[request]
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        self._waiting = dict.fromkeys((*requests, *self._waiting))
        self._policy.put_back(list(requests))  # a copy, which the policy may change

    def waiting(self) -> Iterable[Request]:
        return list(self._waiting)


QUEUED = State.QUEUED
ANY: Final = Wait(None, 1)
"""The decision to wait for a first request."""


class SizeOrWait(Rule):
    def __init__(self, options: BatchOptions) -> None:
        self._size = options.max_batch_size  # each request costs 1
        self._full = Dispatch(self._size, DispatchReason.FULL)
        self._until_full = Wait(None, self._size)
        self._wait_s = options.batch_wait_timeout_s
        self._queue = ArrivalQueue()
        self.queue = self._queue.entries
        # The number of leftovers in the queue.
        self._left = 0

    def cost_of_all(self) -> float:
        return len(self.queue) - self._left

    @property
    def append(self) -> Callable[[Request], object]:
        return self.queue.append

    def add(self, request: Request) -> bool:
        self.queue.append(request)
        return False

    def extend(self, requests: Sequence[Request]) -> bool:
        self.queue.extend(requests)
        return False

    def remove(self, request: Request) -> None:
        self._left += 1
        live = len(self.queue) - self._left
        if not live or is_worth_a_sweep(self._queue, live):
            self._queue.sweep()
            self._left = 0

    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        queue = self.queue
        live = len(queue) - self._left
        if live >= self._size:
            return self._full
        if not live:
            return ANY
        if pressure is not None:
            return Dispatch(live, pressure.reason)
        if self._wait_s is None:
            return self._until_full
        if self._left:
            self._queue.first()  # drops the leftovers before it
            self._left = len(queue) - live
        due = queue[0].arrived_at + self._wait_s
        if due <= now:
            return Dispatch(live, DispatchReason.TIMER)
        return Wait(due, self._size)

    def take(self, dispatch: Dispatch) -> list[Request]:
        if self._left:
            return self.take_within(Amount(dispatch.size, dispatch.size))
        # The usual case, for less than by a comprehension.
        return list(starmap(self.queue.popleft, repeat((), dispatch.size)))

    def take_within(self, room: Amount) -> list[Request]:
        queue = self.queue
        requests = int(min(*room, len(queue) - self._left))
        popleft = queue.popleft
        taken: list[Request] = []
        while len(taken) < requests:
            request = popleft()
            if request.state is QUEUED:
                taken.append(request)
            else:
                self._left -= 1
        if self._left == len(queue):
            queue.clear()
            self._left = 0
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        self._queue.put_back(requests)

    def insert(self, request: Request) -> None:
        self._queue.insert(request)

    def waiting(self) -> Iterable[Request]:
        return self._queue
