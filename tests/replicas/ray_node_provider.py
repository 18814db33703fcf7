"""How the autoscaler of a test's cluster adds nodes: it starts them on this machine.

Only the autoscaler's process imports this.
"""

from typing import Any

import ray._private.node
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.experimental.internal_kv import internal_kv_get_gcs_client


class OwnedNode(ray._private.node.Node):
    """A node that ends with the autoscaler, which ends with the test."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "spawn_reaper": True})


ray._private.node.Node = OwnedNode


class NodesOfThisMachine(FakeMultiNodeProvider):
    """Adds nodes to the cluster that the autoscaler is of, whichever its port is."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        address = internal_kv_get_gcs_client().address
        super().__init__({**provider_config, "gcs_address": address}, cluster_name)
