"""What a random program may do to a batcher, beside calling it.

All times are multiples of a quarter of a second, so that in virtual time things that are unlikely
to meet (a deadline, the end of a handler's run, the end of a window) meet all the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
class Hold:
    """From now on handlers wait."""


@dataclass(frozen=True)
class Release:
    """Handlers wait no longer."""


@dataclass(frozen=True)
class Configure:
    """Options change."""

    changes: dict[str, Any]


@dataclass(frozen=True)
class Flush:
    """`Batcher.flush`."""


@dataclass(frozen=True)
class Drain:
    """`Batcher.drain`."""


@dataclass(frozen=True)
class Close:
    """`Batcher.aclose`, in a task of its own."""


@dataclass(frozen=True)
class Settle:
    """Every task runs until it waits; without it the next operation is in the same tick."""


@dataclass(frozen=True)
class Program:
    """A batcher's options, and what is done to it.

    Attributes:
        streams: Whether the handler is a generator.
        options: The batcher's options.
        ops: What is done, in order.
        releases: Whether handlers that are held at the end are released before closing.
        seed: The seed of trio's scheduler.
    """

    streams: bool
    options: dict[str, Any]
    ops: list[Any] = field(default_factory=list)
    releases: bool = True
    seed: int = 0
