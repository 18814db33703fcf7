"""Options that are records: the queue policy of a priority level, and the latency target.

The queue policy says how the requests of one level may wait, after Triton's. With a latency target
a batcher chooses its batch sizes and waits by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, get_args

from shoal.core.options.checks import one_of, seconds, whole

TimeoutAction = Literal["reject", "delay"]


class Same(Enum):
    """Stands for the batcher's own option."""

    SAME = "the batcher's"


SAME: Final = Same.SAME
"""The batcher's own option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """How the requests of one priority level may wait in line.

    Attributes:
        max_queued_requests: The most requests of the level that may wait; a call beyond it raises
            `Overloaded`, whatever ``overload`` says. None for no bound of its own.
        timeout_s: How long a request may wait in line, in seconds; None for no limit. A call's own
            ``queue_timeout_s`` can only shorten it.
        timeout_action: What becomes of one that has waited for that long: ``"reject"`` fails it
            with `DeadlineExceeded`, ``"delay"`` lets all others of its level go first.
        batch_wait_timeout_s: How long a request of the level may wait for company, in seconds,
            where that differs from the batcher's. None: a batch never leaves for its sake alone,
            so that it only fills the room that others leave.
    """

    max_queued_requests: int | None = None
    timeout_s: float | None = None
    timeout_action: TimeoutAction = "reject"
    batch_wait_timeout_s: float | Same | None = SAME

    def __post_init__(self) -> None:
        put = object.__setattr__  # the record is frozen; this is its own constructor
        if self.max_queued_requests is not None:
            bound = whole("max_queued_requests", self.max_queued_requests, least=1)
            put(self, "max_queued_requests", bound)
        if self.timeout_s is not None:
            put(self, "timeout_s", seconds("timeout_s", self.timeout_s))
        wait = self.batch_wait_timeout_s
        if wait is not None and not isinstance(wait, Same):
            put(self, "batch_wait_timeout_s", seconds("batch_wait_timeout_s", wait))
        one_of("timeout_action", self.timeout_action, get_args(TimeoutAction))


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
