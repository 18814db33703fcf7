"""How many replicas a backend should have, by its number of requests.

The rule and its names are those of Ray Serve's documentation: queued and running requests, averaged
over `look_back_period_s`, should be `target_ongoing_requests` per replica. If they call for more
replicas (or fewer) during the whole of a delay, the number is changed. A factor scales how far one
decision goes.

There is one addition. An average includes a burst for the whole look-back period, so after a burst
of a few seconds it could still call for replicas when the delay is over, and those would then stay
for the other, longer delay. So the number changes only if the last measurement calls for a change
in the same direction.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final, Self

from shoal.core.options.names import refuse_unknown
from shoal.core.options.option import above_0, check_options, option, seconds, whole

# Rounding errors of the quotients below; they must not cost a replica.
_TINY: Final = 1e-9


_MOST: Final = 4096

_factor: Final = partial(above_0, wanted="a number, such as 1")
_period: Final = partial(above_0, wanted="a number of seconds, such as 30")


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalingOptions:
    """When a backend gets more or fewer replicas.

    Attributes:
        min_replicas: The minimum number of replicas. With 0 an idle backend has none; the next
            request then waits until a replica has started.
        max_replicas: The maximum number of replicas.
        target_ongoing_requests: The number of requests per replica to aim for, queued and running
            ones together, above 0.
        upscale_delay_s: How long the load must call for more replicas before they are added, in
            seconds.
        downscale_delay_s: How long the load must call for fewer replicas before they are removed,
            in seconds.
        upscaling_factor: The part of a needed increase that one decision makes, above 0: 1 makes
            all of it, 0.5 half.
        downscaling_factor: The part of a needed decrease that one decision makes, above 0.
        look_back_period_s: The period over which requests are averaged, in seconds, above 0.
        metrics_interval_s: The interval between measurements, in seconds, above 0.
    """

    min_replicas: int = option(1, partial(whole, least=0))
    max_replicas: int = option(10, partial(whole, least=1))
    target_ongoing_requests: float = option(2.0, partial(above_0, wanted="a number, such as 2"))
    upscale_delay_s: float = option(30.0, seconds)
    downscale_delay_s: float = option(600.0, seconds)
    upscaling_factor: float = option(1.0, _factor)
    downscaling_factor: float = option(1.0, _factor)
    look_back_period_s: float = option(30.0, _period)
    metrics_interval_s: float = option(10.0, _period)

    def __post_init__(self) -> None:
        check_options(self)
        if self.max_replicas > _MOST:
            raise ValueError(f"max_replicas must be at most {_MOST}, not {self.max_replicas!r}")
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas={self.min_replicas} must not be above "
                f"max_replicas={self.max_replicas}"
            )

    @classmethod
    def of(cls, given: Any) -> Self:
        """Makes the record from a user's value.

        Args:
            given: Option names to values, or such a record. Ray Serve's older `smoothing_factor`
                sets both factors; a factor that is given itself takes precedence.

        Raises:
            TypeError: It is neither, a name is not an option, or a value has the wrong type.
            ValueError: A value is out of range, or two can't be combined.
        """
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise TypeError(
                f"autoscaling must be a mapping or AutoscalingOptions, not {given!r}; "
                "write {'min_replicas': 1, 'max_replicas': 4}"
            )
        options: dict[Any, Any] = dict(given)  # pyright: ignore[reportUnknownArgumentType]
        if "smoothing_factor" in options:
            both = _factor("smoothing_factor", options.pop("smoothing_factor"))
            options = {"upscaling_factor": both, "downscaling_factor": both} | options
        refuse_unknown("autoscaling", options, [field.name for field in fields(cls)])
        return cls(**options)

    def bounded(self, replicas: int) -> int:
        """Returns the allowed number of replicas that is closest to `replicas`."""
        return min(self.max_replicas, max(self.min_replicas, replicas))


class Autoscaler:
    def __init__(self, options: AutoscalingOptions) -> None:
        self._options = options
        # Times and request counts, in order: those of the look-back period and the one before.
        self._seen: deque[tuple[float, float]] = deque()
        # Whether the average calls for more (1) or fewer (-1) replicas, and since when.
        self._direction = 0
        self._since = 0.0

    def observe(self, now: float, queued: float, ongoing: float) -> None:
        """Adds a measurement, which holds until the next; times must not decrease."""
        self._seen.append((now, queued + ongoing))
        begin = now - self._options.look_back_period_s
        while len(self._seen) > 1 and self._seen[1][0] <= begin:
            self._seen.popleft()

    def decide(self, now: float, replicas: int) -> int:
        """Returns how many replicas there should be; call it after each measurement."""
        # Call it also when a request arrives: a backend without replicas then gets one (or
        # `upscaling_factor`, if that is more) without a delay. `replicas` is the last decision,
        # ready or not.
        options = self._options
        bounded = options.bounded(replicas)
        if bounded != replicas or not self._seen:
            self._direction = 0
            return bounded
        last = self._seen[-1][1]
        if replicas == 0:
            return options.bounded(math.ceil(options.upscaling_factor)) if last > 0 else 0
        wanted = self._wanted(self._average(now), replicas)
        direction = _sign(wanted - replicas)
        if direction != self._direction:
            self._direction = direction
            self._since = now
        delay_s = options.upscale_delay_s if direction > 0 else options.downscale_delay_s
        if (
            not direction
            or now - self._since < delay_s
            or _sign(self._wanted(last, replicas) - replicas) != direction
        ):
            return replicas
        self._direction = 0
        return max(wanted, int(last > 0))  # the last replica must not end during a request

    def _average(self, now: float) -> float:
        begin = max(now - self._options.look_back_period_s, self._seen[0][0])
        if now <= begin:
            return self._seen[-1][1]
        total = 0.0
        until = now
        for at, requests in reversed(self._seen):
            total += requests * (until - max(at, begin))
            until = max(at, begin)
        return total / (now - begin)

    def _wanted(self, requests: float, replicas: int) -> int:
        options = self._options
        load = requests / options.target_ongoing_requests
        factor = options.upscaling_factor if load > replicas else options.downscaling_factor
        wanted = math.ceil(replicas + (load - replicas) * factor - _TINY)
        if wanted == replicas and math.ceil(load - _TINY) < replicas:
            wanted -= 1  # otherwise rounding would keep the number constant with a small factor
        return options.bounded(wanted)


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
