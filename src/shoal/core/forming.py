"""Which requests make the next batch, and when: the line, and the rule of size or wait.

The rule decides, others act. `Former.decide` looks at the line, the options and the clock, and
returns either a `Cut` (take so many now, for this reason) or a `Wait` (ask again at that time, or
when so many are in line). It is asked only by a slot that is free, which is the whole of late
binding: while every slot is busy nobody asks, requests pile up, and the next batch is one large
one. The rival rule, to close a batch when its timer ends and to let closed batches queue for a
slot, makes many small batches out of the same load.

The wait is counted from the oldest request's arrival, so a request that has waited long enough
behind a busy slot does not wait again.

Leaving the line costs O(1): the request is marked, counted out, and skipped when its turn comes.
The line is swept when more than half of it is such leftovers, so callers that come and go behind
a busy slot can't make it grow.

Invariants:
    ``live`` == number of requests in ``queue`` in the state QUEUED.
    ``parked`` == number of requests in ``_parked`` in the state PARKED.
    A request is parked only while ``live >= room``, so parked ones never overtake each other.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from shoal.core.batch import CutReason
from shoal.core.request import Request, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.core.options import BatchOptions

QUEUED = State.QUEUED
PARKED = State.PARKED
_LEFTOVERS_WORTH_A_SWEEP = 64


class Cut(NamedTuple):
    """Take `size` requests from the front of the line now."""

    size: int
    reason: CutReason


class Wait(NamedTuple):
    """Decide again at the time `until`, or when `wake_at` requests are in line."""

    until: float | None
    wake_at: int


_UNTIL_SOMEONE_COMES = Wait(None, 1)


class Former:
    """The line of one batcher, and the rule that cuts batches from it."""

    __slots__ = (
        "_flush",
        "_flushed",
        "_parked",
        "closed",
        "draining",
        "idle_slots",
        "live",
        "options",
        "parked",
        "queue",
        "room",
        "wake_at",
    )

    def __init__(self, options: BatchOptions) -> None:
        self.options = options
        self.queue: deque[Request] = deque()
        self._parked: deque[Request] = deque()
        self.live = 0
        self.parked = 0
        # How many places from the front of the line, leftovers among them, a flush still covers.
        self._flush = 0
        # How many of the requests of the last `take` it covered.
        self._flushed = 0
        self.closed = False
        self.draining = False
        self.idle_slots = 0
        # How many requests may be in line; above it, calls meet the overload rule. Requests that an
        # idle slot takes at once do not count as waiting, so a burst into an idle batcher is let
        # in.
        self.room: float = 0
        # The number of requests in line that the waiting slot wants to be told of; 0 for none.
        self.wake_at = 0

    def arrive(self, request: Request) -> bool:
        """Puts a request at the end of the line; the caller has seen that there is room.

        Returns:
            Whether the slot that waits for requests must be woken.
        """
        self.queue.append(request)
        self.live = live = self.live + 1
        return live == self.wake_at

    def arrive_all(self, requests: list[Request]) -> bool:
        """Puts many requests at the end of the line; the caller has seen that there is room.

        Returns:
            Whether the slot that waits for requests must be woken.
        """
        before = self.live
        self.queue.extend(requests)
        self.live += len(requests)
        return before < self.wake_at <= self.live

    def park(self, request: Request) -> None:
        """Lets a request wait, in order, until the line has room for it."""
        self._parked.append(request)
        self.parked += 1

    def leave(self, request: Request) -> bool:
        """Lets a request go that is queued or parked and whose caller has left.

        Returns:
            Whether the slot that waits for requests must be woken.
        """
        was, request.state = request.state, State.CANCELLED
        if was is PARKED:
            self.parked -= 1
            if _is_worth_a_sweep(self._parked, self.parked):
                self._parked = deque(other for other in self._parked if other.state is PARKED)
            return False
        self.live -= 1
        if _is_worth_a_sweep(self.queue, self.live):
            covered = islice(self.queue, self._flush)
            self._flush = sum(other.state is QUEUED for other in covered)
            self.queue = deque(other for other in self.queue if other.state is QUEUED)
        return self.parked > 0 and self._admit()

    def reform(self, options: BatchOptions | None = None, *, idle_slots: int | None = None) -> bool:
        """Takes in new options or another number of idle slots.

        Returns:
            Whether the slot that waits for requests must be woken.
        """
        if options is not None:
            self.options = options
        if idle_slots is not None:
            self.idle_slots = idle_slots
        bound = self.options.max_queued_requests
        if self.closed:
            self.room = 0
        elif bound is None:
            self.room = math.inf
        else:
            self.room = bound + self.idle_slots * self.options.max_batch_size
        return self.parked > 0 and self._admit()

    def close(self) -> None:
        """Lets nobody in any more, and everybody who waits for room at once."""
        self.closed = self.draining = True
        self.room = math.inf
        self._admit()
        self.room = 0

    def flush(self) -> None:
        """Makes what is in line now leave with the next cuts, full or not."""
        self._flush = len(self.queue)

    def decide(self, now: float) -> Cut | Wait:
        """Says what a free slot should do.

        Args:
            now: The time on the event loop's clock, in seconds.

        Returns:
            What to take, or when to ask again.
        """
        live = self.live
        if live == 0:
            self._flush = 0
            return _UNTIL_SOMEONE_COMES
        size = self.options.max_batch_size
        if live >= size:
            return Cut(size, CutReason.FULL)
        oldest = self._oldest()
        if self._flush:
            return Cut(live, CutReason.FLUSH)
        if self.draining:
            return Cut(live, CutReason.DRAIN)
        wait = self.options.batch_wait_timeout_s
        if wait is None:
            return Wait(None, size)
        due = oldest.arrived_at + wait
        if due <= now:
            return Cut(live, CutReason.TIMER)
        return Wait(due, size)

    def take(self, size: int) -> list[Request]:
        """Takes up to `size` requests from the front of the line, in order of arrival.

        Parked requests follow when the taker has said, by `reform`, that its slot is not idle now.

        Args:
            size: How many at most; `decide` says how many.

        Returns:
            The requests, all in the state QUEUED; the caller moves them on.
        """
        if len(self.queue) == self.live:  # nobody has left, which is the usual case
            popleft = self.queue.popleft
            taken = [popleft() for _ in range(min(size, self.live))]
            self._flushed = min(self._flush, len(taken))
            self._flush -= self._flushed
        else:
            taken = self._take_past_leftovers(size)
        self.live -= len(taken)
        return taken

    def put_back(self, requests: list[Request]) -> None:
        """Undoes the last `take`; those of its requests that are not QUEUED now are leftovers."""
        self.queue.extendleft(reversed(requests))
        self.live += sum(request.state is QUEUED for request in requests)
        self._flush += self._flushed

    def clear(self) -> Iterator[Request]:
        """Empties the line and yields all that waited in it, parked ones last."""
        waiting = [r for r in self.queue if r.state is QUEUED]
        waiting += [r for r in self._parked if r.state is PARKED]
        self.queue.clear()
        self._parked.clear()
        self.live = self.parked = 0
        return iter(waiting)

    def _take_past_leftovers(self, size: int) -> list[Request]:
        taken: list[Request] = []
        self._flushed = 0
        while len(taken) < size and self.queue:
            request = self.queue.popleft()
            is_flushed = self._flush > 0
            self._flush -= is_flushed
            if request.state is QUEUED:
                taken.append(request)
                self._flushed += is_flushed
        return taken

    def _oldest(self) -> Request:
        """Returns the first live request; there is one. Drops the leftovers before it."""
        queue = self.queue
        while queue[0].state is not QUEUED:
            queue.popleft()
            self._flush = max(0, self._flush - 1)
        return queue[0]

    def _admit(self) -> bool:
        """Moves parked requests to the line while it has room."""
        woken = False
        while self._parked and self.live < self.room:
            request = self._parked.popleft()
            if request.state is PARKED:
                self.parked -= 1
                request.state = QUEUED
                woken = self.arrive(request) or woken
        return woken

    def _check(self) -> None:
        """Asserts the invariants; the tests call it after each step."""
        assert self.live == sum(r.state is QUEUED for r in self.queue)
        assert self.parked == sum(r.state is PARKED for r in self._parked)
        assert (
            self.parked == 0 or self.live >= self.room > 0 or self.options.max_queued_requests == 0
        )


def _is_worth_a_sweep(line: deque[Request], live: int) -> bool:
    """Says whether the leftovers of a line outnumber the `live` requests in it."""
    return len(line) - live > max(live, _LEFTOVERS_WORTH_A_SWEEP)
