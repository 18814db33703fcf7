"""Chooses batch sizes and waits so that 99% of the calls meet a latency target.

**Size.** A request that has just missed a batch waits until a slot is free and then for its own
run. With `s` slots that are out of step, a slot becomes free after a fraction ``1/s`` of a run. So
batches should not grow beyond

    (1 + 1/s) * bound(n) <= planned

where ``bound(n)`` bounds the run time of 99% of the batches of size `n`. This size must not be a
hard limit. Small batches have a lower throughput, so under a load beyond the capacity of batches of
that size the queue would grow without limit; and requests that are left for the next batch are
delayed by a whole run. So if a batch of all queued requests runs within the planned time, all of
them are dispatched. If not, the batch is as large as possible with its first request still in time.
If such a batch would be very small, the requests are late in any case, and all are dispatched.

No training is needed: the size of a batch is limited to a multiple of the largest size measured,
and the first batch has one request.

**Wait.** Let `n` requests wait for a free slot, and the next request arrive in `g` seconds. If the
batch is dispatched now, the next request finds a free slot after about ``(n*a + b)/s - g``, and
then runs alone, for ``a + b``. If the batch waits for it, the run takes ``(n + 1)*a + b``, and each
of the `n` requests is delayed by ``g + a``. So waiting reduces the sum of all latencies if

    n*(g + a) < (n*a + b)/s - n*a - g         which is  g < (b - n*a) / (n + 1)  for one slot.

The next gap is not known, so it is predicted from the last 128 gaps; a gap lasts from an arrival or
the end of a batch to the next arrival. To wait for at most `t` saves, for each gap within `t`, the
time that the new request would otherwise lose. It costs, for each gap, ``n + 1`` times the smaller
of the gap and `t`: the `n` requests wait, and a request that arrives later finds the slot busy for
that much longer. The `t` with the largest net gain is chosen, if there is a gain. It is doubled,
because a sample of gaps does not contain the longest possible one, and requests that just miss a
batch are the late ones. So no distribution of arrivals is assumed. With random arrivals a batch
waits as long as more requests are worth the delay. The end of a burst is detected. Callers that
call again as soon as they have a result are collected into one batch, instead of two that take
turns. A single such caller never waits, since its gap is its own run.

No batch waits so long that the wait of its oldest request plus the run with one more request would
exceed the planned time. This limit ignores requests that are late already: otherwise two groups of
callers, each late because of the other, would never merge into one.

Rejected alternatives: increasing the size additively and reducing it after a miss (Clipper's
default, arXiv 1612.03079) has to miss the target repeatedly to find the limit; hill climbing on the
mean latency (TensorFlow's adaptive scheduler) takes a thousand batches per step; waiting as long as
batches waited on average, with a tick of a millisecond, and failing the oldest request once the
target is missed (BentoML) keeps up a wait only because there was one before.
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
# Every fourth of the sorted gaps is considered as a wait.
_STEP: Final = 4
_AND_MORE: Final = 2.0
# If the largest batch with its first request in time is below this part of the steady size, it is
# too small to be worth it.
_WORTH_SAVING: Final = 0.5
_NEVER: Final = float("-inf")


class AdaptiveRule:
    """Chooses the size and the wait of one batcher's batches."""

    def __init__(
        self, target: LatencyTarget, model: LatencyModel, most_cost: float, slots: float
    ) -> None:
        self._planned_s = target.planned_s
        self._growth = target.growth
        self._model = model
        self._most_cost = float(most_cost)
        self._least_cost = min(1.0, most_cost)
        self._slots = slots
        self._last_arrival = _NEVER
        # How long the first request had waited at the last call of `dispatch_at`.
        self._oldest_waited_s = 0.0
        # How many batches had ended at that call, and when the last end of one was noticed.
        self._ended: int = 0
        self._ended_at = _NEVER
        self._gaps: deque[float] = deque(maxlen=_GAPS)

    def arrived(self, now: float) -> None:
        """Records an arrival, whether a slot is free or not; times must not decrease."""
        since = self._last_arrival
        if self._ended_at > since:
            since = self._ended_at
        if since != _NEVER:
            # A parked request arrived before it was admitted, so the gap may be negative.
            self._gaps.append(max(0.0, now - since))
        self._last_arrival = now

    def limit(self, waiting: float = 0) -> float:
        """Returns the greatest cost of the next batch, at most ``most_cost``."""
        # `waiting` is the cost of the queued requests, as in the last `dispatch_at`. 0 asks for the
        # cost that batches should not exceed while requests are in time, for statistics.
        model, planned_s, least = self._model, self._planned_s, self._least_cost
        steady = model.size_within(planned_s / (1 + 1 / self._slots))
        if steady is None:
            return least
        ventured = min(self._most_cost, max(least, model.largest() * self._growth))
        steady = min(ventured, max(least, steady))
        if not waiting:
            return steady
        all_s = model.bound_s(min(waiting, ventured))
        saving = model.size_within(planned_s - self._oldest_waited_s)
        assert all_s is not None
        assert saving is not None
        if all_s > planned_s and saving >= steady * _WORTH_SAVING:
            return max(least, saving)
        return ventured

    def dispatch_at(
        self,
        now: float,
        oldest_arrived_at: float,
        newest_arrived_at: float,
        cost: float,
        requests: int | None = None,
    ) -> float:
        """Returns when a batch that can still grow must be dispatched; `now` or before: at once."""
        # The result holds until a request arrives or leaves, or until that time. A batch that has
        # reached `limit(cost)` is dispatched at once, whatever the result. `requests` is None if it
        # equals `cost`.
        self._oldest_waited_s = now - oldest_arrived_at
        model, slots = self._model, self._slots
        ended = model.samples()
        if ended != self._ended:
            # Its callers may call again soon, however long ago the last arrival was.
            self._ended, self._ended_at = ended, now
        bound_s = model.bound_s(cost)
        if bound_s is None:
            return now
        many = cost if requests is None else requests
        a_s, b_s = model.per_size_s()
        own_s = a_s * cost
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
        """Returns how long to wait in total since the last arrival or batch end, in seconds."""
        # `saves_s` is the time saved by a request that arrives now, minus the loss of the others.
        if saves_s <= 0:
            return 0.0
        rising = sorted(self._gaps)
        sums = list(accumulate(rising, initial=0.0))
        passed = passed_s / _AND_MORE
        # The current gap is longer than what has passed, so shorter gaps do not count.
        first = bisect_right(rising, passed)
        spent_s = sums[first] + passed * (len(rising) - first)
        best, best_gain = 0.0, 0.0
        for last in range(len(rising) - 1, first - 1, -_STEP):
            # The total wait over all gaps, if none lasts longer than this one.
            waited_s = sums[last + 1] + rising[last] * (len(rising) - 1 - last)
            gain = (last + 1 - first) * saves_s - (many + 1) * (waited_s - spent_s)
            if gain > best_gain:
                best, best_gain = rising[last], gain
        return best * _AND_MORE
