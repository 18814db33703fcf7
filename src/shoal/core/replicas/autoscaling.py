"""How many replicas a backend should have, by how many requests it has.

The rule and its names are Ray Serve's, as its documentation has them: the requests in line and in
replicas, averaged over `look_back_period_s`, should be `target_ongoing_requests` for each replica;
when they ask for another number of replicas during the whole of a delay, that number it is. What a
factor moderates is how far a decision goes.

One thing is added. An average remembers a burst for as long as it looks back, so that after a burst
of a few seconds it would still ask for replicas when the delay is over, and they would then stay
for the other, longer delay. So the number changes only while the last measurement asks for a change
in the same direction.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from shoal.core.options.checks import seconds, whole
from shoal.core.options.names import suggested

# Rounding errors of the quotients below; they must not cost a replica.
_TINY: Final = 1e-9


_MOST: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalingOptions:
    """When a backend gets more replicas, and when fewer.

    Attributes:
        min_replicas: The fewest it has. 0 lets it go without any while nothing comes; the first
            request after that waits until a replica has started.
        max_replicas: The most it has.
        target_ongoing_requests: How many requests there should be for each replica, those in line
            and those in replicas together, above 0.
        upscale_delay_s: For how long there must have been too many before replicas are added.
        downscale_delay_s: For how long there must have been too few before replicas are taken away.
        upscaling_factor: How much of the way up is gone at once, above 0: 1 goes all of it, 0.5
            half.
        downscaling_factor: The same for the way down.
        look_back_period_s: Over how long the requests are averaged, in seconds, above 0.
        metrics_interval_s: How often they are counted, in seconds, above 0.
    """

    min_replicas: int = 1
    max_replicas: int = 10
    target_ongoing_requests: float = 2.0
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    upscaling_factor: float = 1.0
    downscaling_factor: float = 1.0
    look_back_period_s: float = 30.0
    metrics_interval_s: float = 10.0

    def __post_init__(self) -> None:
        put = object.__setattr__  # the record is frozen; this is its own constructor
        put(self, "min_replicas", whole("min_replicas", self.min_replicas, least=0))
        put(self, "max_replicas", whole("max_replicas", self.max_replicas, least=1))
        if self.max_replicas > _MOST:
            raise ValueError(f"max_replicas must be at most {_MOST}, not {self.max_replicas!r}")
        for name in ("upscale_delay_s", "downscale_delay_s"):
            put(self, name, seconds(name, getattr(self, name)))
        for name, what in _ABOVE_ZERO.items():
            put(self, name, _above_zero(name, getattr(self, name), what))
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas={self.min_replicas} must not be above "
                f"max_replicas={self.max_replicas}"
            )

    @classmethod
    def of(cls, given: Any) -> Self:
        """Makes the record from what a user typed.

        Args:
            given: Option names to values, or such a record. Ray Serve's older `smoothing_factor`
                stands for both factors; one that is named itself wins.

        Raises:
            TypeError: It is neither, a name is no option, or a value has the wrong type.
            ValueError: A value is out of its range, or two do not go together.
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
            both = _above_zero("smoothing_factor", options.pop("smoothing_factor"), "a number")
            options = {"upscaling_factor": both, "downscaling_factor": both} | options
        for name in options:
            _refuse_unknown(name, [field.name for field in fields(cls)])
        return cls(**options)

    def bounded(self, replicas: int) -> int:
        """Returns the number of replicas that is allowed and next to another."""
        return min(self.max_replicas, max(self.min_replicas, replicas))


class Autoscaler:
    """Decides how many replicas a backend should have.

    Args:
        options: When there should be more, and when fewer.
    """

    __slots__ = ("_direction", "_options", "_seen", "_since")

    def __init__(self, options: AutoscalingOptions) -> None:
        self._options = options
        # When so many requests were counted, in order; those that count still, and the one before.
        self._seen: deque[tuple[float, float]] = deque()
        # Whether the average asks for more (1) or for fewer (-1), and since when it has done so.
        self._direction = 0
        self._since = 0.0

    def observe(self, now: float, queued: float, ongoing: float) -> None:
        """Takes in a measurement, which holds until the next one.

        Args:
            now: The time; not before that of the last one.
            queued: How many requests are in line.
            ongoing: How many are in replicas.
        """
        self._seen.append((now, queued + ongoing))
        begin = now - self._options.look_back_period_s
        while len(self._seen) > 1 and self._seen[1][0] <= begin:
            self._seen.popleft()

    def decide(self, now: float, replicas: int) -> int:
        """Decides how many replicas there should be.

        Ask after each measurement. A backend without replicas gets one (or `upscaling_factor`, if
        that is more) as soon as there is a request, without a delay; so ask also when one comes.

        Args:
            now: The time; not before that of the last measurement.
            replicas: How many there should be by the last decision, whether they are ready or not.

        Returns:
            How many there should be from here on.
        """
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
        return wanted

    def _average(self, now: float) -> float:
        """Returns how many requests there were on average, by how long there were so many."""
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
        """Returns how many replicas there should be for so many requests."""
        options = self._options
        load = requests / options.target_ongoing_requests
        factor = options.upscaling_factor if load > replicas else options.downscaling_factor
        wanted = math.ceil(replicas + (load - replicas) * factor - _TINY)
        if wanted == replicas and math.ceil(load - _TINY) < replicas:
            wanted -= 1  # or a small factor would always round to staying where it is
        return options.bounded(wanted)


_ABOVE_ZERO = {
    "target_ongoing_requests": "a number, such as 2",
    "upscaling_factor": "a number, such as 1",
    "downscaling_factor": "a number, such as 1",
    "look_back_period_s": "a number of seconds, such as 30",
    "metrics_interval_s": "a number of seconds, such as 10",
}


def _above_zero(name: str, value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be {what}, not {value!r}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0, and finite, not {value!r}")
    return float(value)


def _refuse_unknown(name: Any, known: list[str]) -> None:
    if name in known:
        return
    hint = suggested(name, known) or f"there are {', '.join(known)}"
    raise TypeError(f"{name!r} is not an option of autoscaling; {hint}")


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
