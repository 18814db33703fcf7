"""The placements, which create the replicas of a backend: the one list of Shoal's own.

A config is checked without importing the code that runs its replicas: the import takes long, and
may need Ray.
"""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from shoal.core.options.checks import one_of
from shoal.core.options.option import options_of, record_of
from shoal.failures.held import held
from shoal.replicas.code.definition import imported, qualified_name, split_import_path
from shoal.replicas.process.options import ProcessKeywords, ProcessOptions
from shoal.replicas.ray.options import RayKeywords, RayOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.replicas.contract import Placement


class PlacementKeywords(ProcessKeywords, RayKeywords, total=False):
    """The options of Shoal's placements as keywords."""


@dataclass(frozen=True)
class NoOptions:
    """The options of a placement without options."""


class BuiltIn(NamedTuple):
    """A placement of Shoal's own; `path` is the import path of its replica class."""

    path: str
    options: type[NoOptions | ProcessOptions | RayOptions] = NoOptions
    takes_open_batches: bool = False


BUILT_IN: Final[Mapping[str, BuiltIn]] = {
    "task": BuiltIn("shoal.replicas.local.task:TaskReplica", takes_open_batches=True),
    "thread": BuiltIn("shoal.replicas.local.thread:ThreadReplica"),
    "process": BuiltIn("shoal.replicas.process.replica:ProcessReplica", ProcessOptions),
    "ray": BuiltIn("shoal.replicas.ray.replica:RayReplica", RayOptions),
}
"""The placements that have a name."""


def checked_placement(placement: Any) -> Any:
    """Checks a placement: a known name, an import path, or a callable."""
    if callable(placement):
        return placement
    if not isinstance(placement, str):
        raise _not_callable(placement)
    if ":" in placement:
        split_import_path(placement)
        return placement
    return one_of("placement", placement, tuple(BUILT_IN))


def takes_open_batches(placement: Any) -> bool:
    known = BUILT_IN.get(placement) if isinstance(placement, str) else placement
    return bool(getattr(known, "takes_open_batches", False))


def check_options(
    placement: str | Placement, by_name: Mapping[str, Any], own: Mapping[str, Any]
) -> None:
    """Refuses options without effect. A placement given by its path is not imported for this."""
    # `by_name` has the options of Shoal's placements that differ from their defaults.
    twice = by_name.keys() & own.keys()
    if twice:
        raise ValueError(f"{min(twice)} is given twice, by its name and in placement_options")
    if not isinstance(placement, str):
        placement_of(placement, {**by_name, **own})
    elif placement in BUILT_IN:
        _check_effect(placement, by_name, own)


def has_effect(placement: str | Placement, name: str) -> bool:
    known = BUILT_IN.get(placement) if isinstance(placement, str) else None
    return known is None or name in options_of(known.options)


def _check_effect(placement: str, by_name: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    for name in by_name:
        if not has_effect(placement, name):
            places = [place for place, one in BUILT_IN.items() if name in options_of(one.options)]
            raise ValueError(
                f"{name} is for placement={' or '.join(map(repr, places))}, and has no effect with "
                f"placement={placement!r}; leave it out"
            )
    if own:
        taken = options_of(BUILT_IN[placement].options)
        names = f": {', '.join(taken)}" if taken else ""
        raise ValueError(
            "placement_options is for a placement of your own; write the options of "
            f"placement={placement!r} by name{names}"
        )


def placement_of(placement: Any, options: Mapping[str, Any] | None = None) -> Placement:
    """Loads a placement by name or path, and checks `options` against its ``Options``."""
    found = checked_placement(placement)
    if isinstance(found, str):
        found = imported(BUILT_IN[found].path if found in BUILT_IN else found)
    if not callable(found):
        raise _not_callable(placement)
    record: Any = getattr(found, "Options", None)
    if record is not None and options is not None:
        if not isinstance(record, type) or not is_dataclass(record):
            raise TypeError(f"{placement_name(found)}.Options must be a dataclass, not {record!r}")
        held(record_of, "the placement's Options")(record, "placement_options", options)
    return cast("Placement", found)


def placement_name(placement: Any) -> str:
    return placement if isinstance(placement, str) else qualified_name(placement)


def _not_callable(placement: Any) -> TypeError:
    *names, last = map(repr, BUILT_IN)
    return TypeError(
        f"placement must be {', '.join(names)} or {last}, or a function that makes a Replica of a "
        f"Blueprint, not {placement!r}"
    )
