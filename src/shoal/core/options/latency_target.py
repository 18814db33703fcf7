"""The latency that a batcher is to hold, for which it chooses its batch sizes and waits itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTarget:
    """What 99% of the calls should take at most, and how carefully to go about it.

    It is held as long as the handler can keep up. When more comes than that, batches grow up to
    ``max_batch_size``, because small ones would only make the line longer; bound the line, or use
    deadlines, to refuse what comes too late.

    Attributes:
        p99_s: How long 99% of the calls may take, from the call to the result, in seconds.
        headroom: The part of it that is planned with, above 0 and at most 1. The rest is for what
            happens around the handler.
        growth: How many times the largest size that was measured a batch may have, above 1. So a
            batcher begins with a batch of one, and reaches large ones in a few steps.
    """

    p99_s: float
    headroom: float = 0.9
    growth: float = 4.0

    def __post_init__(self) -> None:
        put = object.__setattr__  # the record is frozen; this is its own constructor
        put(self, "p99_s", _number("p99_s", self.p99_s, "a number of seconds, such as 0.1"))
        put(self, "headroom", _number("headroom", self.headroom, "a number, such as 0.9"))
        put(self, "growth", _number("growth", self.growth, "a number, such as 4"))
        if not 0 < self.p99_s < math.inf:
            raise ValueError(f"p99_s must be above 0 seconds, and finite, not {self.p99_s!r}")
        if not 0 < self.headroom <= 1:
            raise ValueError(f"headroom must be above 0 and at most 1, not {self.headroom!r}")
        if not 1 < self.growth < math.inf:
            raise ValueError(f"growth must be above 1, and finite, not {self.growth!r}")

    @property
    def planned_s(self) -> float:
        """The seconds that are planned with: `p99_s` times `headroom`."""
        return self.p99_s * self.headroom


def _number(name: str, value: Any, wanted: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be {wanted}, not {value!r}")
    return float(value)
