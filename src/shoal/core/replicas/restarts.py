"""When a replica may be started again after one has failed.

The wait doubles from failure to failure, and of each the whole is left to chance ("full jitter", as
in the AWS Architecture Blog's "Exponential Backoff and Jitter"): replicas that failed together, of
many backends and on many machines, do not come back together. A replica that has lived for a while
makes the next failure a first one.

The replicas of a backend run the same code, so they share one record: what keeps one from starting
keeps them all. Those that are started together, then, also fail together, and that is one failure:
counted once for each, it would make ten replicas wait for the longest time at once. So a start that
began before the last wait was over belongs to the failure before, and a death during a wait does.

After some failures to start in a row the circuit is open. Tries go on all the same, each after its
wait; but whoever waits for a replica need not wait for those. A replica that dies once it was ready
does not open it, however often: between its deaths it has worked.
"""

from __future__ import annotations

import math


class Restarts:
    """The failures of a backend's replicas, and what follows from them.

    Args:
        initial_s: The longest wait after a first failure, in seconds.
        factor: What it grows by with each further one.
        max_s: What it does not grow beyond, in seconds.
        reset_after_s: How long a replica must have been ready for its death to be a first failure
            again, in seconds.
        open_after: After how many failures to start in a row the circuit is open.

    Attributes:
        next_at: When the next replica may be started, on the clock of those who tell the times.
    """

    __slots__ = (
        "_factor",
        "_failures",
        "_initial_s",
        "_max_s",
        "_open_after",
        "_reset_after_s",
        "_start_failures",
        "_started_at",
        "next_at",
    )

    def __init__(
        self,
        *,
        initial_s: float = 0.1,
        factor: float = 2.0,
        max_s: float = 30.0,
        reset_after_s: float = 10.0,
        open_after: int = 3,
    ) -> None:
        self.next_at = -math.inf
        self._initial_s = initial_s
        self._factor = factor
        self._max_s = max_s
        self._reset_after_s = reset_after_s
        self._open_after = open_after
        self._failures = 0
        self._start_failures = 0
        self._started_at = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether replicas have failed to start so often that none is to be waited for."""
        return self._start_failures >= self._open_after

    def failed(self, now: float, point: float, *, began_at: float | None = None) -> float:
        """Notes that a replica could not be started.

        Args:
            now: The time.
            point: A random number from [0, 1).
            began_at: When its start began; `now` where that is not known.

        Returns:
            `next_at`.
        """
        if (now if began_at is None else began_at) >= self.next_at:
            self._start_failures += 1
            self._wait(now, point)
        return self.next_at

    def started(self, now: float) -> None:
        """Notes that a replica has become ready."""
        self._started_at = now
        self._start_failures = 0

    def forget(self) -> None:
        """Forgets all failures: they were those of other code, or of another config."""
        self.next_at = -math.inf
        self._failures = 0
        self._start_failures = 0

    def lived_well(self, now: float) -> None:
        """Notes that a replica has been ready for long enough: the next failure is a first one.

        Args:
            now: The time.
        """
        self._failures = 0
        self.next_at = min(self.next_at, now + self._initial_s)

    def died(self, now: float, point: float, *, ready_at: float | None = None) -> float:
        """Notes that a replica has died once it was ready.

        Args:
            now: The time.
            point: A random number from [0, 1).
            ready_at: Since when it was ready. Where that is not known it counts as the last that
                became so, which can only make the wait longer.

        Returns:
            `next_at`.
        """
        lived_s = now - (self._started_at if ready_at is None else ready_at)
        if lived_s >= self._reset_after_s:
            self.lived_well(now)
            self._wait(now, point)
        elif now >= self.next_at:
            self._wait(now, point)
        return self.next_at

    def _wait(self, now: float, point: float) -> None:
        # Beyond some hundred failures the power would overflow; the longest wait is reached before.
        growth = self._factor ** min(self._failures, 64)
        self._failures += 1
        self.next_at = now + point * min(self._max_s, self._initial_s * growth)
