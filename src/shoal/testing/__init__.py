"""What a test of code that batches needs: time that jumps, handlers played by hand, checks.

Nothing here knows a test framework. `shoal.testing.asgi` drives an application message by message.
"""

from shoal.core.simulation import simulate
from shoal.testing.policy_check import check_policy
from shoal.testing.replica_check import check_replica
from shoal.testing.requests import make_request
from shoal.testing.scripted import ScriptedBatch, ScriptedHandler, ScriptedSteps, ScriptedStreams
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
