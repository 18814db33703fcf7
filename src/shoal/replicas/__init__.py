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
    "Blueprint": "shoal.replicas.contract",
    "Definition": "shoal.replicas.code.definition",
    "Description": "shoal.replicas.code.instance",
    "Identity": "shoal.batching.current",
    "Method": "shoal.replicas.code.instance",
    "Replica": "shoal.replicas.contract",
    "ReplicaOptions": "shoal.replicas.contract",
}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE)
