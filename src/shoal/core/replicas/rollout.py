"""Which replicas to start and which to drain, to reach the wanted number and version.

The decision looks at all replicas at once and keeps no state: whenever something changes (a replica
becomes ready or dies, another number or version is wanted), it is made again. The alternative, a
plan of steps, would have to be repaired whenever something unexpected happens.

After each decision is carried out, this holds:

* Ready replicas are drained only if there are more of them than wanted. So an update or a recycling
  does not reduce capacity, and stops if its new replicas never become ready.
* There are at most ``wanted + surge`` replicas, not counting those that drain or stop: a
  replacement proceeds ``surge`` replicas at a time, and scaling up starts all missing ones at once.
* With ``keeps_ready``, for a change that may still fail, no ready replica is drained, and the
  missing replicas of the version are started beside them, ``surge`` at a time.
* A replica that is not ready is drained as soon as its version is outdated.
* With ``places``, no more replicas are started than there are places (devices), as long as others
  leave theirs. If none is free, and none is starting or leaving, a ready one of an older version is
  drained for its place, with ``keeps_ready`` as well. So an update needs no second set of devices,
  and has one replica less meanwhile. Only if there is nothing to wait for are replicas started that
  will find no place, so that they say so.

Replicas that drain or stop are not counted: they accept no more work, and a decision does not wait
until they have finished theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from shoal.core.replicas.life import LifeState

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    surge: int = 1,
    *,
    keeps_ready: bool = False,
    places: int | None = None,
) -> Decision[Id]:
    """Decides which replicas to start and drain."""
    # To scale down, older versions go first, then replicas that are not ready, the youngest first,
    # then the least busy ones; of equally busy ones the oldest.
    assert wanted >= 0
    assert surge >= 1
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
    beside = max(surge if keeps_ready else 0, wanted + surge - len(staying))
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
