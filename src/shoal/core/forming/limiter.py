"""When batches may start that a service behind the handler limits: a token bucket, and pauses.

A bucket fills at the rate of the limit, up to what a burst may save. A batch may start when no
bucket is in debt, and then takes what it costs, which may leave a debt. So the next batch's cost
need not be known to decide when it may start, and a batch that costs more than a minute's worth can
start, too. In any time, at most one batch more than the rate allows is started.

The alternative, to wait until the bucket has what the batch costs, needs a bucket as large as the
largest batch, which lets small batches start in bursts.

After an `errors.RetryLater` no batch starts for the time that it names. A backend with several
methods has a batcher for each; they share one `Limiter`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shoal.core.options.records import Limit

_SECONDS_PER_MIN: Final = 60
# A cost may be an integer that is too large for a float.
_MOST_COST: Final = 1e300


class _Bucket:
    __slots__ = ("_at", "_before", "_burst_s", "_level", "_rate")

    def __init__(self) -> None:
        self._rate: float | None = None  # a second; None for no limit
        self._burst_s = 0.0
        # How much it had at a time; below 0 if it was in debt.
        self._level = 0.0
        self._at = -math.inf
        self._before = self._level, self._at

    def change(self, rate: float | None, burst_s: float) -> None:
        self._rate, self._burst_s = rate, burst_s

    def spend(self, amount: float, now: float) -> None:
        self._before = self._level, self._at
        if self._rate is not None:
            most = self._rate * self._burst_s
            level = min(most, self._level + self._rate * (now - self._at))
            self._level, self._at = level - min(amount, _MOST_COST), now

    def refund(self) -> None:
        self._level, self._at = self._before

    def opens_at(self) -> float:
        """Returns when it is out of debt; minus infinity if it is not in debt."""
        if self._rate is None or self._level >= 0:
            return -math.inf
        return self._at - self._level / self._rate


class Limiter:
    """Decides when the next batch may start, for all batchers of one backend."""

    def __init__(self) -> None:
        # Whether there is a limit, or has been a pause; otherwise nothing else needs a look.
        self.is_active = False
        # No batch may start before this time.
        self.opens_at = -math.inf
        self._paused_until = -math.inf
        self._batches = _Bucket()
        self._cost = _Bucket()

    def change(self, limit: Limit | None) -> None:
        """Applies another limit to what was spent so far, and to what follows."""
        per_min = None if limit is None else limit.cost_per_min
        burst_s = 0 if limit is None else limit.burst_s
        self._batches.change(None if limit is None else limit.batches_per_s, burst_s)
        self._cost.change(None if per_min is None else per_min / _SECONDS_PER_MIN, burst_s)
        if limit is not None:
            self.is_active = True
        self._update()

    def pause(self, until: float) -> None:
        self._paused_until = max(self._paused_until, until)
        self.is_active = True
        self._update()

    def spend(self, cost: float, now: float) -> None:
        self._batches.spend(1, now)
        self._cost.spend(cost, now)
        self._update()

    def refund(self) -> None:
        self._batches.refund()
        self._cost.refund()
        self._update()

    def _update(self) -> None:
        self.opens_at = max(self._paused_until, self._batches.opens_at(), self._cost.opens_at())
