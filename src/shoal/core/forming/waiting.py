"""Those who wait: filed by a policy, and cut into batches for slots that are free.

`Waiting.decide` is asked only by a slot that is free, which is the whole of late binding: while
every slot is busy nobody asks, requests pile up, and the next batch is one large one. The rival
rule, to close a batch when its timer ends and to let closed batches queue for a slot, makes many
small batches out of the same load.

Where requests are all alike, nothing here is on the path of a call but `append`, which is the
deque's own.

Invariant: ``live`` == number of requests in the policy, all in the state QUEUED.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shoal.core.forming.urgency import Urgency
from shoal.core.latency_model import LatencyModel
from shoal.core.policies.adaptive import AdaptiveRule
from shoal.core.policies.buckets import Buckets
from shoal.core.policies.factory import may_wait, policy_of
from shoal.core.policies.ranked import Ranked
from shoal.core.policies.size_or_wait import SizeOrWait
from shoal.core.policies.sizing import padded
from shoal.core.policy import Cut, Wait
from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.core.options.options import BatchOptions
    from shoal.core.policy import BatchPolicy
    from shoal.core.request import CallOptions, Request

QUEUED = State.QUEUED
_UNTIL_SOMEONE_COMES = Wait(None, 1)


class Waiting:
    """The requests that have been let in, and the rule that cuts batches from them.

    Attributes:
        append: Puts a request in line, and says whether a slot must decide now; a part of `arrive`.
        live: How many requests are in line.
        wake_at: The number of requests in line that the waiting slot wants to be told of; 0 for
            none.
        model: The run times of the handler.
        adaptive: What chooses sizes and waits; None where they are fixed.
        options: The options in force.
    """

    __slots__ = (
        "_asleep_until",
        "_may_wait",
        "_policy",
        "_tells_all",
        "_urgency",
        "adaptive",
        "append",
        "live",
        "model",
        "options",
        "wake_at",
    )

    def __init__(self, options: BatchOptions) -> None:
        self.model = LatencyModel()
        self.live = 0
        self.wake_at = 0
        self._tells_all = False
        self._urgency = Urgency()
        # When the slot that waits decides again; minus infinity if none waits.
        self._asleep_until = -math.inf
        self._take_in(options)

    def arrive(self, request: Request) -> bool:
        """Puts a request in line that has been let in.

        Returns:
            Whether the slot that waits for requests must be woken.
        """
        live = self.live + 1
        if self.append(request):
            self.wake_at = live
        asked = request.options
        if asked is not None and asked.due is not None and self._may_wait:
            if self._asleep_until == -math.inf:
                self._urgency.note_later(request, live)
            else:
                size = min(live, self.options.max_batch_size)
                leave_by = self._urgency.note(request, asked.due, self.model, size, live)
                if leave_by < self._asleep_until:
                    self.wake_at = live
        self.live = live
        return live == self.wake_at

    def arrive_all(self, requests: list[Request]) -> bool:
        """Puts many requests in line, as `arrive` does, where all requests are alike.

        Returns:
            Whether the slot that waits for requests must be woken.
        """
        assert isinstance(self._policy, SizeOrWait)
        before = self.live
        self._policy.queue.extend(requests)
        self.live += len(requests)
        return self._tells_all or before < self.wake_at <= self.live

    @property
    def is_gathering(self) -> bool:
        """Whether a batch gathers: a free slot has looked at the line, and waits with who is there.

        While every slot is busy none does, since batches are made for slots that are free.
        """
        return self.live > 0 and self._asleep_until != -math.inf

    @property
    def took_flushed(self) -> bool:
        """Whether a flush covered any of those who were handed out last."""
        return self._urgency.handed_out_flushed

    def drain(self) -> None:
        """Lets nobody wait for company any more."""
        self._urgency.draining = True

    @property
    def draining(self) -> bool:
        """Whether nobody waits for company any more."""
        return self._urgency.draining

    def flush(self) -> None:
        """Makes what is in line now leave with the next cuts, full or not."""
        self._urgency.flush(self._policy.waiting())

    def decide(self, now: float) -> Cut | Wait:
        """Says what a free slot should do.

        Args:
            now: The time on the event loop's clock, in seconds.

        Returns:
            What to take, or when to ask again.
        """
        if not self.live:
            self._tidy()
        decision = self._policy.decide(now, self._urgency.hurry(now) if self.live else None)
        if isinstance(decision, Cut):
            self._asleep_until = -math.inf
            return decision
        if self._urgency.unseen:
            # They may change the decision, for it matters now when they must leave.
            self._urgency.see(self.model, min(self.live, self.options.max_batch_size), self.live)
            return self.decide(now)
        until = math.inf if decision.until is None else decision.until
        if self.live:
            until = min(until, self._urgency.until())
        elif decision.until is None:
            self._asleep_until = math.inf
            return decision
        self._asleep_until = until
        return Wait(None if until == math.inf else until, decision.wake_at)

    def take(self, cut: Cut) -> list[Request]:
        """Hands out the batch that `decide` has just decided on.

        Parked requests follow when the taker has said, by `reform`, that its slot is not idle now.

        Returns:
            The requests, all in the state QUEUED; the caller moves them on.
        """
        return self._handed_out(self._policy.take(cut))

    def take_within(self, room: float) -> list[Request]:
        """Hands out those that may join a batch which is open, in order, up to some room in it."""
        taken = self._handed_out(self._policy.take_within(room))
        if not self.live:
            self._tidy()  # nobody asks `decide` where batches are open
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        """Undoes the last `take`; those of its requests that are not QUEUED now have left."""
        waiting = [request for request in requests if request.state is QUEUED]
        self._policy.put_back(waiting)
        self._urgency.put_back()
        self.live += len(waiting)

    @property
    def size(self) -> float:
        """What the costs of those that wait sum up to."""
        policy = self._policy
        return policy.size if isinstance(policy, (Ranked, Buckets)) else self.live

    def size_beside(self, asked: CallOptions) -> float:
        """Returns what the costs of those that wait in one bucket sum up to.

        Args:
            asked: The record of a request of the bucket.
        """
        policy = self._policy
        if isinstance(policy, (Ranked, Buckets)):
            return policy.size_beside(asked)
        return self.live

    def load_of(self, requests: Sequence[Request]) -> float:
        """Returns what the costs of a batch sum up to, with its padding."""
        options = self.options
        load: float = len(requests)
        if options.batch_size_fn is not None:
            load = sum([request.options.cost for request in requests if request.options])
        sizes = options.allowed_batch_sizes
        return load if sizes is None else padded(sizes, load)

    def _take_in(self, options: BatchOptions) -> None:
        adaptive = None
        if options.adaptive is not None:
            adaptive = AdaptiveRule(
                options.adaptive, self.model, options.max_batch_size, options.slots
            )
        self._file_by(policy_of(options, self.model, adaptive))
        self.adaptive = adaptive
        self.options = options
        # Where no request waits for company, none has to leave early.
        self._may_wait = may_wait(options)

    def _file_by(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self.append: Callable[[Request], object] = (
            policy.queue.append if isinstance(policy, SizeOrWait) else policy.add
        )
        if self._tells_all:
            self.tell_all()

    def tell_all(self) -> None:
        """Rings at every change from now on, for batches that are open take whoever comes."""
        self._tells_all = True
        self.append = self._append_and_tell

    def _append_and_tell(self, request: Request) -> bool:
        self._policy.add(request)
        self.wake_at = self.live + 1
        return True

    def _tidy(self) -> None:
        """Forgets what has ended, when nobody waits any more."""
        self._urgency.forget_times()

    def _remove(self, request: Request) -> None:
        self.live -= 1
        self._urgency.left(request)
        self._policy.remove(request)

    def _handed_out(self, taken: list[Request]) -> list[Request]:
        self.live -= len(taken)
        self._urgency.taken(taken)
        return taken
