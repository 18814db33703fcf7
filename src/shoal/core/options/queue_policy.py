"""How the requests of one priority level may wait: a record, after Triton's queue policy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, get_args

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
