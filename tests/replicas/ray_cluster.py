"""A Ray cluster of several nodes, all of them on this machine, for tests."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

NODE = {"object_store_memory": 80 * 2**20}
# A killed node refuses at once; one that is only slow is given time.
QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 5_000,
    "health_check_failure_threshold": 3,
}
SMALL = {"num_cpus": 0.01}

MARKS = [
    pytest.mark.anyio,
    pytest.mark.real_time,
    pytest.mark.timeout(120),
    # Older versions of Ray leave files of its processes open.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <_io.FileIO name='/(tmp/ray|dev/null)"
        ":pytest.PytestUnraisableExceptionWarning"
    ),
]


@contextmanager
def cluster_of(*nodes: dict[str, Any]) -> Generator[Any]:
    """Runs a cluster of these nodes, the head first; what joins Ray meanwhile joins it."""
    ray: Any = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    tests = os.path.dirname(os.path.dirname(__file__))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", tests, prepend=os.pathsep)
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        cluster = Cluster()
        head, *others = nodes
        cluster.add_node(_system_config=QUICK_TO_NOTICE, **NODE, **head)
        for node in others:
            cluster.add_node(**NODE, **node)
        patch.setenv("RAY_ADDRESS", cluster.address)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
