"""A backend's options as JSON: what a state file keeps, and what is sent to a server."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from shoal.core.options.records import Same
from shoal.errors import NotDurable
from shoal.serving.config.batching import FUNCTIONS
from shoal.serving.config.json import exact_json

if TYPE_CHECKING:
    from collections.abc import Mapping

# What comes back as lists is made into these tuples again when it is checked.
_TUPLES = ("cpu_affinity", "allowed_batch_sizes", "preferred_batch_sizes")
_RECORDS = ("autoscaling", "adaptive", "default_queue_policy")


def durable_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns checked options as JSON, from which the same options can be made.

    Raises:
        NotDurable: An option has a value that JSON has no form for.
    """
    return {name: exact_json(name, _plain(name, value)) for name, value in given.items()}


def _plain(name: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        return str(value)  # an import path may be an `OwnPath`
    if name in FUNCTIONS or name == "placement":
        raise NotDurable(
            f"{name}={value!r} is an object of this process, which can't be kept or sent; "
            f'give its import path: {name}="package.module:name"'
        )
    if name in _TUPLES:
        return _lists(value)
    if name in _RECORDS:
        return _mapping(value)
    if name == "queue_policies":
        by_level = cast("Mapping[int, Any]", value)
        return {str(level): _mapping(policy) for level, policy in by_level.items()}
    return value


def _lists(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    entries: tuple[Any, ...] = cast("Any", value)
    return [_lists(entry) for entry in entries]


def _mapping(record: Any) -> dict[str, Any]:
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: value for name, value in values.items() if not isinstance(value, Same)}
