"""Checks of single options: what was passed, what was wanted."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from itertools import pairwise
from typing import Any


def whole(name: str, value: Any, *, least: int) -> int:
    """Checks a whole number.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is below `least`.
    """
    try:
        number = operator.index(_as_int(value))
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, not {value!r}")
    return number


def seconds(name: str, value: Any) -> float:
    """Checks a number of seconds.

    Raises:
        TypeError: It is no number.
        ValueError: It is negative, or not a number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    if math.isnan(value) or value < 0:
        raise ValueError(f"{name} must be at least 0 seconds, not {value!r}")
    return float(value)


def yes_or_no(name: str, value: Any) -> bool:
    """Checks a truth value.

    Raises:
        TypeError: It is neither True nor False.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Checks a choice.

    Raises:
        ValueError: It is none of those allowed.
    """
    if value not in allowed:
        *others, last = map(repr, allowed)
        raise ValueError(f"{name} must be {', '.join(others)} or {last}, not {value!r}")
    return str(value)


def function(name: str, value: Any, form: str) -> Any:
    """Checks something that is called.

    Raises:
        TypeError: It can't be called.
    """
    if not callable(value):
        raise TypeError(f"{name} must be a callable or None, not {value!r}; write {form}")
    return value


def ascending(name: str, value: Any, most: int) -> tuple[int, ...]:
    """Checks batch sizes in ascending order.

    Raises:
        TypeError: They are no whole numbers.
        ValueError: There are none, they do not ascend, or one is above `most`.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be some batch sizes, such as (8, 16, 32), not {value!r}")
    given: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
    sizes = tuple(whole(name, size, least=1) for size in given)
    if not sizes or any(size >= after for size, after in pairwise(sizes)):
        raise ValueError(f"{name} must ascend, such as (8, 16, 32), not {given!r}")
    if sizes[-1] > most:
        raise ValueError(f"{name} must not go beyond max_batch_size={most}, but {given!r} does")
    return sizes


def _as_int(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
