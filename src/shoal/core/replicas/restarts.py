"""Backoff: when a replica may be started again after a failure.

The maximum wait doubles with each failure, and the wait is chosen at random between 0 and this
maximum ("full jitter", as in the AWS Architecture Blog's "Exponential Backoff and Jitter"). So
replicas of many backends and machines that failed together do not restart together. After a replica
has been ready for a while, the next failure counts as a first one again.

The replicas of a backend run the same code and fail for the same reasons, so they share one record.
Replicas that are started together also fail together, which counts as one failure: counted for each
replica, it would give ten replicas the longest wait at once. So the failure of a start that began
before the last wait was over belongs to the failure before, and so does a death during a wait.

After several failed starts in a row the circuit is open. Restarts continue, each after its wait,
but callers should not wait for them. Deaths of replicas that were ready never open the circuit,
since these replicas have worked in between.
"""

from __future__ import annotations

import math
from typing import Final

# The longest wait after a first failure, and after many, in seconds; it doubles in between.
_INITIAL_S: Final = 0.1
LONGEST_S: Final = 30.0
# How long a replica must have been ready for its death to count as a first failure, in seconds.
_RESET_AFTER_S: Final = 10.0
# How many starts must fail in a row to open the circuit.
_OPEN_AFTER: Final = 3


class Restarts:
    def __init__(self) -> None:
        self.longest_s = LONGEST_S
        # When the next replica may be started, on the clock of the arguments.
        self.next_at = -math.inf
        self._failures = 0
        self._start_failures = 0
        self._started_at = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether callers should not wait for a replica, after several failed starts in a row."""
        return self._start_failures >= _OPEN_AFTER

    def failed(self, now: float, point: float, *, began_at: float | None = None) -> float:
        """Records a failed start; `point` is a random number from [0, 1)."""
        if (now if began_at is None else began_at) >= self.next_at:
            self._start_failures += 1
            self._wait(now, point)
        return self.next_at

    def started(self, now: float) -> None:
        self._started_at = now
        self._start_failures = 0

    def forget(self) -> None:
        """Clears all failures, since they belong to other code or another config."""
        self.next_at = -math.inf
        self._failures = 0
        self._start_failures = 0

    def lived_well(self, now: float) -> None:
        """Records that a replica was ready long enough; the next failure counts as a first one."""
        self._failures = 0
        self.next_at = min(self.next_at, now + _INITIAL_S)

    def died(self, now: float, point: float, *, ready_at: float | None = None) -> float:
        """Records that a ready replica died; `point` is a random number from [0, 1)."""
        # If `ready_at` is unknown, the last time that any replica became ready is used, which can
        # only make the wait longer.
        lived_s = now - (self._started_at if ready_at is None else ready_at)
        if lived_s >= _RESET_AFTER_S:
            self.lived_well(now)
            self._wait(now, point)
        elif now >= self.next_at:
            self._wait(now, point)
        return self.next_at

    def _wait(self, now: float, point: float) -> None:
        # The exponent is limited to avoid an overflow; the maximum wait is reached long before.
        growth = 2.0 ** min(self._failures, 64)
        self._failures += 1
        self.next_at = now + point * min(self.longest_s, _INITIAL_S * growth)
