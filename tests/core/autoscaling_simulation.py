"""What autoscaling would do at some load: the real rule, in time that is only a number.

Requests are a fluid here: they come at a rate, each replica has its share of them for as long as
one takes, and what no replica has room for waits in line. That leaves chance out, which the rule
averages away over its look-back period, and makes a day of load a moment's work. Where chance is to
be in it, vary the rates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.core.replicas.autoscaling import Autoscaler

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.core.replicas.autoscaling import AutoscalingOptions

# What runs out never has quite done so; of a request it is too little to scale up for.
_NONE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Step:
    """What there was at one measurement, and what was decided.

    Attributes:
        at: When, in seconds.
        queued: How many requests were in line.
        ongoing: How many were in replicas.
        ready: How many replicas were ready.
        replicas: How many there should be from here on.
    """

    at: float
    queued: float
    ongoing: float
    ready: int
    replicas: int


def simulate_autoscaling(
    options: AutoscalingOptions,
    load: Iterable[tuple[float, float]],
    *,
    service_s: float,
    until_s: float,
    max_ongoing_requests: float = math.inf,
    start_s: float = 0.0,
) -> list[Step]:
    """Runs autoscaling over a load, beginning at 0 with `min_replicas` that are ready.

    Args:
        options: The options of autoscaling.
        load: From when on requests come at which rate: seconds, ascending, and requests per second.
            Before the first there are none.
        service_s: How long a replica takes for a request, in seconds; for each of those that it has
            at once.
        until_s: When to end, in seconds.
        max_ongoing_requests: How many requests a replica has at once, at most.
        start_s: How long a replica takes to start, in seconds.

    Returns:
        The measurements, one each `metrics_interval_s`.

    Raises:
        ValueError: The load goes back in time, a rate is negative, or nothing can be served.
    """
    changes = _checked(load)
    if not 0 < service_s < math.inf or not max_ongoing_requests > 0:
        raise ValueError(
            "service_s must be above 0, and finite, and max_ongoing_requests above 0, not "
            f"{service_s!r} and {max_ongoing_requests!r}"
        )
    autoscaler = Autoscaler(options)
    ready_at = [0.0] * options.min_replicas
    requests = rate = at = 0.0
    steps: list[Step] = []
    for number in range(int(until_s / options.metrics_interval_s) + 1):
        measured_at = number * options.metrics_interval_s
        while at < measured_at or (changes and changes[-1][0] <= at):
            while changes and changes[-1][0] <= at:
                rate = changes.pop()[1]
            ready = sum(since <= at for since in ready_at)
            next_change = changes[-1][0] if changes else math.inf
            next_ready = min((since for since in ready_at if since > at), default=math.inf)
            until = min(measured_at, next_change, next_ready)
            room = ready * max_ongoing_requests if ready else 0.0
            requests = _flow(requests, rate, room, service_s, until - at)
            if not rate and requests < _NONE:
                requests = 0.0
            at = until
        ready = sum(since <= at for since in ready_at)
        ongoing = min(requests, ready * max_ongoing_requests if ready else 0.0)
        autoscaler.observe(at, requests - ongoing, ongoing)
        wanted = autoscaler.decide(at, len(ready_at))
        steps.append(Step(at, requests - ongoing, ongoing, ready, wanted))
        # The youngest go first, so that none is given up that could work already.
        ready_at = [*ready_at[:wanted], *[at + start_s] * (wanted - len(ready_at))]
    return steps


def _flow(requests: float, rate: float, room: float, service_s: float, for_s: float) -> float:
    """Returns how many requests there are after so many seconds, exactly.

    While there are more than there is room for, they leave as fast as they can; else each leaves
    when its time is over, and their number nears `rate * service_s`.
    """
    settled = rate * service_s
    while for_s > 0:
        if requests > room or (requests == room and settled > room):
            slope = rate - room / service_s
            until_room = (room - requests) / slope if slope < 0 else math.inf
            if until_room >= for_s:
                return requests + slope * for_s
            requests = room
            for_s -= until_room
        else:
            until_room = (
                service_s * math.log((settled - requests) / (settled - room))
                if settled > room
                else math.inf
            )
            if until_room >= for_s:
                return settled + (requests - settled) * math.exp(-for_s / service_s)
            requests = room
            for_s -= until_room
    return requests


def _checked(load: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the changes of the rate, the last one first."""
    changes: list[tuple[float, float]] = []
    for at, rate in load:
        if changes and at < changes[-1][0]:
            raise ValueError(f"the load goes back in time, from {changes[-1][0]!r} to {at!r}")
        if not 0 <= rate < math.inf:
            raise ValueError(f"a rate must be at least 0, and finite, not {rate!r}")
        changes.append((at, rate))
    return changes[::-1]
