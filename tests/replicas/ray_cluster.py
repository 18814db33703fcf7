"""A Ray cluster of several nodes, all of them on this machine, for tests."""

import gc
import json
import os
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NODE = {"object_store_memory": 80 * 2**20}
# A killed node refuses at once; one that is only slow is given time.
QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 5_000,
    "health_check_failure_threshold": 3,
}
SMALL = {"num_cpus": 0.01}
AUTOSCALER: dict[str, Any] = {
    "cluster_name": "growing",
    "provider": {
        "type": "external",
        "module": "replicas.ray_node_provider.NodesOfThisMachine",
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    },
    "head_node_type": "ray.head.default",
    "max_workers": 3,
    "upscaling_speed": 1.0,
    "idle_timeout_minutes": 0.02,
    # What there must be, and is for nodes elsewhere.
    "auth": {},
    "docker": {},
    "file_mounts": {},
    "file_mounts_sync_continuously": False,
    "cluster_synced_files": [],
    "initialization_commands": [],
    "setup_commands": [],
    "head_setup_commands": [],
    "head_start_ray_commands": [],
    "worker_setup_commands": [],
    "worker_start_ray_commands": [],
}

MARKS = [
    pytest.mark.real_time,
    pytest.mark.timeout(120),
    # Ray leaves files of its processes, the sockets of ports that it tried, and processes.
    *[
        pytest.mark.filterwarnings(
            f"ignore:Exception ignored in. <{left}:pytest.PytestUnraisableExceptionWarning"
        )
        for left in (
            "_io.FileIO name='/(tmp/ray|dev/null)",
            r"socket.socket fd=.* laddr=\('0.0.0.0', 0\)",
            "function Popen.__del__ ",
        )
    ],
]


# One loop is as good as the other for what both have in common.
ON_TRIO = pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)


@contextmanager
def cluster_of(*nodes: dict[str, Any], config: dict[str, Any] = QUICK_TO_NOTICE) -> Generator[Any]:
    """Runs a cluster of these nodes, the head first; what joins Ray meanwhile joins it."""
    ray: Any = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    tests = os.path.dirname(os.path.dirname(__file__))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", tests, prepend=os.pathsep)
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        cluster = Cluster()
        head, *others = nodes
        cluster.add_node(_system_config=config, **NODE, **head)
        for node in others:
            cluster.add_node(**NODE, **node)
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()  # Ray leaves sockets and processes of its own open
        patch.setenv("RAY_ADDRESS", cluster.address)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@contextmanager
def growing_cluster(head: dict[str, Any], node: dict[str, Any], folder: Path) -> Generator[Any]:
    """Runs a cluster of a head, to which Ray's autoscaler adds nodes that it removes when idle.

    They are all on this machine. Ray's own `AutoscalingCluster` needs a file that its wheel lacks,
    and ends whatever else runs on Ray here.

    Args:
        head: What the head has, as for `cluster_of`.
        node: The resources of each node that is added: three at most.
        folder: Where the autoscaler's configuration is written.
    """
    pytest.importorskip("ray")
    from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

    types = {
        "ray.head.default": {"resources": {}, "node_config": {}, "max_workers": 0},
        "added": {"resources": {**NODE, **node}, "node_config": {}, "max_workers": 3},
    }
    config = folder / "autoscaler.json"
    config.write_text(json.dumps({**AUTOSCALER, "available_node_types": types}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_FAKE_CLUSTER", "1")
        patch.setenv("AUTOSCALER_UPDATE_INTERVAL_S", "1")
        as_head = {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID}
        ours = {"autoscaling_config": str(config), "env_vars": as_head}
        with cluster_of({**head, **ours}) as cluster:
            yield cluster
