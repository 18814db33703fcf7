"""Ray adds nodes for replicas that have no place, and Shoal adds replicas while there is load."""

from collections.abc import Generator
from typing import Any

import anyio
import pytest

from replicas.ray_backends import Model
from replicas.ray_cluster import MARKS, ON_TRIO, SMALL, growing_cluster
from serving.scenes import deployed
from shoal.serving.controller.controller import Controller
from worker_processes import until

ray = pytest.importorskip("ray")

pytestmark = [*MARKS, pytest.mark.slow, ON_TRIO]

ON_A_NODE_OF_ITS_OWN = {"num_cpus": 1, "resources": {"added": 1}}
BY_LOAD: Any = {
    "max_replicas": 3,
    "target_ongoing_requests": 1,
    "upscale_delay_s": 0,
    "downscale_delay_s": 0.2,
    "metrics_interval_s": 0.05,
    "look_back_period_s": 0.1,
}


@pytest.fixture(scope="module", autouse=True)
def _on_a_growing_cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Every test is on one whose nodes come and go; only these have the resource ``added``."""
    folder = tmp_path_factory.mktemp("autoscaler")
    with growing_cluster({"num_cpus": 1}, {"CPU": 1, "added": 1}, folder):
        yield


def added_nodes() -> list[str]:
    """The nodes that the autoscaler has added."""
    return [n["NodeID"] for n in ray.nodes() if n["Alive"] and "added" in n["Resources"]]


async def test_ray_adds_a_node_for_a_replica_that_has_no_place_and_removes_it_after_it(folder):
    async with Controller() as controller:
        config = {"placement": "ray", "ray_options": ON_A_NODE_OF_ITS_OWN}
        handle = await deployed(controller, "b", Model, folder.path, config=config)
        handle = handle.options(method_name="nodes")
        assert added_nodes() == [await handle.call(1)]
        status = controller.status_now().backends["b"]
        assert (status.state, status.starts, status.failure) == ("ready", 1, None)
        await controller.delete_endpoint("b")
        await controller.delete_backend("b")
        await until(lambda: not added_nodes())


@pytest.mark.parametrize(
    ("ray_options", "nodes_each"),
    [
        pytest.param(SMALL, 0, id="where there is room"),
        pytest.param(ON_A_NODE_OF_ITS_OWN, 1, id="each on a node that Ray adds"),
    ],
)
async def test_replicas_come_with_the_load_and_go_with_it(folder, ray_options, nodes_each):
    config = {
        "placement": "ray",
        "ray_options": ray_options,
        "max_batch_size": 1,
        "autoscaling": BY_LOAD,
    }
    answers: list[int] = []
    async with Controller() as controller:
        handle = await deployed(controller, "b", Model, folder.path, config=config)
        handle = handle.options(method_name="is_stuck")

        def replicas() -> list[str]:
            return [one.state for one in controller.status_now().backends["b"].replicas]

        async def call(number: int) -> None:
            answers.append(await handle.call(number))

        assert replicas() == ["ready"]
        assert len(added_nodes()) == nodes_each
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(call, number)
            # Each replica has one of them.
            await until(lambda: folder.notes().count("began") == 3)
            assert replicas() == ["ready"] * 3
            assert len(added_nodes()) == 3 * nodes_each
            folder.release("on")
        assert sorted(answers) == [0, 1, 2]
        await until(lambda: len(replicas()) == 1)
        assert folder.notes().count("closed") == 2
        await until(lambda: len(added_nodes()) == nodes_each)
        assert await handle.call(3) == 3
        status = controller.status_now().backends["b"]
        assert (status.state, status.starts, status.deaths) == ("ready", 3, 0)
    await until(lambda: not added_nodes())
