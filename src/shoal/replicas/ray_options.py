"""The options of a Ray actor that a backend may set, checked without importing Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, cast

from shoal.core.options.option import mapping, named_values, number, one_of, text, yes_or_no

_STRATEGIES: Final = ("DEFAULT", "SPREAD")
BUNDLES: Final = "placement_group_bundles"
GROUP_STRATEGY: Final = "placement_group_strategy"
_GROUP_STRATEGIES: Final = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
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
    if value in _STRATEGIES:
        return
    if isinstance(value, str | int | float | list | tuple | Mapping):
        kind = ValueError if isinstance(value, str) else TypeError
        raise kind(
            f"{name} must be 'DEFAULT', 'SPREAD' or one of Ray's scheduling strategies, "
            f"not {cast('object', value)!r}"
        )


def _bundles(name: str, value: Any) -> None:
    _list(name, value)
    for index, bundle in enumerate(value):
        amounts = named_values(f"{name}[{index}]", bundle, "CPU")
        for resource, amount in amounts.items():
            _amount(f"{resource!r} in {name}[{index}]", amount)
        if not any(amounts.values()):
            raise ValueError(f"{name}[{index}] must have a resource, such as {{'CPU': 1}}")
    if not value:
        raise ValueError(f"{name} must have at least one bundle, such as {{'CPU': 1}}")


def _list(name: str, value: Any) -> None:
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list, not {value!r}")


_CHECKS: Final[Mapping[str, Callable[[str, Any], object]]] = {
    "num_cpus": _amount,
    "num_gpus": _gpus,
    "memory": _amount,
    "resources": _resources,
    "object_store_memory": _amount,
    "accelerator_type": text,
    "label_selector": partial(named_values, example="market-type"),
    "fallback_strategy": _list,
    "scheduling_strategy": _strategy,
    "runtime_env": partial(mapping, form='{"pip": ["torch"]}'),
    "enable_task_events": yes_or_no,
    # As in Ray Serve: a placement group for each replica. Its actor is in the first bundle.
    BUNDLES: _bundles,
    GROUP_STRATEGY: partial(one_of, allowed=_GROUP_STRATEGIES),
}


def checked_ray_options(name: str, value: Any) -> dict[str, Any]:
    """Checks the Ray options of an actor; None stands for Ray's default, as in Ray."""
    options = named_values(name, value, example="num_gpus")
    for key, given in options.items():
        check = _CHECKS.get(key)
        if check is None:
            # Shoal's supervisor restarts replicas and retries work, all replicas share their
            # options, and an actor ends with the program.
            raise ValueError(
                f"{name} has no {key!r}; it has {', '.join(_CHECKS)}, and Shoal sets the other "
                "options of Ray itself"
            )
        if given is not None:
            check(f"{key} in {name}", given)
    if options.get(BUNDLES) is None:
        if options.get(GROUP_STRATEGY) is not None:
            raise ValueError(f"{GROUP_STRATEGY} in {name} has no effect without {BUNDLES}")
    elif options.get("scheduling_strategy") is not None:
        raise ValueError(
            f"{name} can't have both {BUNDLES} and scheduling_strategy; {GROUP_STRATEGY} places "
            "the bundles"
        )
    return options


def with_defaults(ray_options: Mapping[str, Any], gpus: float | None) -> dict[str, Any]:
    """Returns the Ray options of a backend, with Shoal's defaults and the backend's `gpus`."""
    options = dict(ray_options)
    # As in Ray Serve, so that Ray spreads replicas out.
    options.setdefault("num_cpus", 1)
    if gpus is not None:
        options["num_gpus"] = gpus
    return options


def check_fits_bundle(options: Mapping[str, Any]) -> None:
    """Checks that a replica's actor, with these Ray options, fits into the first bundle."""
    bundles = options.get(BUNDLES)
    if bundles is None:
        return
    needed = {resource: options.get(name) or 0 for resource, name in _OF_OPTIONS.items()}
    needed |= options.get("resources") or {}
    for resource, amount in needed.items():
        if amount > bundles[0].get(resource, 0):
            setting = _OF_OPTIONS.get(resource, "resources")
            raise ValueError(
                f"the first of {BUNDLES} must have at least {amount:g} {resource!r} for the "
                f"replica's own actor, not {bundles[0]!r}; see {setting}"
            )
