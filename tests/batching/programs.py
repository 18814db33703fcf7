"""What a random program may do to a batcher, beside calling it.

All times are multiples of a quarter of a second, so that in virtual time things that are unlikely
to meet (a deadline, the end of a handler's run, the end of a window) meet all the time.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True)
class Cancel:
    """One of the callers that wait is cancelled."""

    which: int


@dataclass(frozen=True)
class Advance:
    """Time passes."""

    by_s: float


@dataclass(frozen=True)
class Configure:
    """Options change."""

    changes: dict[str, Any]


class Op(Enum):
    """What is done without a parameter."""

    HOLD = "from now on handlers wait"
    RELEASE = "handlers wait no longer"
    FLUSH = "`Batcher.flush`"
    DRAIN = "`Batcher.drain`"
    CLOSE = "`Batcher.aclose`, in a task of its own"
    SETTLE = "every task runs until it waits; without it the next is in the same tick"


@dataclass(frozen=True)
class Program:
    """A batcher's options, and what is done to it, in order."""

    streams: bool
    options: dict[str, Any]
    ops: list[Any] = field(default_factory=list)
    releases: bool = True  # whether handlers that are held at the end are released before closing
    seed: int = 0  # of trio's scheduler
