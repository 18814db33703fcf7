"""A simulation of autoscaling under some load: the real rule in simulated time.

Requests are modelled as a fluid: they arrive at a rate, are shared among the replicas for as long
as a request takes, and are queued if no replica has room. So there is no randomness, which the rule
averages out over its look-back period anyway, and a day of load is simulated in a moment. To add
randomness, vary the rates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.core.replicas.autoscaling import Autoscaler

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.core.replicas.autoscaling import AutoscalingOptions

# Below this the number of requests, which falls exponentially, is rounded to 0.
_NONE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement, and the decision.

    Attributes:
        at: The time, in seconds.
        queued: The number of queued requests.
        ongoing: The number of requests in replicas.
        ready: The number of ready replicas.
        replicas: The number of replicas that there should be from now on.
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
    """Runs autoscaling over a load, starting at time 0 with `min_replicas` ready replicas.

    Args:
        options: The options of autoscaling.
        load: The changes of the arrival rate: times in seconds, ascending, and requests per second.
            The rate before the first is 0.
        service_s: How long a replica takes for a request, in seconds, however many it has at once.
        until_s: When to end, in seconds.
        max_ongoing_requests: The most requests that a replica has at once.
        start_s: How long a replica takes to start, in seconds.

    Returns:
        The measurements, one per `metrics_interval_s`.

    Raises:
        ValueError: The times of the load do not ascend, a rate is negative, or nothing can be
            served.
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
        # The youngest are removed first, so that ready ones are kept.
        ready_at = [*ready_at[:wanted], *[at + start_s] * (wanted - len(ready_at))]
    return steps


def _flow(requests: float, rate: float, room: float, service_s: float, for_s: float) -> float:
    """Returns the exact number of requests after some seconds.

    While there are more requests than room, they leave at the maximum rate; otherwise each leaves
    after its service time, and their number approaches `rate * service_s`.
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
    """Checks the changes of the rate, and returns them in reverse order."""
    changes: list[tuple[float, float]] = []
    for at, rate in load:
        if changes and at < changes[-1][0]:
            raise ValueError(f"the load goes back in time, from {changes[-1][0]!r} to {at!r}")
        if not 0 <= rate < math.inf:
            raise ValueError(f"a rate must be at least 0, and finite, not {rate!r}")
        changes.append((at, rate))
    return changes[::-1]
