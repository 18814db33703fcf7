"""The options of a Ray actor that a backend may set, checked without importing Ray."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.core.options.checks import mapping, named_values, number, yes_or_no

if TYPE_CHECKING:
    from collections.abc import Callable

# Shoal's supervisor restarts replicas and retries work, all replicas share their options, and an
# actor ends with the program.
_SHOALS: Final = frozenset(
    {
        "allow_out_of_order_execution",
        "concurrency_groups",
        "get_if_exists",
        "lifetime",
        "max_concurrency",
        "max_pending_calls",
        "max_restarts",
        "max_task_retries",
        "name",
        "namespace",
        "placement_group",
        "placement_group_bundle_index",
        "placement_group_capture_child_tasks",
    }
)
_STRATEGIES: Final = ("DEFAULT", "SPREAD")
# Resources with an option of their own.
_OF_OPTIONS: Final = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


def _amount(name: str, value: Any) -> None:
    found = number(name, value, "a number")
    if not 0 <= found < float("inf"):
        raise ValueError(f"{name} must be a finite number, at least 0, not {value!r}")


def _gpus(name: str, value: Any) -> None:
    _amount(name, value)
    if value > 1 and value != int(value):
        raise ValueError(f"{name} must be a whole number, or a part of 1, not {value!r}")


def _resources(name: str, value: Any) -> None:
    for resource, amount in named_values(name, value, "big_disk").items():
        if resource in _OF_OPTIONS:
            raise ValueError(f"{name} can't have {resource!r}; use {_OF_OPTIONS[resource]}")
        _amount(f"{resource!r} in {name}", amount)


def _strategy(name: str, value: Any) -> None:
    if isinstance(value, str):
        if value not in _STRATEGIES:
            raise ValueError(
                f"{name} must be 'DEFAULT', 'SPREAD' or one of Ray's scheduling strategies, "
                f"not {value!r}"
            )
    elif isinstance(value, int | float | list | tuple | Mapping):
        raise TypeError(
            f"{name} must be 'DEFAULT', 'SPREAD' or one of Ray's scheduling strategies, "
            f"not {cast('object', value)!r}"
        )


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {value!r}")


def _list(name: str, value: Any) -> None:
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list, not {value!r}")


_CHECKS: Final[Mapping[str, Callable[[str, Any], object]]] = {
    "num_cpus": _amount,
    "num_gpus": _gpus,
    "memory": _amount,
    "resources": _resources,
    "object_store_memory": _amount,
    "accelerator_type": _text,
    "label_selector": partial(named_values, example="market-type"),
    "fallback_strategy": _list,
    "scheduling_strategy": _strategy,
    "runtime_env": partial(mapping, form='{"pip": ["torch"]}'),
    "enable_task_events": yes_or_no,
}


def checked_ray_options(name: str, value: Any) -> dict[str, Any]:
    """Checks the Ray options of an actor; None stands for Ray's default, as in Ray."""
    options = named_values(name, value, example="num_gpus")
    for key, given in options.items():
        if key in _SHOALS:
            raise ValueError(f"{name} can't have {key}: Shoal sets that itself for each replica")
        check = _CHECKS.get(key)
        if check is None:
            raise ValueError(f"{name} has no {key!r}; it has {', '.join(_CHECKS)}")
        if given is not None:
            check(f"{key} in {name}", given)
    return options
