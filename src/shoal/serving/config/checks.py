"""The checks of a backend's options, one by one, and what they are when they are not given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

from shoal.batching.handlers.handler import Fill
from shoal.core.options.checks import one_of, whole, yes_or_no
from shoal.core.replicas.autoscaling import AutoscalingOptions
from shoal.serving.config.batching import checked_batching
from shoal.serving.config.replicas import (
    checked_placement,
    checked_replica_options,
    more_than_0,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OWN_DEFAULTS: Final[Mapping[str, Any]] = {
    "num_replicas": 1,
    "placement": "task",
    "max_ongoing_requests": None,
    "retries": 0,
    "user_config": None,
    "health_check_period_s": 10.0,
    "health_check_timeout_s": 30.0,
    "autoscaling": None,
    "max_batches_per_replica": None,
    "fill": "closed",
    "streams": False,
}
"""The options that are neither a batcher's nor a replica's."""


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Checks options that stand under their own names.

    Returns:
        Their checked values, in the order in which they were given.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is out of its range, or two options do not go together.
    """
    own = {name: _CHECKS[name](name, given[name]) for name in OWN_DEFAULTS if name in given}
    values = {
        **own,
        **checked_replica_options(given, own.get("placement", OWN_DEFAULTS["placement"])),
        **checked_batching(given, own.get("fill", OWN_DEFAULTS["fill"])),
    }
    return {name: values[name] for name in given}


MOST_REPLICAS: Final = 4096
"""More are a slip of the finger, and would be started all at once."""


def _at_least(least: int) -> Callable[[str, Any], int]:
    return lambda name, value: whole(name, value, least=least)


def _replicas(name: str, value: Any) -> int:
    number = whole(name, value, least=1)
    if number > MOST_REPLICAS:
        raise ValueError(f"{name} must be at most {MOST_REPLICAS}, not {value!r}")
    return number


def _at_least_1_or_none(name: str, value: Any) -> int | None:
    return None if value is None else whole(name, value, least=1)


def _autoscaling(_: str, value: Any) -> AutoscalingOptions | None:
    return None if value is None else AutoscalingOptions.of(value)


_CHECKS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "num_replicas": _replicas,
    "placement": lambda _, value: checked_placement(value),
    "max_ongoing_requests": _at_least_1_or_none,
    "retries": _at_least(0),
    "user_config": lambda _, value: value,
    "health_check_period_s": more_than_0,
    "health_check_timeout_s": more_than_0,
    "autoscaling": _autoscaling,
    "max_batches_per_replica": _at_least_1_or_none,
    "fill": lambda name, value: one_of(name, value, get_args(Fill)),
    "streams": yes_or_no,
}
