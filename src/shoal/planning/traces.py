"""Synthetic traffic for `simulate`.

Each function yields times of arrival in seconds, in ascending order, lazily, so that a long trace
needs no memory. The same seed gives the same times.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def constant(rate: float, duration_s: float) -> Iterator[float]:
    """Generates requests at equal intervals.

    Args:
        rate: Requests a second.
        duration_s: For how long requests arrive, in seconds.
    """
    _check(rate=rate, duration_s=duration_s)
    return (number / rate for number in range(math.ceil(rate * duration_s)))


def poisson(rate: float, duration_s: float, *, seed: int = 0) -> Iterator[float]:
    """Generates requests of many independent callers.

    Args:
        rate: Requests a second, on average.
        duration_s: For how long requests arrive, in seconds.
        seed: The seed of the random times.
    """
    _check(rate=rate, duration_s=duration_s)
    return _thinned(rate, lambda _at: 1.0, duration_s, seed)


def bursty(
    rate: float, duration_s: float, *, on_s: float = 1.0, off_s: float = 4.0, seed: int = 0
) -> Iterator[float]:
    """Generates bursts with pauses in between; within a burst requests arrive as in `poisson`.

    Args:
        rate: Requests a second, on average over bursts and pauses.
        duration_s: For how long requests arrive, in seconds.
        on_s: How long a burst lasts, in seconds.
        off_s: How long the pause after it lasts, in seconds.
        seed: The seed of the random times.
    """
    _check(rate=rate, duration_s=duration_s, on_s=on_s)
    if not 0 <= off_s < math.inf:
        raise ValueError(f"off_s must be at least 0, not {off_s!r}")
    period_s = on_s + off_s
    # Times are drawn on a clock that runs during bursts only.
    whole, rest_s = divmod(duration_s, period_s)
    for_s = whole * on_s + min(rest_s, on_s)
    busy = _thinned(rate * period_s / on_s, lambda _at: 1.0, for_s, seed)
    return (at // on_s * period_s + at % on_s for at in busy)


def diurnal(
    rate: float, duration_s: float, *, period_s: float = 86400.0, swing: float = 0.8, seed: int = 0
) -> Iterator[float]:
    """Generates a rate that rises and falls like over a day, from lowest to lowest.

    Args:
        rate: Requests a second, on average over a period.
        duration_s: For how long requests arrive, in seconds.
        period_s: How long a day lasts, in seconds.
        swing: The difference of the highest and lowest rate from `rate`, as a share of it, 0 to 1.
        seed: The seed of the random times.
    """
    _check(rate=rate, duration_s=duration_s, period_s=period_s)
    if not 0 <= swing <= 1:
        raise ValueError(f"swing must be from 0 to 1, not {swing!r}")
    highest = 1 + swing

    def share(at: float) -> float:
        return (1 - swing * math.cos(2 * math.pi * at / period_s)) / highest

    return _thinned(rate * highest, share, duration_s, seed)


def _thinned(
    rate: float, share: Callable[[float], float], duration_s: float, seed: int
) -> Iterator[float]:
    """Draws times of a Poisson process, and keeps a share of them, which varies by time."""
    chance = random.Random(seed)  # noqa: S311 - no secret is drawn
    at = chance.expovariate(rate)
    while at < duration_s:
        kept = share(at)
        if kept == 1 or chance.random() < kept:
            yield at
        at += chance.expovariate(rate)


def _check(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be more than 0, not {value!r}")
