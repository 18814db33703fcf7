"""Which replicas to start and which to drain, so that in the end there are the right ones.

It looks at all of them at once and has no memory: whatever happens (one becomes ready, one dies,
there should be more, all should be of another version), it is asked again. The rival is a plan with
steps, which has to be mended whenever something happens that it did not foresee.

What holds after each decision is carried out:

* Ready replicas are drained only as far as there are more of them than wanted. So an update or a
  recycling takes no capacity away, and one whose new replicas never become ready goes no further.
* At most ``wanted + surge`` replicas are there beside those that drain or stop: a replacement goes
  ``surge`` at a time, and scaling up starts all that are missing at once.
* While the ready ones are kept, for a change that may yet fail, none of them is drained, and all
  that are missing of the version are started beside them, ``surge`` at a time.
* One that is not ready is drained as soon as it is of an older version, for nobody will need it.

Replicas that drain or stop count for nothing: they take no work any more, and how long they take to
finish what they have is no reason to wait.
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
    """One replica, as far as the decision depends on it.

    Attributes:
        id: What it is called in the decision.
        version: The version that it is of. One that is to be replaced for a reason of its own has
            any but that of the others.
        state: Where it is in its life.
        ongoing: How many requests it runs.
    """

    id: Id
    version: int
    state: LifeState
    ongoing: int


@dataclass(frozen=True, slots=True)
class Decision(Generic[Id]):
    """What is to be done.

    Attributes:
        start: How many replicas of the version to start.
        drain: Which replicas to drain, in this order.
    """

    start: int
    drain: tuple[Id, ...]


def decide(
    replicas: Sequence[Seen[Id]],
    wanted: int,
    version: int,
    surge: int = 1,
    *,
    keeps_ready: bool = False,
) -> Decision[Id]:
    """Decides what to do.

    To scale down, those of older versions go first, then those that are not ready, the youngest
    first, then the least busy, of these the oldest first.

    Args:
        replicas: Those there are, the oldest first.
        wanted: How many there should be; 0 drains all.
        version: The version that they should be of.
        surge: How many more there may be while they are replaced, at least 1.
        keeps_ready: Whether no ready one is to be drained.

    Returns:
        What to start and what to drain; nothing of either where all is as it should be.
    """
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
    # Those that stay of an older version go one by one as these become ready.
    beside = max(surge if keeps_ready else 0, wanted + surge - len(staying))
    room = max(0, min(wanted - of_version, beside))
    too_many = starting[room:]
    return Decision(
        start=max(0, room - len(starting)),
        drain=tuple([seen.id for seen in [*useless, *reversed(too_many), *ready_to_drain]]),
    )
