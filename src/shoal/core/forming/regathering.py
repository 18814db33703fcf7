"""Whether a free slot waits for the callers whom the last batch answered, since they call again.

Callers in closed loops, which call again as soon as they have their result, split into groups that
take turns. While one group's batch runs, the other group comes back and queues, so the slot finds a
half-full batch whenever it is free, and the groups never meet. No wait that counts from the arrival
can mend this, because the queued group has waited for the whole run.

So the rule looks at what follows the end of a batch. A *round* lasts from the end of a batch to the
next end. In a closed loop the calls of a round come right after the batch's end; calls that do not
depend on it come at any time of the round. From the last rounds it learns

- the share of the answered callers that comes back within the time that is worth waiting;
- how soon they do so: the time within which 95% of them were back in the second slowest of the last
  eight rounds, and a quarter more;
- how much denser the calls are in that time than in the rest of the round.

If they are much denser, a free slot waits until the learned share is there, or the learned time is
past. Waiting for the others costs that time once, running them apart costs another batch. So the
time that is worth waiting is the part of a run that does not depend on the size, by the latency
model. While the model does not know that part, it is a small part of the run.

The rival, to wait for a gap in the arrivals (`idle_timeout_s`), needs a gap that suits the callers,
and delays calls that come at random as well.

Which callers come back is not known, only how many calls there are: each call may be made by a new
task, as in a server. No work is done for a call. For a batch it is linear in its size, and nothing
is done for batches that run for less than `WORTH_S`, or while one caller is alone. For fast batches
a worker slot waits for some passes of the event loop instead.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from shoal.core.policies.factory import regathers
from shoal.core.policy import Dispatch, Wait
from shoal.core.queue import NOTHING
from shoal.core.request import DispatchReason, State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.core.forming.pressure import PressureTracker
    from shoal.core.latency_model import LatencyModel
    from shoal.core.options.options import BatchOptions
    from shoal.core.policies.rule import Rule
    from shoal.core.request import Request
    from shoal.core.timers import Overdue

WORTH_S: Final = 0.0005
"""Batches that run for less, in seconds, are not worth any wait: a loop's pass may take as long."""
_ROUNDS: Final = 8
_FEWEST_ROUNDS: Final = 3
_FEWEST_RETURNS: Final = 8
# How much denser calls must be after the end of a batch than in the rest of the round.
_DENSER: Final = 12.0
# The last few that return are not worth waiting for, and the return time has a margin.
_MOST_OF_THEM: Final = 0.95
_MARGIN: Final = 1.25
# The part of a run that is worth waiting while all batches had about the same size.
_PART_OF_A_RUN: Final = 0.25
# For sums of fractions.
_ROUNDING: Final = 1e-9
WINDOW_ENDED: Final = (DispatchReason.TIMER, DispatchReason.IDLE)


class _Round:
    def __init__(self, began_at: float, answered: int, worth_s: float) -> None:
        self.began_at = began_at
        self.answered = answered
        # How long it is worth to wait for the callers, in seconds.
        self.worth_s = worth_s
        # How long it took until the callers had their results and ran, in seconds. The event loop
        # works for them in this time, so it does not count as theirs.
        self.woken_s = 0.0
        # When the next batch ended; infinity if none has.
        self.ended_at = math.inf
        # How long after the beginning calls were made: those within `worth_s`, at most one for each
        # answered caller.
        self.delays: list[float] = []
        # How many other calls were made until the next batch ended.
        self.others = 0


class _Returns(NamedTuple):
    worth_s: float
    answered: int
    # How many calls were made in time, at most one for each answered caller.
    returned: int
    # How long that took, in seconds.
    within_s: float
    # How many of them were made after the callers had their results.
    own: int
    # How long that took, in seconds.
    own_s: float
    # How many calls were made later.
    others: int
    # How long the rest of the round was, in seconds.
    later_s: float


class Regathering:
    """The waits of one batcher for callers that are about to call again."""

    def __init__(self, model: LatencyModel, overdue: Overdue, pressures: PressureTracker) -> None:
        self._model = model
        self._overdue = overdue
        self._pressures = pressures
        self.is_on = False
        self._limit = NOTHING
        # A request due before this time can't wait; minus infinity while no batch waits.
        self.urgent_before = -math.inf
        # Whether the batch that is due has waited.
        self.has_waited = False
        self._forget()

    def change(self, options: BatchOptions) -> None:
        self._limit = options.batch_limit
        self.is_on = regathers(options)
        if not self.is_on:
            self._forget()

    def _forget(self) -> None:
        self.rounds: deque[_Round] = deque()
        self._seen: deque[_Returns] = deque(maxlen=_ROUNDS)
        # What was learned; a wait of 0 is none.
        self._share = 0.0
        self._wait_s = 0.0
        # How many calls are expected, counted from which number of calls.
        self.owed = 0.0
        self._owed_since = 0
        self._last_end_at = -math.inf

    def ended(
        self, members: Iterable[Request], run_s: float, now: float, calls: int, running: int
    ) -> None:
        if not self.is_on:
            return
        if run_s < WORTH_S:
            self._wait_s = self.owed = 0
            if self.rounds:
                self.rounds.clear()
                self._seen.clear()
            return
        rounds = self.rounds
        if rounds:
            rounds[-1].ended_at = now
        requests = list(members)
        self._sort_in([request.arrived_at for request in requests])
        answered = sum([request.state is not State.CANCELLED for request in requests])
        worth_s = self._model.fixed_s()
        if worth_s is None:  # a run of any size seems to take the same
            worth_s = (self._model.run_s(1) or 0) * _PART_OF_A_RUN
        rounds.append(_Round(now, answered, worth_s))
        while len(rounds) > running + 3:
            self._learn(rounds.popleft())
        self._conclude()
        # Those of earlier batches that have not come yet may still do.
        carried = 0.0
        if now - self._last_end_at < self._wait_s:
            carried = max(0.0, self.owed - (calls - self._owed_since))
        self.owed = carried + answered * self._share
        self._owed_since = calls
        self._last_end_at = now

    def callers_ran(self, now: float) -> None:
        if self.rounds:
            last = self.rounds[-1]
            last.woken_s = now - last.began_at

    def decide(
        self,
        decision: Dispatch | Wait,
        policy: Rule,
        now: float,
        live: int,
        calls: int,
        idle_slots: float,
    ) -> Dispatch | Wait:
        """Makes a batch wait if the policy dispatches it because its window has ended."""
        # Not needed while no call is `owed` and no batch `has_waited`.
        self.urgent_before = -math.inf
        has_waited, self.has_waited = self.has_waited, False
        if not self.is_on or isinstance(decision, Wait) or decision.reason not in WINDOW_ENDED:
            return decision
        # No call is awaited by unlimited slots.
        expected = self.owed / max(1, idle_slots) - (calls - self._owed_since)
        missing = math.ceil(expected - _ROUNDING)
        if missing > 0:
            cost = policy.cost_of_all() * (live + missing) / live
            lead_s = self._pressures.lead_s(min(cost, self._limit.cost)) or 0
            # It includes requests that run, which only shortens the wait.
            due = self._overdue.timers.next_at() - lead_s
            until = min(self._last_end_at + self._wait_s, due)
            if until > now:
                self.has_waited = True
                self.urgent_before = until + lead_s
                policy.hold()
                most, wake_at = self._limit.requests, live + missing
                return Wait(until, int(min(wake_at, most)) if live < most else wake_at)
        return decision._replace(reason=DispatchReason.REGATHER) if has_waited else decision

    def _sort_in(self, times: list[float]) -> None:
        # A call counts for the oldest batch with callers that are not all back.
        times.sort()
        rounds = self.rounds
        place = 0
        before: _Round | None = None
        for each in rounds:
            # Calls at the same time were made after the end, on a clock that did not advance.
            begin = bisect_left(times, each.began_at, place)
            if before is not None:
                before.others += begin - place
            late = bisect_right(times, each.began_at + each.worth_s + each.woken_s, begin)
            place = min(late, begin + each.answered - len(each.delays))
            each.delays += [at - each.began_at for at in times[begin:place]]
            before = each
        if before is not None:
            before.others += len(times) - place

    def _learn(self, each: _Round) -> None:
        delays = sorted(each.delays)
        worth_s = each.worth_s + each.woken_s
        lasted_s = each.ended_at - each.began_at
        returned = math.ceil(len(delays) * _MOST_OF_THEM)
        within_s = delays[returned - 1] if returned else min(worth_s, lasted_s)
        self._seen.append(
            _Returns(
                worth_s,
                each.answered,
                len(delays),
                within_s,
                max(0, returned - bisect_left(delays, each.woken_s)),
                max(0.0, within_s - each.woken_s),
                each.others + len(delays) - returned,
                max(0.0, lasted_s - within_s),
            )
        )

    def _conclude(self) -> None:
        seen = self._seen
        self._wait_s = 0
        if len(seen) < _FEWEST_ROUNDS:
            return
        worth_s, answered, returned, _, own, own_s, others, later_s = map(
            sum, zip(*seen, strict=True)
        )
        if own < _FEWEST_RETURNS or own * later_s < _DENSER * (others + 1) * own_s:
            return
        self._share = returned / answered
        slowest = sorted([one.within_s for one in seen])[-2]
        self._wait_s = min(worth_s / len(seen), slowest * _MARGIN)
