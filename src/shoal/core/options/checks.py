"""Checks of the values of single options; each error shows the value and what is expected."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, cast


def whole(name: str, value: Any, *, least: int) -> int:
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
    """Checks a number of seconds: 0 or more, or infinity."""
    found = number(name, value, "a number of seconds")
    if math.isnan(found) or found < 0:
        raise ValueError(f"{name} must be at least 0 seconds, not {value!r}")
    return found


def number(name: str, value: Any, wanted: str) -> float:
    """`wanted` describes the number; one that is too large for a float becomes infinity."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be {wanted}, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def finite_seconds(name: str, value: Any) -> float:
    found = seconds(name, value)
    if math.isinf(found):
        raise ValueError(f"{name} must be finite: {value!r} would wait for stuck work for ever")
    return found


def more_than_0(name: str, value: Any) -> float:
    found = seconds(name, value)
    if not found:
        raise ValueError(f"{name} must be more than 0 seconds, not {value!r}")
    return found


def above_0(name: str, value: Any, *, wanted: str, unit: str = "") -> float:
    found = number(name, value, wanted)
    if not 0 < found < math.inf:
        raise ValueError(f"{name} must be above 0{unit}, and finite, not {found!r}")
    return found


def factor(name: str, value: Any) -> float:
    found = number(name, value, "a number, such as 1.5")
    if not 1 <= found < math.inf:
        raise ValueError(f"{name} must be at least 1, and finite, not {value!r}")
    return found


def yes_or_no(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        *others, last = map(repr, allowed)
        raise ValueError(f"{name} must be {', '.join(others)} or {last}, not {value!r}")
    return str(value)


def function(name: str, value: Any, form: str) -> Any:
    if not callable(value):
        raise TypeError(f"{name} must be a callable or None, not {value!r}; write {form}")
    return value


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {value!r}")
    return value


def mapping(name: str, value: Any, form: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, not {value!r}; write {form}")
    return dict(cast("Any", value))


def named_values(name: str, value: Any, example: str) -> dict[str, Any]:
    """Checks a mapping with names as keys, and copies it; the example is such a name."""
    found = mapping(name, value, f'{name}={{"{example}": 1}}')
    for key in found:
        if not isinstance(key, str):
            raise TypeError(f'{name} must have names for keys, such as "{example}", not {key!r}')
    return found


def sizes_in_order(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be some batch sizes, such as (8, 16, 32), not {value!r}")
    given: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
    sizes = tuple(whole(name, size, least=1) for size in given)
    if not sizes or any(size >= after for size, after in pairwise(sizes)):
        raise ValueError(f"{name} must ascend, such as (8, 16, 32), not {given!r}")
    return sizes


def _as_int(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def checked_token(token: Any) -> str:
    if not isinstance(token, str):
        raise TypeError(f"a token must be text, not {type(token).__name__}")
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            "a token must consist of printable ASCII characters, without spaces; generate one by: "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token
