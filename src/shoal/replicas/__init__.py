"""Replicas, which run user code: in this event loop, in threads, in processes, in Ray actors."""

from typing import TYPE_CHECKING, Final

from shoal.core.extras import lazy_names as _lazy_names

if TYPE_CHECKING:
    from shoal.batching.current import Identity
    from shoal.replicas.code.definition import Definition
    from shoal.replicas.code.instance import Description, Method
    from shoal.replicas.contract import Blueprint, Replica, ReplicaOptions

__all__ = [
    "Blueprint",
    "Definition",
    "Description",
    "Identity",
    "Method",
    "Replica",
    "ReplicaOptions",
]

_WHERE: Final = {
    "shoal.batching.current": ("Identity",),
    "shoal.replicas.code.definition": ("Definition",),
    "shoal.replicas.code.instance": ("Description", "Method"),
    "shoal.replicas.contract": ("Blueprint", "Replica", "ReplicaOptions"),
}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE)
