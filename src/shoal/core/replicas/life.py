"""The life cycle of a replica: its states, and the events that change them.

`TRANSITIONS` has all of it; an event that a state has no entry for is a bug in Shoal::

    new ──> starting ──> ready ──> draining ──> stopping ──> ended
     │         │           │           │
     └────┬────┘           └─────┬─────┘
          v                      v
        failed                 died

A replica that is told to stop skips the states in between. So does one that is drained before it is
ready, since it has no work: it goes to stopping or, if it has not begun to start, to ended.

The final state depends on what was requested, not on how the replica ended. An end before it is
ready is a failed start. An end that was not requested is a death. The end of a replica that was
told to stop is a normal end, even if it had to be killed. So code that counts failures needs only
the final state.

An unhealthy replica counts as dead at once, although its process may take a moment to exit, and
code in a thread longer than that. So its replacement does not have to wait for it.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


class LifeState(Enum):
    NEW = "new"
    """Is to be started, perhaps after a delay."""
    STARTING = "starting"
    """Loads its code."""
    READY = "ready"
    """Accepts work."""
    DRAINING = "draining"
    """Gets no more work, and finishes what it has."""
    STOPPING = "stopping"
    """Was told to end."""
    ENDED = "ended"
    """Has ended on request."""
    FAILED = "failed"
    """Has ended before it was ready."""
    DIED = "died"
    """Has ended, or was given up as unhealthy, without a request to stop."""


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
"""An event in the life of a replica.

``start``, ``drain`` and ``stop`` are requests. The others are observed: ``ready``, ``idle`` (it has
no more work), ``unhealthy`` (it is about to be killed), and the ways to end.
"""

_S: TypeAlias = LifeState

TRANSITIONS: Final[Mapping[LifeState, Mapping[Event, LifeState]]] = {
    _S.NEW: {
        "start": _S.STARTING,
        "start_failed": _S.FAILED,  # its task was cancelled before the start
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
        "drain": _S.STOPPING,  # it has no work to wait for
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
        "ready": _S.STOPPING,  # it became ready just as it was told to stop
        "unhealthy": _S.STOPPING,
        "stop": _S.STOPPING,
        "start_failed": _S.ENDED,
        "died": _S.ENDED,
        "ended": _S.ENDED,
    },
    _S.ENDED: {},
    _S.FAILED: {},
    _S.DIED: {
        "died": _S.DIED,  # the unhealthy replica has exited
        "ended": _S.DIED,
    },
}

_LEAVING = frozenset({_S.DRAINING, _S.STOPPING, _S.ENDED})
_OVER = frozenset({_S.ENDED, _S.FAILED, _S.DIED})


class ReplicaLife:
    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = LifeState.NEW

    def on(self, event: Event) -> LifeState:
        """Raises an `AssertionError` if the event can't happen in this state: a bug in Shoal."""
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise AssertionError(f"{event!r} can't happen to a replica that is {self.state.value}")
        self.state = after
        return after

    @property
    def takes_work(self) -> bool:
        return self.state is LifeState.READY

    @property
    def is_leaving(self) -> bool:
        """Whether it was asked to end, so that its end is not a failure."""
        return self.state in _LEAVING

    @property
    def is_over(self) -> bool:
        """Whether it does no more work, and can be replaced."""
        return self.state in _OVER
