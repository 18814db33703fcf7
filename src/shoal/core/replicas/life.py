"""The life cycle of replicas: their states, and which of them to start and to drain.

`TRANSITIONS` has all of it; an event that a state has no entry for is a bug in Shoal::

    new ──> starting ──> ready ──> draining ──> stopping ──> ended
     │         │           │           │
     └────┬────┘           └─────┬─────┘
          v                      v
        failed                 died

A replica that is asked to stop skips the states in between. A replica that is drained before it is
ready also does, since it has no work: it goes to stopping or, if it has not begun to start, to
ended.

The final state depends on what was requested, not on how the replica ended. An end before it is
ready is a failed start. An end that was not requested is a death. The end of a replica that was
asked to stop is a normal end, even if it had to be killed. So code that counts failures needs only
the final state.

An unhealthy replica counts as dead at once, although its process may take a moment to exit, and
code in a thread longer than that. So its replacement does not have to wait for it.

`decide` chooses the replicas to start and to drain. It looks at all replicas at once and keeps no
state: it is called again whenever a replica becomes ready or dies, or the wanted number or version
changes. The alternative, a plan of steps, would need repair whenever something unexpected happens.

After each decision is carried out, these rules hold:

* Ready replicas are drained only if there are more of them than wanted. So an update or a recycling
  does not reduce capacity, and stops if its new replicas never become ready.
* There are at most ``wanted + 1`` replicas, not counting those that drain or stop: a replacement
  proceeds one replica at a time, and scaling up starts all missing ones at once.
* With ``keeps_ready``, for a change that may still fail, no ready replica is drained, and the
  missing replicas of the version are started beside them, one at a time.
* A replica that is not ready is drained as soon as its version is outdated.
* With ``places``, no more replicas are started than there are places (devices), as long as others
  leave theirs. If none is free, and none is starting or leaving, a ready one of an older version is
  drained for its place, with ``keeps_ready`` as well. So an update needs no second set of devices,
  and runs with one replica fewer. Only if there is nothing to wait for are replicas started that
  will find no place, so that they say so.

Replicas that drain or stop are not counted: they accept no more work, and a decision does not wait
until they have finished theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
    """Was asked to end."""
    ENDED = "ended"
    """Has ended on request."""
    FAILED = "failed"
    """Has ended before it was ready."""
    DIED = "died"
    """Has ended, or was given up as unhealthy, without a request to stop."""


Event: TypeAlias = Literal["start", "ready", "drain", "idle", "stop", "unhealthy", "ended"]
"""An event in the life of a replica.

``start``, ``drain`` and ``stop`` are requests. The others are observed: ``ready``, ``idle`` (it has
no more work), ``unhealthy`` (it is about to be killed) and ``ended``, however it did.
"""

_S: TypeAlias = LifeState

TRANSITIONS: Final[Mapping[LifeState, Mapping[Event, LifeState]]] = {
    _S.NEW: {
        "start": _S.STARTING,
        "ended": _S.FAILED,  # its task was cancelled before the start
        "drain": _S.ENDED,
        "stop": _S.ENDED,
    },
    _S.STARTING: {
        "ready": _S.READY,
        "ended": _S.FAILED,
        "drain": _S.STOPPING,  # it has no work to wait for
        "stop": _S.STOPPING,
    },
    _S.READY: {
        "drain": _S.DRAINING,
        "stop": _S.STOPPING,
        "unhealthy": _S.DIED,
        "ended": _S.DIED,
    },
    _S.DRAINING: {
        "idle": _S.STOPPING,
        "stop": _S.STOPPING,
        "unhealthy": _S.DIED,
        "ended": _S.DIED,
    },
    _S.STOPPING: {
        "ready": _S.STOPPING,  # it became ready just as it was asked to stop
        "unhealthy": _S.STOPPING,
        "stop": _S.STOPPING,
        "ended": _S.ENDED,
    },
    _S.ENDED: {},
    _S.FAILED: {},
    _S.DIED: {"ended": _S.DIED},  # the unhealthy replica has exited
}

_LEAVING = frozenset({_S.DRAINING, _S.STOPPING, _S.ENDED})
_OVER = frozenset({_S.ENDED, _S.FAILED, _S.DIED})


class ReplicaLife:
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
        return self.state in _OVER


Id = TypeVar("Id")

_NOT_YET_READY = frozenset({LifeState.NEW, LifeState.STARTING})


@dataclass(frozen=True, slots=True)
class Seen(Generic[Id]):
    id: Id
    # A replica that must be replaced for another reason has a version that is not wanted.
    version: int
    state: LifeState
    ongoing: int


@dataclass(frozen=True, slots=True)
class Decision(Generic[Id]):
    start: int
    drain: tuple[Id, ...]


def decide(
    replicas: Sequence[Seen[Id]],
    wanted: int,
    version: int,
    *,
    keeps_ready: bool = False,
    places: int | None = None,
) -> Decision[Id]:
    # To scale down, older versions go first, then replicas that are not ready, the youngest first,
    # then the least busy ones; of equally busy ones the oldest.
    assert wanted >= 0
    ready = sorted(
        (seen for seen in replicas if seen.state is LifeState.READY),
        key=lambda seen: (seen.version == version, seen.ongoing),
    )
    unready = [seen for seen in replicas if seen.state in _NOT_YET_READY]
    ready_to_drain = [] if keeps_ready else ready[: max(0, len(ready) - wanted)]
    staying = ready[len(ready_to_drain) :]
    of_version = sum(seen.version == version for seen in staying)

    useless = [seen for seen in unready if seen.version != version]
    starting = [seen for seen in unready if seen.version == version]
    # The remaining ones of older versions are drained as these become ready.
    beside = max(1 if keeps_ready else 0, wanted + 1 - len(staying))
    room = max(0, min(wanted - of_version, beside))
    too_many = starting[room:]
    start = max(0, room - len(starting))
    if places is not None and start > places:
        gone = (*useless, *too_many, *ready_to_drain)
        is_leaving = bool(gone) or len(ready) + len(unready) < len(replicas)
        of_older = [] if is_leaving else [seen for seen in staying if seen.version != version]
        if of_older and not places and not starting:
            ready_to_drain = [*ready_to_drain, of_older[0]]
        if is_leaving or of_older:
            start = places
    return Decision(
        start=start,
        drain=tuple([seen.id for seen in [*useless, *reversed(too_many), *ready_to_drain]]),
    )
