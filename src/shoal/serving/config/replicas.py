"""Checks of the options of replicas, and of their placement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from shoal.core.options.checks import one_of, seconds, whole
from shoal.replicas.code.definition import split_import_path

PLACEMENTS: Final = ("task", "thread", "process", "ray")
"""The placements that have a name."""

# An option is refused with placements for which it has no effect, so that nobody relies on it.
_ONLY_FOR: Final[Mapping[str, tuple[str, ...]]] = {
    "python": ("process",),
    "cpu_affinity": ("process",),
    "max_memory_bytes": ("process",),
    "env": ("process", "ray"),
    "ray_options": ("ray",),
}


def more_than_0(name: str, value: Any) -> float:
    """Checks a number of seconds that can't be 0.

    Raises:
        TypeError: It is not a number.
        ValueError: It is 0, negative, or NaN.
    """
    found = seconds(name, value)
    if not found:
        raise ValueError(f"{name} must be more than 0 seconds, not {value!r}")
    return found


def checked_placement(placement: Any) -> Any:
    """Checks a placement: a name of `PLACEMENTS`, a function that makes replicas, or its path.

    Raises:
        TypeError: It is neither text nor a callable.
        ValueError: It is an unknown name.
    """
    if callable(placement):
        return placement
    if not isinstance(placement, str):
        raise TypeError(
            f"placement must be {_names()}, or a function that makes a Replica of a Blueprint, "
            f"not {placement!r}"
        )
    if ":" in placement:
        split_import_path(placement)
        return placement
    return one_of("placement", placement, PLACEMENTS)


def checked_replica_options(given: Mapping[str, Any], placement: Any) -> dict[str, Any]:
    """Checks the given options that are fields of `ReplicaOptions`.

    Args:
        given: The options of a backend.
        placement: Where its replicas run; already checked.

    Returns:
        The fields that were given, with their checked values.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is out of its range, or has no effect with this placement.
    """
    found: dict[str, Any] = {}
    for name, check in _CHECKS.items():
        if name not in given:
            continue
        found[name] = check(name, given[name])
        places = _ONLY_FOR.get(name)
        if places and found[name] and placement in PLACEMENTS and placement not in places:
            raise ValueError(
                f"{name} is for placement={' or '.join(map(repr, places))}, and has no effect with "
                f"placement={placement!r}; leave it out"
            )
    return found


def _start_timeout(name: str, value: Any) -> float | None:
    return None if value is None else more_than_0(name, value)


def _python(name: str, value: Any) -> str | None:
    if value is None:
        return None
    path: Any = str(value) if isinstance(value, Path) else value
    if not isinstance(path, str) or not path:
        raise TypeError(
            f'{name} must be the path of an interpreter, such as "/opt/venv/bin/python", '
            f"not {value!r}"
        )
    return path


def _env(name: str, value: Any) -> dict[str, str]:
    variables = checked_mapping(name, value, 'env={"OMP_NUM_THREADS": "1"}')
    for key, text in variables.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(
                f'{name} must map text to text, such as {{"OMP_NUM_THREADS": "1"}}, and '
                f"{key!r}: {text!r} does not"
            )
        if not key or "=" in key or "\0" in key + text:
            raise ValueError(f"{name}: {key!r}: {text!r} can't be an environment variable")
    return variables


def _cpu_affinity(name: str, value: Any) -> tuple[tuple[int, ...], ...] | None:
    if value is None:
        return None
    form = f"{name} must be some CPUs for each replica, such as [[0, 1], [2, 3]]"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{form}, not {value!r}")
    entries: list[tuple[int, ...]] = []
    for entry in cast("Iterable[object]", value):
        if isinstance(entry, str) or not isinstance(entry, Iterable):
            raise TypeError(f"{form}, not {value!r}")
        cpus = cast("Iterable[object]", entry)
        entries.append(tuple(whole(f"a CPU of {name}", cpu, least=0) for cpu in cpus))
    if not entries or not all(entries):
        raise ValueError(f"{form}, not {value!r}")
    return tuple(entries)


def _bytes_or_none(name: str, value: Any) -> int | None:
    return None if value is None else whole(name, value, least=1)


def _count(name: str, value: Any) -> int:
    return whole(name, value, least=0)


def _grace(name: str, value: Any) -> float:
    grace = seconds(name, value)
    if math.isinf(grace):
        raise ValueError(f"{name} must be finite: {value!r} would wait for stuck work for ever")
    return grace


def _ray_options(name: str, value: Any) -> dict[str, Any]:
    options = checked_mapping(name, value, 'ray_options={"num_gpus": 1}')
    for key in options:
        if not isinstance(key, str):
            raise TypeError(f'{name} must have names for keys, such as "num_gpus", not {key!r}')
    return options


def checked_mapping(name: str, value: Any, form: str) -> dict[Any, Any]:
    """Checks a mapping, and copies it.

    Args:
        name: The name of the option, for messages.
        value: The mapping.
        form: An example of a correct value, for messages.

    Raises:
        TypeError: It is not a mapping.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, not {value!r}; write {form}")
    return dict(cast("Any", value))


def _names() -> str:
    *others, last = map(repr, PLACEMENTS)
    return f"{', '.join(others)} or {last}"


_CHECKS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "start_timeout_s": _start_timeout,
    "cancel_grace_s": _grace,
    "python": _python,
    "env": _env,
    "cpu_affinity": _cpu_affinity,
    "max_memory_bytes": _bytes_or_none,
    "shared_memory_bytes": _count,
    "log_lines": _count,
    "ray_options": _ray_options,
}
