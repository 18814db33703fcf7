"""The placements, which create the replicas of a backend, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from shoal.replicas.code.definition import imported, qualified_name
from shoal.replicas.local.task import TaskReplica
from shoal.replicas.local.thread import ThreadReplica
from shoal.replicas.process.replica import ProcessReplica

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.replicas.contract import Placement

_HERE: Final[Mapping[str, Placement]] = {
    "task": TaskReplica,
    "thread": ThreadReplica,
    "process": ProcessReplica,
}
# Import paths: the modules need an extra, and are imported only when used.
_OF_EXTRAS: Final[Mapping[str, str]] = {"ray": "shoal.replicas.ray.replica:RayReplica"}


def placement_of(placement: Any) -> Placement:
    """Returns the placement for a name, an import path, or a callable.

    Args:
        placement: ``"task"``, ``"thread"``, ``"process"`` or ``"ray"``; or a callable that makes a
            replica from its blueprint, or the import path of such a callable.

    Raises:
        ValueError: It is a string, but neither such a name nor an import path that exists.
        TypeError: It is not callable.
        ModuleNotFoundError: Ray is not installed.
    """
    if isinstance(placement, str):
        found = _HERE.get(placement) or _imported(placement)
    else:
        found = placement
    if not callable(found):
        raise TypeError(f"placement must be {_names()}, or a callable, not {placement!r}")
    return cast("Placement", found)


def placement_name(placement: Any) -> str:
    """Returns the name of a placement for messages."""
    return placement if isinstance(placement, str) else qualified_name(placement)


def _imported(placement: str) -> Any:
    path = _OF_EXTRAS.get(placement, placement)
    if ":" not in path:
        raise ValueError(f"placement must be {_names()}, or a callable, not {placement!r}")
    return imported(path)


def _names() -> str:
    *names, last = map(repr, (*_HERE, *_OF_EXTRAS))
    return f"{', '.join(names)} or {last}"
