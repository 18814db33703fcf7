"""The life cycle of replicas: their states, and which of them to start and to drain.

`TRANSITIONS` has all of it; an event that a state has no entry for is a bug in Shoal::

    new ──> starting ──> ready ──> draining ──> stopping ──> ended
     │         │           │           │
     └────┬────┘           └─────┬─────┘
          v                      v
        failed                 died

A replica that is drained before it is ready skips the states in between, since it has no work: it
goes to stopping or, if it has not begun to start, to ended.

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

`Restarts` says when a replica may be started again after a failure. The maximum wait doubles with
each failure, and the wait is chosen at random between 0 and this maximum ("full jitter", as in the
AWS Architecture Blog's "Exponential Backoff and Jitter"). So replicas of many backends and machines
that failed together do not restart together. After a replica has been ready for a while, the next
failure counts as a first one again.

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
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

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


Event: TypeAlias = Literal["start", "ready", "drain", "stop", "unhealthy", "ended"]
"""An event in the life of a replica.

``start``, ``drain`` and ``stop`` are requests; a drained replica is stopped when it is idle. The
others are observed: ``ready``, ``unhealthy`` (it is about to be killed) and ``ended``, in any way.
"""

_S: TypeAlias = LifeState

TRANSITIONS: Final[Mapping[LifeState, Mapping[Event, LifeState]]] = {
    _S.NEW: {
        "start": _S.STARTING,
        "ended": _S.FAILED,  # its task was cancelled before the start
        "drain": _S.ENDED,
    },
    _S.STARTING: {
        "ready": _S.READY,
        "ended": _S.FAILED,
        "drain": _S.STOPPING,  # it has no work to wait for
    },
    _S.READY: {
        "drain": _S.DRAINING,
        "unhealthy": _S.DIED,
        "ended": _S.DIED,
    },
    _S.DRAINING: {
        "stop": _S.STOPPING,  # it has no more work, or its time is over
        "unhealthy": _S.DIED,
        "ended": _S.DIED,
    },
    _S.STOPPING: {
        "unhealthy": _S.STOPPING,
        "ended": _S.ENDED,
    },
    _S.ENDED: {},
    _S.FAILED: {},
    _S.DIED: {"ended": _S.DIED},  # the unhealthy replica has exited
}

_ASKED_TO_END = frozenset({_S.DRAINING, _S.STOPPING, _S.ENDED})
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
    def is_ready(self) -> bool:
        return self.state is LifeState.READY

    @property
    def was_asked_to_end(self) -> bool:
        """If so, its end is not a failure."""
        return self.state in _ASKED_TO_END

    @property
    def is_over(self) -> bool:
        return self.state in _OVER


_NOT_YET_READY = frozenset({LifeState.NEW, LifeState.STARTING})


@dataclass(frozen=True, slots=True)
class Seen:
    id: int
    # A replica that must be replaced for another reason has a version that is not wanted.
    version: int
    state: LifeState
    ongoing: int


@dataclass(frozen=True, slots=True)
class Decision:
    start: int
    drain: tuple[int, ...]


def decide(
    replicas: Sequence[Seen],
    wanted: int,
    version: int,
    *,
    keeps_ready: bool = False,
    places: int | None = None,
) -> Decision:
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
        self._started_at = -math.inf
        self.forget()

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
        # When the next replica may be started, on the clock of the arguments.
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
