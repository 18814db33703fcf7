"""One option of a batcher: its default, its check, and its form in JSON, TOML and on command lines.

Everything that handles options reads this table: the record itself, a backend's configuration, the
state file and the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Final, Protocol, TypeAlias, cast, get_args

from shoal.core.options.checks import function, one_of
from shoal.core.options.records import Same

Check: TypeAlias = Callable[[str, Any], Any]
"""Takes the name and the value of an option, and returns the checked value."""

_KEY: Final = "option"


class _Record(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def _as_it_is(_: str, value: Any) -> Any:
    return value


def _without_tuples(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    entries: tuple[Any, ...] = cast("Any", value)
    return list(entries)


@dataclass(frozen=True, slots=True)
class Option:
    """An option, beside its name, type and default.

    Attributes:
        check: Checks a value that is not None.
        may_be_none: Whether None is a value.
        is_function: Whether it is a function, which a configuration gives by its import path.
        for_lists: Whether it sets what batches consist of, and so has no meaning for code that
            takes one item at a time.
        at_once: Whether a change also holds for the batch that is filling.
        from_plain: Makes a value of its form in JSON or TOML.
        to_plain: Returns the form of a value, other than None, in JSON.
    """

    check: Check
    may_be_none: bool = False
    is_function: bool = False
    for_lists: bool = False
    at_once: bool = False
    from_plain: Check = _as_it_is
    to_plain: Callable[[Any], Any] = _without_tuples

    def checked(self, name: str, value: Any) -> Any:
        """Checks a value.

        Raises:
            TypeError: It has the wrong type.
            ValueError: It is out of its range.
        """
        return None if value is None and self.may_be_none else self.check(name, value)


def option(
    default: Any,
    check: Check,
    *,
    for_lists: bool = False,
    at_once: bool = False,
    may_be_none: bool = False,
) -> Any:
    """Makes the field of an option that JSON has as it is, or as a list.

    Args:
        default: Its default; where that is None, None is a value.
        check: Checks a value.
        for_lists: See `Option`.
        at_once: See `Option`.
        may_be_none: Whether None is a value though the default is another.
    """
    found = Option(
        check, may_be_none=may_be_none or default is None, for_lists=for_lists, at_once=at_once
    )
    return field(default=default, metadata={_KEY: found})


def choice(default: str, allowed: Any, *, at_once: bool = False) -> Any:
    """Makes the field of an option that is one of some words, given by a ``Literal``."""
    words = get_args(allowed)
    return option(default, lambda name, value: one_of(name, value, words), at_once=at_once)


def callback(example: str, *, for_lists: bool = False) -> Any:
    """Makes the field of an option that is a function, or None; the example is for messages."""
    found = Option(
        lambda name, value: function(name, value, example),
        may_be_none=True,
        is_function=True,
        for_lists=for_lists,
    )
    return field(default=None, metadata={_KEY: found})


def record(cls: type[_Record], check: Check) -> Any:
    """Makes the field of an option that is a record, or None; JSON has it as an object."""
    found = Option(
        check,
        may_be_none=True,
        from_plain=partial(record_of, cls),
        to_plain=plain_record,
    )
    return field(default=None, metadata={_KEY: found})


def records_by_level(cls: type[_Record], check: Check) -> Any:
    """Makes the field of an option that maps priority levels to records; by default it is empty."""
    found = Option(
        check,
        from_plain=partial(_records_by_level, cls),
        to_plain=lambda value: {str(level): plain_record(one) for level, one in value.items()},
    )
    return field(default_factory=dict[Any, Any], hash=False, metadata={_KEY: found})


def options_of(cls: type[_Record]) -> dict[str, Option]:
    """Returns the options that a class has as fields, by their names."""
    return {one.name: one.metadata[_KEY] for one in fields(cls) if _KEY in one.metadata}


def record_of(cls: type[_Record], name: str, value: Any) -> Any:
    """Makes the record that a mapping, such as one from JSON, stands for; others stay as they are.

    Raises:
        TypeError: It has a key that the record has not, or a value of the wrong type.
        ValueError: A value is out of its range.
    """
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
        raise type(error)(f"{name}: {error}") from None


def plain_record(value: _Record) -> dict[str, Any]:
    """Returns a record as an object of JSON."""
    values = {one.name: getattr(value, one.name) for one in fields(value)}
    return {name: one for name, one in values.items() if not isinstance(one, Same)}


def _records_by_level(cls: type[_Record], name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    by_level: Mapping[Any, Any] = cast("Any", value)
    return {
        int(level) if isinstance(level, str) and level.isdecimal() else level: record_of(
            cls, f"{name}[{level}]", one
        )
        for level, one in by_level.items()
    }
