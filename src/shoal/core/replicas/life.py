"""The life of a replica: every state that it can be in, and what moves it on.

One table is all of it, and an event that a state has no entry for is a mistake of ours::

    new ──> starting ──> ready ──> draining ──> stopping ──> ended
     │         │           │           │
     └────┬────┘           └─────┬─────┘
          v                      v
        failed                 died

Whoever is told to stop skips what is in between, and so does one that is drained before it is ready
and has no work: it goes on to stopping, or, where it has not even begun to start, to its end.

How a replica ends is told by what was asked of it, not by what its last word was: any end before it
is ready is a failure to start, any end that nobody asked for a death, and any end of one that was
told to stop is just that, also where it had to be killed for it. So those who count failures need
no second look.

One that is found unhealthy counts as dead from then on, although its process may take a moment to
go, and code in a thread longer than that: who is in its place should not have to wait for it.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


class LifeState(Enum):
    """Where a replica is in its life."""

    NEW = "new"
    """Is to be started, perhaps after a pause."""
    STARTING = "starting"
    """Loads its code."""
    READY = "ready"
    """Takes work."""
    DRAINING = "draining"
    """Gets no more work, and finishes what it has."""
    STOPPING = "stopping"
    """Was told to end."""
    ENDED = "ended"
    """Ended because it was told to."""
    FAILED = "failed"
    """Ended before it was ready."""
    DIED = "died"
    """Ended, or was given up, though nobody wanted that."""


Event: TypeAlias = Literal[
    "start",
    "ready",
    "start_failed",
    "drain",
    "idle",
    "stop",
    "unhealthy",
    "died",
    "ended",
]
"""What happens to a replica.

``start``, ``drain`` and ``stop`` are asked of it; ``ready``, ``idle`` (it has no more work),
``unhealthy`` (and is about to be killed) and how it came to its end are seen of it.
"""

_S: TypeAlias = LifeState

TRANSITIONS: Final[Mapping[LifeState, Mapping[Event, LifeState]]] = {
    _S.NEW: {
        "start": _S.STARTING,
        "start_failed": _S.FAILED,  # its task was cancelled before it came to that
        "died": _S.FAILED,
        "ended": _S.FAILED,
        "drain": _S.ENDED,
        "stop": _S.ENDED,
    },
    _S.STARTING: {
        "ready": _S.READY,
        "start_failed": _S.FAILED,
        "died": _S.FAILED,
        "ended": _S.FAILED,
        "drain": _S.STOPPING,  # it has no work that could be waited for
        "stop": _S.STOPPING,
    },
    _S.READY: {
        "drain": _S.DRAINING,
        "stop": _S.STOPPING,
        "unhealthy": _S.DIED,
        "died": _S.DIED,
        "ended": _S.DIED,
    },
    _S.DRAINING: {
        "idle": _S.STOPPING,
        "stop": _S.STOPPING,
        "unhealthy": _S.DIED,
        "died": _S.DIED,
        "ended": _S.DIED,
    },
    _S.STOPPING: {
        "ready": _S.STOPPING,  # it became so at the moment when it was told to stop
        "unhealthy": _S.STOPPING,
        "stop": _S.STOPPING,
        "start_failed": _S.ENDED,
        "died": _S.ENDED,
        "ended": _S.ENDED,
    },
    _S.ENDED: {},
    _S.FAILED: {},
    _S.DIED: {
        "died": _S.DIED,  # what was unhealthy has gone
        "ended": _S.DIED,
    },
}

_LEAVING = frozenset({_S.DRAINING, _S.STOPPING, _S.ENDED})
_OVER = frozenset({_S.ENDED, _S.FAILED, _S.DIED})


class ReplicaLife:
    """Where one replica is in its life.

    Attributes:
        state: Its state.
    """

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = LifeState.NEW

    def on(self, event: Event) -> LifeState:
        """Moves on.

        Args:
            event: What has happened.

        Returns:
            The state from here on.

        Raises:
            AssertionError: It can't happen in this state: a mistake of ours.
        """
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise AssertionError(f"a replica that is {self.state.value} can't meet {event!r}")
        self.state = after
        return after

    @property
    def takes_work(self) -> bool:
        """Whether it may be given work."""
        return self.state is LifeState.READY

    @property
    def is_leaving(self) -> bool:
        """Whether it was asked to end, so that its end is no failure."""
        return self.state in _LEAVING

    @property
    def is_over(self) -> bool:
        """Whether it does no more work, and takes nobody's place."""
        return self.state in _OVER
