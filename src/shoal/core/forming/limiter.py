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
    __slots__ = ("_at", "_before", "_level", "burst_s", "rate")

    def __init__(self) -> None:
        self.rate: float | None = None  # a second; None for no limit
        self.burst_s = 0.0
        # How much it had at a time; below 0 if it was in debt.
        self._level = 0.0
        self._at = -math.inf
        self._before = self._level, self._at

    def spend(self, amount: float, now: float) -> None:
        self._before = self._level, self._at
        if self.rate is not None:
            most = self.rate * self.burst_s
            level = min(most, self._level + self.rate * (now - self._at))
            self._level, self._at = level - min(amount, _MOST_COST), now

    def refund(self) -> None:
        self._level, self._at = self._before

    def opens_at(self) -> float:
        """Returns when it is out of debt; minus infinity if it is not in debt."""
        if self.rate is None or self._level >= 0:
            return -math.inf
        return self._at - self._level / self.rate


class Limiter:
    """Decides when the next batch may start, for all batchers of one backend."""

    def __init__(self) -> None:
        # Whether there is a limit, or has been a pause; otherwise nothing else needs a look.
        self.is_active = False
        self._paused_until = -math.inf
        self._batches = _Bucket()
        self._cost = _Bucket()

    def change(self, limit: Limit | None) -> None:
        """Applies another limit to what was spent so far, and to what follows."""
        self._batches.rate = self._cost.rate = None
        if limit is None:
            return
        self.is_active = True
        self._batches.rate = limit.batches_per_s
        if limit.cost_per_min is not None:
            self._cost.rate = limit.cost_per_min / _SECONDS_PER_MIN
        self._batches.burst_s = self._cost.burst_s = limit.burst_s

    def pause(self, until: float) -> None:
        self._paused_until = max(self._paused_until, until)
        self.is_active = True

    def spend(self, cost: float, now: float) -> None:
        self._batches.spend(1, now)
        self._cost.spend(cost, now)

    def refund(self) -> None:
        self._batches.refund()
        self._cost.refund()

    @property
    def opens_at(self) -> float:
        """No batch may start before this time."""
        return max(self._paused_until, self._batches.opens_at(), self._cost.opens_at())
