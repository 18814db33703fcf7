"""Parses options on a command line: ``placement=process autoscaling.max_replicas=4``.

A value is written as in an application's file. A value that does not look like TOML is text, so
words need no quotes. ``none`` is None, which TOML can't express.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, cast

from shoal.commands.support.option_values import value_of
from shoal.planning.mistake import CommandError

if TYPE_CHECKING:
    from collections.abc import Sequence


def config_of(texts: Sequence[str]) -> dict[str, Any]:
    """Parses options of the form KEY=VALUE; a dotted key names a value in a table.

    Raises:
        CommandError: An option has another form, or is given twice.
    """
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


def weights_of(texts: Sequence[str]) -> dict[str, float]:
    """Parses traffic of the form BACKEND=WEIGHT.

    Raises:
        CommandError: An option has another form, or is given twice.
    """
    found: dict[str, float] = {}
    for text in texts:
        backend, equals, weight = text.rpartition("=")
        try:
            value = float(weight)
        except ValueError:
            equals = ""
            value = 0.0
        if not equals or not backend:
            raise CommandError(f"traffic is written BACKEND=WEIGHT, like small=0.9, not {text!r}")
        if backend in found:
            raise CommandError(f"{backend} is given two weights")
        found[backend] = value
    return found


def json_of(text: str) -> Any:
    """Parses a JSON value; ``-`` reads it from stdin.

    Raises:
        CommandError: It is not JSON.
    """
    if text == "-":
        text = sys.stdin.read()
    try:
        return json.loads(text)
    except ValueError as error:
        raise CommandError(
            f"{_shortened(text)} is not JSON: {error}; text is written '\"in quotes\"'"
        ) from None


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
