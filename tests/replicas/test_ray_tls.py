"""A Ray cluster that encrypts its connections: those of Shoal are encrypted too."""

import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from certificates import new_certificate
from replicas.ray_cluster import MARKS

ray = pytest.importorskip("ray")

pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.one_loop]

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
