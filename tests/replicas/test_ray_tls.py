"""A Ray cluster that encrypts its connections: those of Shoal are encrypted too."""

from collections.abc import Generator
from typing import Any

import anyio.to_thread
import pytest

from certificates import new_certificate
from replicas.playing import playing
from replicas.ray_backends import Model
from replicas.ray_cluster import MARKS, SMALL, cluster_of
from shoal.batching.current import Identity
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint

ray = pytest.importorskip("ray")

from shoal.replicas.ray.link import Link  # noqa: E402 - it needs Ray
from shoal.replicas.ray.replica import RayReplica  # noqa: E402

pytestmark = [
    *MARKS,
    pytest.mark.slow,
    pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True),
]


@pytest.fixture(autouse=True)
def _on_an_encrypted_cluster(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    made = new_certificate(tmp_path, ray.util.get_node_ip_address())
    monkeypatch.setenv("RAY_USE_TLS", "1")
    monkeypatch.setenv("RAY_TLS_SERVER_CERT", made["certfile"])
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", made["keyfile"])
    monkeypatch.setenv("RAY_TLS_CA_CERT", made["certfile"])
    with cluster_of({"num_cpus": 1}):
        yield


async def test_batches_are_encrypted_if_ray_is(folder, monkeypatch):
    addresses: list[str] = []
    attach = Link.attach

    async def noting(self: Link, actor: Any, soon: Any) -> str:
        _, address = await anyio.to_thread.run_sync(actor.ready.result)
        addresses.append(address.scheme)
        return await attach(self, actor, soon)

    monkeypatch.setattr(Link, "attach", noting)
    replica = RayReplica(
        Blueprint(
            identity=Identity("model", "model#0"),
            definition=Definition(Model, (folder.path,)),
            placement_options={"ray_options": SMALL},
        )
    )
    async with playing(replica) as played:
        assert await played.run("__call__", [1]) == [1]
        assert await played.run("__call__", [b"x" * 3_000_000]) == [b"x" * 3_000_000]
        assert await played.steps("counts", [3]) == [[0], [1], [2]]
        await replica.check_health()
        await replica.reconfigure(5)
    assert played.error is None
    assert addresses == ["tls"]
    assert folder.notes()[-2:] == ["configured 5", "closed"]
