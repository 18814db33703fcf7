"""Options of a batcher as they are written on a command line: ``priority_levels=3``."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.core.options.options import BatchOptions, no_option
from shoal.core.options.records import LatencyTarget, QueuePolicy
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
_FUNCTIONS: Final = ("batch_size_fn", "bucket_by", "pad", "split", "join", "policy")


def option_pairs(texts: Sequence[str]) -> dict[str, Any]:
    """Reads options of the form NAME=VALUE.

    A value is JSON, a word, or numbers with commas between them.

    Raises:
        Mistake: One has another form, names no option, or one that is a function.
    """
    pairs: dict[str, Any] = {}
    names = [field.name for field in fields(BatchOptions)]
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise CommandError(
                f"an option is written NAME=VALUE, like priority_levels=3, not {text!r}"
            )
        if name not in names:
            raise CommandError(no_option(name, names))
        if name in _FUNCTIONS:
            raise CommandError(
                f"{name} is a function, which can't be written here; costs and buckets of requests "
                "come from the columns 'cost' and 'bucket' of a trace"
            )
        pairs[name] = _record(name, _value(value.strip()))
    return pairs


def checked(pairs: Mapping[str, Any]) -> BatchOptions:
    """Makes the options.

    Raises:
        Mistake: A value has the wrong type or is out of its range, or two do not go together.
    """
    try:
        return BatchOptions.of(pairs)
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from None


def written(pairs: Mapping[str, Any]) -> str:
    """Writes options as keywords."""
    return ", ".join(f"{name}={value!r}" for name, value in pairs.items() if name not in _FUNCTIONS)


def value_of(text: str) -> Any:
    """Reads a value as an application's file has it, and words without quotes as text.

    Raises:
        Mistake: It begins like TOML, and is none.
    """
    text = text.strip()
    if text == "none":
        return None
    try:
        parsed = tomllib.loads(f"it = {text}")
    except tomllib.TOMLDecodeError as error:
        if text.startswith(_OPENING):
            raise CommandError(f"{text!r} is no TOML value: {error}") from None
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


def _record(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    given = cast("dict[str, Any]", value)
    try:
        if name == "adaptive":
            return LatencyTarget(**given)
        if name == "default_queue_policy":
            return QueuePolicy(**given)
        if name == "queue_policies":
            return {int(level): QueuePolicy(**policy) for level, policy in given.items()}
    except (TypeError, ValueError) as error:
        raise CommandError(f"{name}: {error}") from None
    return given
