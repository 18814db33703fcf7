"""Parses the options of a batcher on a command line: ``priority_levels=3``."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any, Final

from shoal.core.options.options import OPTIONS, BatchOptions, no_option
from shoal.planning.mistake import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WORDS: Final[Mapping[str, Any]] = {
    "none": None,
    "None": None,
    "true": True,
    "True": True,
    "false": False,
    "False": False,
}
_OPENING: Final = ("[", "{", '"', "'")


def option_pairs(texts: Sequence[str]) -> dict[str, Any]:
    """Parses options of the form NAME=VALUE.

    A value is JSON, a word, or numbers separated by commas.

    Raises:
        CommandError: An option has another form, does not exist, or is a function.
    """
    pairs: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise CommandError(
                f"an option is written NAME=VALUE, like priority_levels=3, not {text!r}"
            )
        option = OPTIONS.get(name)
        if option is None:
            raise CommandError(no_option(name))
        if option.is_function:
            raise CommandError(
                f"{name} is a function, which can't be given here; costs and buckets of requests "
                "come from the columns 'cost' and 'bucket' of a trace"
            )
        try:
            pairs[name] = option.from_plain(name, _value(value.strip()))
        except (TypeError, ValueError) as error:
            raise CommandError(str(error)) from None
    return pairs


def checked(pairs: Mapping[str, Any]) -> BatchOptions:
    """Returns the batching options, checked.

    Raises:
        CommandError: A value has the wrong type or is out of range, or two options conflict.
    """
    try:
        return BatchOptions.of(pairs)
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from None


def written(pairs: Mapping[str, Any]) -> str:
    """Formats options as keyword arguments."""
    return ", ".join(
        f"{name}={value!r}" for name, value in pairs.items() if not OPTIONS[name].is_function
    )


def value_of(text: str) -> Any:
    """Parses a value as in an application's file; words without quotes are text.

    Raises:
        CommandError: It begins like a TOML value, but is not one.
    """
    text = text.strip()
    if text == "none":
        return None
    try:
        parsed = tomllib.loads(f"it = {text}")
    except tomllib.TOMLDecodeError as error:
        if text.startswith(_OPENING):
            raise CommandError(f"{text!r} is not a TOML value: {error}") from None
        return text
    if parsed.keys() != {"it"}:
        raise CommandError(f"{text!r} is more than one value")
    return parsed["it"]


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    for form in (text, f"[{text}]"):
        try:
            return json.loads(form)
        except ValueError:
            continue
    return text
