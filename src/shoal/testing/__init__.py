"""Tools for testing code that batches: virtual time, scripted handlers, and checks.

They do not depend on a test framework. `shoal.testing.asgi` drives an application message by
message. Names are loaded lazily, as in `shoal`, so that a worker process that takes part in a check
and needs one small module of this package starts as fast as any other.
"""

from typing import TYPE_CHECKING

from shoal.core.extras import lazy_names as _lazy_names

if TYPE_CHECKING:
    from shoal.core.simulation import simulate
    from shoal.testing.policies import check_policy, make_request
    from shoal.testing.replicas.check import check_replica
    from shoal.testing.scripted import (
        ScriptedBatch,
        ScriptedHandler,
        ScriptedSteps,
        ScriptedStreams,
    )
    from shoal.testing.virtual_time import run_virtually, settle, virtual_backend

__all__ = [
    "ScriptedBatch",
    "ScriptedHandler",
    "ScriptedSteps",
    "ScriptedStreams",
    "check_policy",
    "check_replica",
    "make_request",
    "run_virtually",
    "settle",
    "simulate",
    "virtual_backend",
]

_WHERE = {
    "shoal.core.simulation": ("simulate",),
    "shoal.testing.policies": ("check_policy", "make_request"),
    "shoal.testing.replicas.check": ("check_replica",),
    "shoal.testing.scripted": (
        "ScriptedBatch",
        "ScriptedHandler",
        "ScriptedSteps",
        "ScriptedStreams",
    ),
    "shoal.testing.virtual_time": ("run_virtually", "settle", "virtual_backend"),
}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE)
