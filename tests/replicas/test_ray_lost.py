"""Ray clusters of their own: one that encrypts its connections, and some that lose a part."""

import json
import logging
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest

import shoal
from certificates import new_certificate
from replicas.ray_backends import Model
from replicas.ray_cluster import MARKS, NODE, ON_TRIO, SMALL, cluster_of
from serving.scenes import deployed
from shoal.serving.controller.controller import Controller
from shoal.testing.asgi import ask
from worker_processes import until

ray = pytest.importorskip("ray")

pytestmark = [*MARKS, pytest.mark.slow, ON_TRIO]

GCS_TIMEOUT = "RAY_gcs_rpc_server_reconnect_timeout_s"
CONFIG: Any = {"placement": "ray", "ray_options": SMALL, "max_batch_size": 1}


@pytest.fixture
def cluster() -> Generator[Any]:
    with cluster_of({"num_cpus": 2}, {"num_cpus": 2}) as cluster:
        yield cluster


async def test_a_program_whose_ray_node_dies_connects_again(cluster, folder, caplog):
    caplog.set_level(logging.WARNING, "shoal")
    async with Controller() as controller:
        config = {**CONFIG, "num_replicas": 2}
        handle = await deployed(controller, "b", Model, folder.path, config=config)
        stream = handle.options(method_name="is_stuck_in_a_step").stream
        own = ray.get_runtime_context().get_node_id()
        [node] = [one for one in cluster.list_all_nodes() if one.node_id == own]
        # Ray would end this process if a stream used the connection after it was closed.
        async with stream(1) as steps:
            assert await anext(steps) == 1
            await anyio.to_thread.run_sync(node.kill_raylet)
            with pytest.raises(shoal.errors.ReplicaDied):
                await anext(steps)
        answer: int | None = None
        while answer is None:
            try:
                answer = await handle.call(5)
            except (shoal.errors.ReplicaDied, shoal.errors.BackendUnavailable):
                await anyio.sleep(0.1)
        assert answer == 5
        assert ray.get_runtime_context().get_node_id() != own
    said = [record.getMessage() for record in caplog.records]
    assert "the Ray node of this program has died; connecting to Ray again" in said


@pytest.mark.parametrize("has_head", [True, False], ids=["node", "node and head"])
async def test_a_program_without_a_ray_node_fails_its_liveness_check(
    cluster, folder, monkeypatch, has_head
):
    monkeypatch.setattr("shoal.replicas.ray.replica._LOST_S", 0.1)
    app = shoal.App()

    @app.endpoint("/other")
    async def other(item: int) -> int:
        return item

    app.backend("b", Model, folder.path, **CONFIG)
    app.route("e", backend="b", path="/e")

    async def alive() -> int:
        return (await ask(app, "/-/healthz", method="GET")).status

    async with app.lifespan():
        assert await alive() == 200
        if not has_head:
            await anyio.to_thread.run_sync(cluster.head_node.kill_gcs_server)
        for node in cluster.list_all_nodes():
            await anyio.to_thread.run_sync(node.kill_raylet)
        while await alive() == 200:  # noqa: ASYNC110 - Ray is in other processes
            await anyio.sleep(0.1)
        said = await ask(app, "/-/healthz", method="GET")
        assert (said.status, json.loads(said.body)["status"]) == (
            503,
            "lost: the backend b can't reach Ray",
        )
        assert json.loads((await ask(app, "/other", 3)).body) == 3
        if has_head:
            cluster.add_node(num_cpus=2, **NODE)  # in the main thread
            while await alive() == 503:  # noqa: ASYNC110
                await anyio.sleep(0.1)
            assert json.loads((await ask(app, "/e", 4)).body) == 4


async def test_a_program_runs_on_while_the_gcs_is_away(cluster, folder, monkeypatch, caplog):
    monkeypatch.setattr("shoal.replicas.ray.replica._PATIENCE_S", 0.5)
    waiting = {
        **CONFIG,
        "ray_options": {**SMALL, "resources": {"nowhere": 1}},
        "place_timeout_s": 15.0,
    }

    async def create_in_vain() -> None:
        why = r"was not ready within 15 s \(place_timeout_s\): Ray has not placed its actor"
        with pytest.raises(shoal.errors.ReplicaNotStarted, match=why):
            await controller.create_backend("waiting", Model, folder.path, config=waiting)

    async with Controller() as controller, anyio.create_task_group() as tasks:
        handle = await deployed(controller, "b", Model, folder.path, config=CONFIG)
        assert await handle.call(1) == 1
        assert int(os.environ[GCS_TIMEOUT]) > 10 * 365 * 86400
        tasks.start_soon(create_in_vain)
        await until(lambda: "waiting#0 waits: " in caplog.text)
        await anyio.to_thread.run_sync(cluster.head_node.kill_gcs_server)
        with pytest.raises(shoal.errors.ReplicaNotStarted, match="head node can't be reached at"):
            await controller.create_backend("other", Model, folder.path, config=CONFIG)
        assert await handle.call(2) == 2


async def test_a_program_runs_on_while_the_head_node_is_frozen(cluster, folder):
    async with Controller() as controller:
        handle = await deployed(controller, "b", Model, folder.path, config=CONFIG)
        gcs = cluster.head_node.all_processes["gcs_server"][0].process.pid
        os.kill(gcs, signal.SIGSTOP)
        try:
            # After 60 s Ray would end this process.
            with (
                anyio.fail_after(50),
                pytest.raises(
                    shoal.errors.ReplicaNotStarted, match="head node can't be reached at"
                ),
            ):
                await controller.create_backend("other", Model, folder.path, config=CONFIG)
            assert await handle.call(2) == 2
        finally:
            os.kill(gcs, signal.SIGCONT)
        await controller.create_backend("other", Model, folder.path, config=CONFIG)


# A program of its own, since Ray reads these variables when it is imported.
PROGRAM = """
import anyio
from shoal.replicas.ray.link import Link
from shoal.serving.controller.controller import Controller

async def attach(self, actor, soon, attach=Link.attach):
    _, address = await anyio.to_thread.run_sync(actor.ready.result)
    print("listens at", address.scheme)
    return await attach(self, actor, soon)

async def main():
    Link.attach = attach
    config = {"placement": "ray", "ray_options": {"num_cpus": 0.01}, "user_config": 5}
    async with Controller() as controller:
        await controller.create_backend("b", "replicas.ray_backends:Model", FOLDER, config=config)
        await controller.create_endpoint("e", backend="b")
        handle = await controller.get_handle("e")
        large = b"x" * 3_000_000
        assert await handle.call(large) == large
        async with handle.options(method_name="counts").stream(3) as steps:
            print([step async for step in steps])

anyio.run(main, backend="trio")
"""


async def test_batches_are_encrypted_if_ray_is(tmp_path: Any, folder: Any) -> None:
    made = new_certificate(tmp_path, ray.util.get_node_ip_address())
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "RAY_ADDRESS": "local",
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": made["certfile"],
        "RAY_TLS_SERVER_KEY": made["keyfile"],
        "RAY_TLS_CA_CERT": made["certfile"],
    }
    program = PROGRAM.replace("FOLDER", repr(folder.path))
    done = await anyio.run_process([sys.executable, "-c", program], env=environment, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines()[-2:] == ["listens at tls", "[0, 1, 2]"]
    assert folder.notes()[-1] == "closed"
