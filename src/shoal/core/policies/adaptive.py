"""How large batches are, and how long they wait, so that 99% of the calls hold a latency target.

**Size.** A request that has just missed a batch waits until a slot is free, which with `s` slots
out of step is a part ``1/s`` of a run, and then for its own run. So batches should not grow beyond

    (1 + 1/s) * bound(n) <= planned

where ``bound`` is what 99% of the batches of that size run within. But as a bound on the line this
would be wrong. Small batches have the smaller throughput, so when more comes than batches of that
size can take, the line grows without end; and those who are left for the next batch are later by a
whole run. So if all that waits runs within the plan, all of it goes. If not, as much goes as still
saves the first of them; if that is hardly anything, they can't be saved, and all of it goes.

There is no training: a batch has at most so many times the largest size that was measured, and the
first has one request.

**Wait.** Let `n` wait for a free slot, and the next request come in `g` seconds. If the batch goes
now, that one finds a slot after some ``(n*a + b)/s - g``, and then runs alone, for ``a + b``. If
the batch waits, it runs for ``(n + 1)*a + b``, and each of the `n` is later by ``g + a``. So in the
sum of all latencies waiting pays if

    n*(g + a) < (n*a + b)/s - n*a - g         which is  g < (b - n*a) / (n + 1)  for one slot.

When the next one comes is not known, but how it was lately is: kept are the last 128 gaps, from
what one could have waited from (an arrival, or the end of a batch) to the next arrival. To wait for
at most `t` gains for each gap within `t` what a newcomer saves, and costs for each gap ``n + 1``
times the lesser of it and `t`: the `n` wait, and one who comes later finds the slot busy for that
much longer. The `t` that gains most is taken, if any gains; and as much again, because the longest
of some gaps is not the longest that there is, and those who just miss a batch are the late ones. So
nothing is supposed about the arrivals: at random ones it waits as long as company is worth it, it
notices the end of a burst, and it gathers callers that come again as soon as they are answered into
one batch, instead of two that take turns. A lone one, whose gap is its own run, never waits.

No batch waits for so long that the wait of its oldest and a run of one more would pass the plan. Of
who is late already that is not asked: or callers that once fell into two groups, each of them late
because of the other, would never be one group again.

Rivals that were turned down: adding to the size and cutting it back (Clipper's default, arXiv
1612.03079) has to miss the target again and again to know where it is; climbing the hill of the
mean latency (TensorFlow's adaptive scheduler) takes a thousand batches a step; waiting for as long
as batches waited on average, with a tick of a millisecond, and failing the oldest request once the
target is missed (BentoML) keeps a wait up only because it was there before.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shoal.core.latency_model import LatencyModel
    from shoal.core.options.records import LatencyTarget

_GAPS: Final = 128
# Of the gaps in order, each fourth is a wait that is weighed.
_STEP: Final = 4
# After so many more they are put in order anew.
_STALE: Final = 8
_AND_MORE: Final = 2.0
# A batch that saves the first in line saves too few if it is less than this part of a steady one.
_WORTH_SAVING: Final = 0.5
_NEVER: Final = float("-inf")


class AdaptiveRule:
    """The size and the wait of one batcher's batches.

    Args:
        target: What is to be held.
        model: The run times; whoever runs the batches tells it.
        max_batch_size: The most in one batch, whatever the target allows.
        slots: How many batches may be in the handler at once; infinity for any number.
    """

    __slots__ = (
        "_ended",
        "_ended_at",
        "_fresh",
        "_gaps",
        "_growth",
        "_last_arrival",
        "_model",
        "_most",
        "_oldest_waited_s",
        "_planned_s",
        "_rising",
        "_slots",
        "_sums",
        "_waited_s",
    )

    def __init__(
        self, target: LatencyTarget, model: LatencyModel, max_batch_size: int, slots: float
    ) -> None:
        self._planned_s = target.planned_s
        self._growth = target.growth
        self._model = model
        self._most = float(max_batch_size)
        self._slots = slots
        self._last_arrival = _NEVER
        # How long the first of the line that was asked about last had waited then.
        self._oldest_waited_s = 0.0
        # How many batches had ended when that was looked at last, and when one was seen to.
        self._ended: int = 0
        self._ended_at = _NEVER
        self._gaps: deque[float] = deque(maxlen=_GAPS)
        # The gaps in rising order, the sums of the first of them, how long one would have waited in
        # all gaps together for at most each of them, and how many came since.
        self._rising: list[float] = []
        self._sums: list[float] = [0.0]
        self._waited_s: list[float] = []
        self._fresh = 0

    def arrived(self, now: float) -> None:
        """Takes note of a request that comes, whether a slot is free or not.

        Args:
            now: When it came, in seconds; not before the last one.
        """
        since = self._last_arrival
        if self._ended_at > since:
            since = self._ended_at
        if since != _NEVER:
            # One that was parked came before it was let in.
            self._gaps.append(max(0.0, now - since))
            self._fresh += 1
        self._last_arrival = now

    def limit(self, waiting: float = 0) -> float:
        """Returns the most that the next batch should hold, from 1 to `max_batch_size`.

        Args:
            waiting: The size of all that waits, in the line that `dispatch_at` was asked about
                last. 0 asks for what batches should not grow beyond while the line is in time: a
                figure to show, and no bound to cut by.
        """
        model, planned_s = self._model, self._planned_s
        steady = model.size_within(planned_s / (1 + 1 / self._slots))
        if steady is None:
            return 1.0
        ventured = min(self._most, max(1.0, model.largest() * self._growth))
        steady = min(ventured, max(1.0, steady))
        if not waiting:
            return steady
        all_s = model.bound_s(min(waiting, ventured))
        saving = model.size_within(planned_s - self._oldest_waited_s)
        assert all_s is not None
        assert saving is not None
        if all_s > planned_s and saving >= steady * _WORTH_SAVING:
            return max(1.0, saving)
        return ventured

    def dispatch_at(
        self,
        now: float,
        oldest_arrived_at: float,
        newest_arrived_at: float,
        size: float,
        requests: int | None = None,
    ) -> float:
        """Says when a batch that could still grow must go; to be asked when a slot is free.

        The answer holds until a request comes or leaves, or until that time: ask again then. What
        has reached ``limit(size)`` goes at once, whatever the answer.

        Args:
            now: The time, in seconds.
            oldest_arrived_at: When the first of the waiting requests came, in seconds.
            newest_arrived_at: When the last of them came, in seconds.
            size: What all of them sum up to.
            requests: How many they are; None where that is their size.

        Returns:
            The time; `now` or earlier to cut at once.
        """
        self._oldest_waited_s = now - oldest_arrived_at
        model, slots = self._model, self._slots
        ended = model.samples()
        if ended != self._ended:
            # Its callers may be about to come again, however long ago the last arrival was.
            self._ended, self._ended_at = ended, now
        bound_s = model.bound_s(size)
        if bound_s is None:
            return now
        many = size if requests is None else requests
        a_s, b_s = model.per_size_s()
        own_s = a_s * size
        more_s = own_s / many if many else a_s
        usual_s = own_s + b_s
        with_one_more_s = bound_s * (usual_s + more_s) / usual_s
        latest = math.inf
        for arrived_at in (newest_arrived_at, oldest_arrived_at):
            due = arrived_at + self._planned_s
            if now + bound_s <= due:  # it is not late already
                latest = due - with_one_more_s
        if latest <= now:
            return now
        saves_s = usual_s / slots - own_s - many * more_s
        since = max(newest_arrived_at, self._ended_at)
        waits_s = self._worth_waiting_s(now - since, many, saves_s)
        return min(latest, since + waits_s) if waits_s else now

    def _worth_waiting_s(self, passed_s: float, many: float, saves_s: float) -> float:
        """Says how long to wait in all, more than has passed; 0 for no longer.

        Args:
            passed_s: How long nobody has come.
            many: How many wait.
            saves_s: What one saves who comes at once and travels along, less what the others lose.
        """
        if saves_s <= 0:
            return 0.0
        if self._fresh >= _STALE or not self._rising:
            self._order_gaps()
        rising, waited_s = self._rising, self._waited_s
        passed = passed_s / _AND_MORE
        # Shorter gaps than what has passed are not this one.
        first = bisect_right(rising, passed)
        spent_s = self._sums[first] + passed * (len(rising) - first)
        best, best_gain = 0.0, 0.0
        for last in range(len(rising) - 1, first - 1, -_STEP):
            gain = (last + 1 - first) * saves_s - (many + 1) * (waited_s[last] - spent_s)
            if gain > best_gain:
                best, best_gain = rising[last], gain
        return best * _AND_MORE

    def _order_gaps(self) -> None:
        self._fresh = 0
        self._rising = rising = sorted(self._gaps)
        self._sums = list(accumulate(rising, initial=0.0))
        beyond = range(len(rising) - 1, -1, -1)
        self._waited_s = [
            within + gap * more
            for gap, within, more in zip(rising, self._sums[1:], beyond, strict=True)
        ]
