"""The default rule, and the fastest: a batch is dispatched when it is full or has waited enough.

Requests are in order of arrival. The wait is counted from the oldest request's arrival, so a
request that has waited long enough for a busy slot does not wait again.

Arrivals are appended to `queue` without calling the policy, since this is on the hot path of every
call. They wake a slot by their number only.
"""

from __future__ import annotations

from itertools import repeat, starmap
from typing import TYPE_CHECKING, Final

from shoal.core.batch import DispatchReason
from shoal.core.policies.rule import Rule
from shoal.core.policy import Dispatch, Wait
from shoal.core.queue import ArrivalQueue, is_worth_a_sweep
from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.core.options.options import BatchOptions
    from shoal.core.policy import Pressure
    from shoal.core.request import Request

QUEUED = State.QUEUED
ANY: Final = Wait(None, 1)
"""The decision to wait for a first request."""


class SizeOrWait(Rule):
    def __init__(self, options: BatchOptions) -> None:
        self._size = options.max_batch_size
        self._full = Dispatch(self._size, DispatchReason.FULL)
        self._until_full = Wait(None, self._size)
        self._wait_s = options.batch_wait_timeout_s
        self._queue = ArrivalQueue()
        self.queue = self._queue.entries
        # The number of leftovers in the queue.
        self._left = 0

    def size_of_all(self) -> float:
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
        if self._left == len(self.queue):  # only ended requests are left
            self.queue.clear()
            self._left = 0
        elif is_worth_a_sweep(self._queue, len(self.queue) - self._left):
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
            self._drop_leftovers()
        due = queue[0].arrived_at + self._wait_s
        if due <= now:
            return Dispatch(live, DispatchReason.TIMER)
        return Wait(due, self._size)

    def take(self, dispatch: Dispatch) -> list[Request]:
        if self._left:
            return self.take_within(dispatch.size)
        # The usual case, for less than by a comprehension.
        return list(starmap(self.queue.popleft, repeat((), dispatch.size)))

    def take_within(self, room: float) -> list[Request]:
        queue = self.queue
        size = int(min(room, len(queue) - self._left))
        popleft = queue.popleft
        taken: list[Request] = []
        while len(taken) < size:
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

    def waiting(self) -> Iterable[Request]:
        return self._queue

    def by_arrival(self) -> list[Request]:
        return list(self._queue)

    def _drop_leftovers(self) -> None:
        """Drops the leftovers before the first request that waits."""
        before = len(self.queue)
        self._queue.first()
        self._left -= before - len(self.queue)
