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
    "ScriptedBatch": "shoal.testing.scripted",
    "ScriptedHandler": "shoal.testing.scripted",
    "ScriptedSteps": "shoal.testing.scripted",
    "ScriptedStreams": "shoal.testing.scripted",
    "check_policy": "shoal.testing.policies",
    "check_replica": "shoal.testing.replicas.check",
    "make_request": "shoal.testing.policies",
    "run_virtually": "shoal.testing.virtual_time",
    "settle": "shoal.testing.virtual_time",
    "simulate": "shoal.core.simulation",
    "virtual_backend": "shoal.testing.virtual_time",
}

__getattr__, __dir__ = _lazy_names(__name__, _WHERE)
