"""The worker slots of a batcher whose handler gets complete batches."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from shoal.batching.calls.groups import GroupWaiter, group_of
from shoal.batching.running.run import Run
from shoal.batching.running.slots import IDLE_SLOTS_KEPT, Slots
from shoal.core.forming.regathering import WINDOW_ENDED, WORTH_S
from shoal.core.policy import Dispatch
from shoal.core.request import State

if TYPE_CHECKING:
    from shoal.core.options.options import BatchOptions
    from shoal.core.request import Batch
    from shoal.loops.parking import Scope


IN_A_ROW_MOST: Final = 8
HELD_MOST_S: Final = 0.0005
"""For how many batches, and for how long in seconds, full batches may begin one after the other
without a pass of the event loop. One after each is a tenth of `map` if the handler does little."""

_PASSES: Final = 2
"""For how many passes of the event loop a batch that is smaller than the last one lets others join,
while passes are short. A server reads requests in one pass, and makes their calls in the next."""


class ClosedSlots(Slots[Run]):
    _last_size = 0  # how many requests the last batch had

    def configure(self, options: BatchOptions) -> None:
        # A new one: a running batch keeps its options.
        self.run = replace(self.run, options=options)
        self._resize()

    async def _serve(self, scope: Scope) -> bool:
        former = self.former
        innermost_scope = self.parking.innermost_scope()
        own_scope = innermost_scope()
        in_a_row, held_since = 0, -math.inf
        batch: Batch | None = None
        while batch is not None or len(self._waiting) < IDLE_SLOTS_KEPT:
            if batch is None:
                if self._turn_is_taken:
                    await self._wait_for_turn()
                self._turn_is_taken = True
                try:
                    batch = await self._next_batch()
                finally:
                    self.pass_turn()
                if batch is None:
                    return False
                in_a_row, held_since = 0, self.batches[batch]
            # A `Capacity` reports it when the handler takes it up.
            if self._capacity is None and (not in_a_row or former.parked):
                self._report_idle()
            calls = former.calls
            ended_at = await self._run(batch, scope)
            batch = None  # an idle slot must not keep items and results alive
            # A scope that a handler has not left would cancel the next batch as well.
            if ended_at is None or innermost_scope() is not own_scope:
                self._report_idle()
                return True
            in_a_row += 1
            if former.calls != calls:  # other tasks ran, and made calls
                in_a_row, held_since = 0, ended_at
            if in_a_row < IN_A_ROW_MOST and ended_at - held_since < HELD_MOST_S:
                if former.parked:
                    self._report_idle()  # they may join the next batch
                if former.live >= former.limit.requests and self._count <= self._most:
                    batch = self._full_batch(ended_at)
            if batch is not None:
                continue
            # And here when the handler gives it back.
            if self._capacity is None or former.parked:
                self._report_idle()
            if in_a_row > 1 or former.live or former.regathering.rounds:
                # Other tasks have their turn. Callers among them may call again, and a batch that
                # is not full should include those calls.
                await self.parking.one_pass()
                former.regathering.callers_ran(self.parking.now())
        return False

    def _full_batch(self, now: float) -> Batch | None:
        """Takes a full batch before the callers of the last one go on; None if it must wait."""
        # The callers would take the event loop's time while the handler is idle. Not called if
        # other tasks may not have run for `IN_A_ROW_MOST` batches or `HELD_MOST_S`.
        former = self.former
        if self.intake.timers.asleep_until <= now:
            self.intake.expire_due()
        decision = former.decide(now)
        batch = None
        if isinstance(decision, Dispatch) and (
            self._capacity is None or not self._capacity.is_full()
        ):
            batch = self._dispatch(decision, now)
        self.bell.ring()  # another slot may wait, by a decision that is outdated now
        return batch

    async def _next_batch(self) -> Batch | None:
        """Waits for the next batch; returns None when this slot is not needed any more."""
        former = self.former
        free_at: float | None = None
        passes_left = _PASSES if former.regathering.is_on else 0
        while self._count <= self._most:
            now = self.parking.now()
            if free_at is None:
                free_at = now
            if self.intake.timers.asleep_until <= now:
                # Otherwise a request could be dispatched in the tick in which it expires.
                self.intake.expire_due()
            decision = former.decide(now)
            if isinstance(decision, Dispatch):
                if self._capacity is not None and self._capacity.is_full():
                    await self._listen(None)
                    free_at = None
                    continue
                may_grow = former.live < self._last_size and decision.reason in WINDOW_ENDED
                if may_grow and passes_left:
                    await self.parking.checkpoint()
                    is_long = self.parking.now() - now > WORTH_S
                    passes_left = 0 if is_long else passes_left - 1
                    continue
                batch = self._dispatch(decision, free_at)
                if batch is not None:
                    return batch
                continue
            if self._capacity is not None:
                self._capacity.rest()
            if former.closed and former.live == 0:
                return None
            await self._listen(decision.until)
        return None

    def _dispatch(self, dispatch: Dispatch, free_at: float) -> Batch | None:
        """Takes a batch from the queue; None if some of its callers have just left."""
        requests = self.former.take(dispatch)
        first = requests[0].waiter if requests else None
        group = group_of(first, requests) if isinstance(first, GroupWaiter) else None
        if group is None:
            departed = self.parking.departed(requests)
        else:
            departed = requests if group.done() else []
        if departed:
            # The decision included these requests, so decide again without them.
            for request in departed:
                request.state = State.CANCELLED
            self.counters.cancelled += len(departed)
            self.former.put_back(requests)
            self.former.reform()  # their room in the queue is free
            return None
        batch = self._begun(requests, dispatch.reason, free_at)
        batch.group = group
        self._last_size = batch.size
        self.counters.batches[dispatch.reason] += 1
        self.counters.batch_size.gather((batch.size,))
        return batch
