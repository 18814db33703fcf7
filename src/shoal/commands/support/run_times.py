"""Parses the run time of a handler on a command line: ``0.002+0.00005n``."""

from __future__ import annotations

import math
import re
from typing import Final

from shoal.core.simulation.results import Linear
from shoal.planning.mistake import CommandError

_NUMBER: Final = r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?"
_PER_ITEM: Final = re.compile(rf"({_NUMBER})?\*?n")
_FIXED: Final = re.compile(rf"({_NUMBER})s?")


def run_time(text: str, *, jitter: float = 0.0, seed: int = 0) -> Linear:
    """Parses a run time: seconds per batch, seconds for each of its n items, or their sum.

    Args:
        text: For example ``0.002+0.00005n``, ``0.1`` or ``0.0005n``.
        jitter: As in `Linear`.
        seed: As in `Linear`.

    Raises:
        CommandError: The text has another form, or the run time is 0.
    """
    parts: dict[str, float] = {}
    # Not every "+" is a sum: 5e+3 is a number.
    for term in re.split(r"(?<![eE])\+", "".join(text.split())):
        if (per_item := _PER_ITEM.fullmatch(term)) is not None:
            name, value = "per_item_s", float(per_item[1] or 1)
        elif (fixed := _FIXED.fullmatch(term)) is not None:
            name, value = "fixed_s", float(fixed[1])
        else:
            raise _unreadable(text)
        if name in parts or not math.isfinite(value):
            raise _unreadable(text)
        parts[name] = value
    if not any(parts.values()):
        raise CommandError(f"a run of the handler must take some time, but {text!r} is 0")
    return Linear(parts.get("fixed_s", 0.0), parts.get("per_item_s", 0.0), jitter=jitter, seed=seed)


def _unreadable(text: str) -> CommandError:
    return CommandError(
        f"a run time is written like 0.002+0.00005n (seconds for a batch of n items), not {text!r}"
    )
