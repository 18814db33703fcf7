"""One option of a batcher, a backend or a server: its default, check, and form in JSON and TOML.

Everything that handles options reads this table: the record itself, a backend's configuration, the
state file and the command line. Each check's error shows the value and what is expected.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import partial
from inspect import cleandoc
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, get_args

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


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


def seconds(name: str, value: Any, *, above_0: bool = False, finite: bool = False) -> float:
    """Checks a number of seconds: 0 or more, or infinity."""
    found = number(name, value, "a number of seconds")
    if not found >= 0 or (above_0 and not found):
        least = "more than" if above_0 else "at least"
        raise ValueError(f"{name} must be {least} 0 seconds, not {value!r}")
    if finite and math.isinf(found):
        raise ValueError(f"{name} must be finite: {value!r} would wait for stuck work for ever")
    return found


finite_seconds: Final = partial(seconds, finite=True)
more_than_0: Final = partial(seconds, above_0=True)


def number(name: str, value: Any, wanted: str) -> float:
    """`wanted` describes the number; one that is too large for a float becomes infinity."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be {wanted}, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


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


Check: TypeAlias = Callable[[str, Any], Any]
"""Takes the name and the value of an option, and returns the checked value."""

_KEY: Final = "option"


class Same(Enum):
    """The type of `SAME`, which stands for the batcher's own option."""

    SAME = "the batcher's"


SAME: Final = Same.SAME
"""The batcher's own option."""


def _as_it_is(_: str, value: Any) -> Any:
    return value


def _without_tuples(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    entries: tuple[Any, ...] = cast("Any", value)
    return [_without_tuples(entry) for entry in entries]


@dataclass(frozen=True, slots=True)
class Option:
    # Checks a value that is not None.
    check: Check
    may_be_none: bool = False
    # A configuration names a function by its import path.
    is_function: bool = False
    # Whether it shapes batches, and so does not apply to code that takes one item at a time.
    for_lists: bool = False
    # Whether a change also applies to the batch that is filling.
    at_once: bool = False
    # Makes a value from its form in JSON or TOML.
    from_plain: Check = _as_it_is
    # Returns the form of a value, other than None, in JSON.
    to_plain: Callable[[Any], Any] = _without_tuples

    def checked(self, name: str, value: Any) -> Any:
        return None if value is None and self.may_be_none else self.check(name, value)


def option(default: Any, check: Check, *, may_be_none: bool = False, **says: Any) -> Any:
    """Makes the field of an option; `says` are other attributes of its `Option`."""
    found = Option(check, may_be_none=may_be_none or default is None, **says)
    return field(default=default, metadata={_KEY: found})


def required(check: Check) -> Mapping[str, Option]:
    # Of a field without a default.
    return {_KEY: Option(check)}


def table(check: Check, **says: Any) -> Any:
    return field(default_factory=dict[Any, Any], hash=False, metadata={_KEY: Option(check, **says)})


def choice(default: str, allowed: Any, **says: Any) -> Any:
    words = get_args(allowed)
    return option(default, lambda name, value: one_of(name, value, words), **says)


def callback(example: str, **says: Any) -> Any:
    check: Check = partial(function, form=example)
    return option(None, check, is_function=True, **says)


def record(cls: type[DataclassInstance], check: Check, **says: Any) -> Any:
    return option(None, check, from_plain=partial(record_of, cls), to_plain=plain_record, **says)


def records_by_level(cls: type[DataclassInstance], check: Check) -> Any:
    return table(check, from_plain=partial(_records_by_level, cls), to_plain=_plain_by_level)


def options_of(cls: type[DataclassInstance]) -> dict[str, Option]:
    return {one.name: one.metadata[_KEY] for one in fields(cls) if _KEY in one.metadata}


def defaults_of(cls: type[DataclassInstance]) -> dict[str, Any]:
    return {
        one.name: one.default if one.default_factory is MISSING else one.default_factory()
        for one in fields(cls)
        if _KEY in one.metadata
    }


def summaries_of(cls: type[DataclassInstance]) -> dict[str, str]:
    """Returns what the docstring of a record says first of each of its attributes."""
    attributes = cleandoc(cls.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): ((?:.|\n        )*)", attributes, re.MULTILINE)
    plain = {name: " ".join(text.replace("`", "").split()) for name, text in entries}
    firsts = {name: re.split(r"\. |\.$", text)[0] for name, text in plain.items()}
    return {name: text[:1].lower() + text[1:] for name, text in firsts.items()}


def check_options(made: DataclassInstance) -> None:
    """Replaces the fields of a record by checked values; for ``__post_init__``."""
    for name, one in options_of(type(made)).items():
        # The record is frozen.
        object.__setattr__(made, name, one.checked(name, getattr(made, name)))


def record_of(cls: type[DataclassInstance], name: str, value: Any) -> Any:
    """Makes a record from a mapping; returns other values unchanged."""
    if not isinstance(value, Mapping):
        return value
    keywords: Mapping[Any, Any] = cast("Any", value)
    names = [one.name for one in fields(cls)]
    for key in keywords:
        if key not in names:
            raise TypeError(f"{name} has no {key!r}; it has {', '.join(names)}")
    try:
        return cls(**keywords)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: {error}") from None


def plain_record(value: DataclassInstance) -> dict[str, Any]:
    values = {one.name: getattr(value, one.name) for one in fields(value)}
    plain = {name: one for name, one in values.items() if not isinstance(one, Same)}
    return {name: _without_tuples(one) for name, one in plain.items()}


def _records_by_level(cls: type[DataclassInstance], name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    by_level: Mapping[Any, Any] = cast("Any", value)
    return {
        int(level) if isinstance(level, str) and level.isdecimal() else level: record_of(
            cls, f"{name}[{level}]", one
        )
        for level, one in by_level.items()
    }


def _plain_by_level(value: Mapping[int, DataclassInstance]) -> dict[str, Any]:
    return {str(level): plain_record(one) for level, one in value.items()}
