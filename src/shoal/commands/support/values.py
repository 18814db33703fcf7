"""Parses values on a command line: ``placement=process autoscaling.max_replicas=4``.

A value has the syntax of an application's file. A list or an object may also be JSON. A value that
looks like neither is text, so words need no quotes. ``none`` is None, which TOML can't express.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tomllib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.commands.support.output import CommandError, as_mistakes
from shoal.core.options.names import unknown_option
from shoal.core.options.options import OPTIONS
from shoal.core.simulation_results import Linear

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence


_OPENING: Final = ("[", "{", '"', "'")
_NUMBER: Final = r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?"
_PER_ITEM: Final = re.compile(rf"({_NUMBER})?\*?n")
_FIXED: Final = re.compile(rf"({_NUMBER})s?")


def config_of(texts: Sequence[str]) -> dict[str, Any]:
    """Parses KEY=VALUE options; a dotted key names a value in a table."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        *tables, name = key.strip().split(".")
        if not equals or not all((*tables, name)):
            raise CommandError(f"an option is written KEY=VALUE, like num_replicas=2, not {text!r}")
        within = found
        for table in tables:
            inner = within.setdefault(table, {})
            if not isinstance(inner, dict):
                raise CommandError(f"{text}: {table} is already given, as {inner!r}")
            within = cast("dict[str, Any]", inner)
        if name in within:
            raise CommandError(f"{text}: {key} is already given, as {within[name]!r}")
        within[name] = value_of(value)
    return found


def init_arguments_of(arguments: Namespace) -> tuple[list[Any], dict[str, Any]]:
    return [value_of(text) for text in arguments.arg], config_of(arguments.kwarg)


def option_pairs(texts: Sequence[str]) -> dict[str, Any]:
    """Parses and checks KEY=VALUE options of a batcher."""
    pairs: dict[str, Any] = {}
    for name, value in config_of(texts).items():
        option = OPTIONS.get(name)
        if option is None:
            raise CommandError(str(unknown_option("a batcher", name, OPTIONS)))
        if option.is_function:
            raise CommandError(
                f"{name} is a function: give it to @shoal.batch; a simulation reads costs and "
                "buckets of requests from the columns 'cost' and 'bucket' of a trace"
            )
        with as_mistakes():
            pairs[name] = option.from_plain(name, value)
    return pairs


def value_of(text: str) -> Any:
    """Parses a value as in an application's file; words without quotes are text."""
    text = text.strip()
    if text == "none":
        return None
    try:
        parsed = tomllib.loads(f"it = {text}")
    except tomllib.TOMLDecodeError as error:
        if not text.startswith(_OPENING):
            return text
        with suppress(ValueError):
            return json.loads(text)
        raise CommandError(f"{text!r} is not a TOML value: {error}") from None
    if parsed.keys() != {"it"}:
        raise CommandError(f"{text!r} is more than one value")
    return parsed["it"]


def weights_of(texts: Sequence[str]) -> dict[str, float]:
    """Parses BACKEND=WEIGHT; 90% is 0.9, and numbers that sum to 100 are percentages."""
    found: dict[str, float] = {}
    for text in texts:
        backend, equals, weight = text.rpartition("=")
        value = _share(weight)
        if not equals or not backend or value is None:
            raise CommandError(
                f"traffic is written BACKEND=WEIGHT, like small=0.9 or small=90%, not {text!r}"
            )
        if backend in found:
            raise CommandError(f"{backend} is given two weights")
        found[backend] = value
    if math.isclose(sum(found.values()), 100):
        return {backend: value / 100 for backend, value in found.items()}
    return found


def proportion_of(text: str) -> float:
    """Parses a share from 0 to 1, as ``0.05``, or a percentage, as ``5%``."""
    value = _share(text)
    if value is None or not 0 <= value <= 1:
        raise CommandError(f"a proportion is a number from 0 to 1, or like 5%, not {text!r}")
    return value


def _share(text: str) -> float | None:
    digits = text.strip().removesuffix("%")
    try:
        value = float(digits)
    except ValueError:
        return None
    return value / 100 if digits != text.strip() else value


def json_of(text: str, name: str | None = None) -> Any:
    """Parses JSON, or stdin for ``-``; a name is used in messages in place of the text."""
    if text == "-" and name is None:
        text = sys.stdin.read()
    try:
        return json.loads(text)
    except ValueError as error:
        what = name or repr(text if len(text) <= 60 else f"{text[:60]}...")
        raise CommandError(
            f"{what} is not JSON: {error}; text is written '\"in quotes\"'"
        ) from None


def run_time(text: str, *, jitter: float = 0.0, seed: int = 0) -> Linear:
    """Parses the run time of a batch of n items, such as ``0.002+0.00005n``."""
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
