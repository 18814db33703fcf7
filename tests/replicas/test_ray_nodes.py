"""Three nodes under load over HTTP, one of which leaves.

If it is killed, only what ran there is lost; if it is drained first, nothing.
"""

import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from live_server import live

import shoal
from replicas.ray_backends import Noting
from replicas.ray_cluster import MARKS, cluster_of
from shoal.testing.replicas.code import Folder
from worker_processes import children_of

ray = pytest.importorskip("ray")

pytestmark = [*MARKS, pytest.mark.slow]

NODES = 3
BATCH = 4
CLIENTS = 24
ENOUGH = 200
"""How many requests are answered before the node is killed, and again once it is gone."""


class Load:
    """Clients that send requests one after the other; what became of each.

    Attributes:
        answered: The node that answered each request.
        failed: The problem of each that failed.
        sent: How many were sent.
        longest_s: How long the slowest answer took.
        is_over: Set to end it.
    """

    def __init__(self, url: str) -> None:
        self.answered: dict[int, str] = {}
        self.failed: dict[int, str] = {}
        self.is_over = False
        self.sent = 0
        self.longest_s = 0.0
        self._url = url
        self._change = anyio.Event()

    async def send(self, client: httpx.AsyncClient) -> None:
        """Sends requests until it is over."""
        while not self.is_over:
            self.sent += 1
            item = self.sent
            began = time.monotonic()
            answer = await client.post(self._url, json=item, timeout=60)
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            if answer.status_code == 200:
                echoed, self.answered[item] = answer.json()
                assert echoed == item
            else:
                assert answer.status_code == 503
                self.failed[item] = answer.json()["type"]
            self._change.set()
            self._change = anyio.Event()

    async def more(self, count: int) -> None:
        """Waits until so many more requests are answered."""
        enough = len(self.answered) + count
        await self.until(lambda: len(self.answered) >= enough)

    async def until(self, is_reached: Any) -> None:
        """Waits until something holds, which is looked at after each answer."""
        while not is_reached():
            await self._change.wait()


@pytest.mark.parametrize("retries", [0, 1])
def test_only_what_runs_on_a_node_that_is_killed_is_lost(tmp_path: Path, retries: int) -> None:
    # A cluster is made in the main thread, outside of an event loop.
    node = {"num_cpus": 1}
    with cluster_of(node, node, node) as cluster:
        load, killed = anyio.run(_killed_under_load, cluster, tmp_path, retries, backend="trio")
    began: dict[int, list[str]] = {}
    for line in Folder(str(tmp_path)).notes():
        _, item, where = line.split()
        began.setdefault(int(item), []).append(where)
    # Each request has one end, and each answer came from where the request ran.
    assert not load.answered.keys() & load.failed.keys()
    assert load.answered.keys() | load.failed.keys() == set(range(1, load.sent + 1))
    assert all(where in began[item] for item, where in load.answered.items())
    # All three nodes had their part.
    assert len({*load.answered.values()}) == NODES
    # What ran elsewhere ran once, and was answered.
    elsewhere = {item for item, nodes in began.items() if killed not in nodes}
    assert elsewhere <= load.answered.keys()
    assert {len(began[item]) for item in elsewhere} == {1}
    ran_there = {item for item, nodes in began.items() if killed in nodes}
    lost = {item for item in ran_there if load.answered.get(item) != killed}
    print(f"{load.sent} sent, {len(load.failed)} failed, {len(lost)} were running there")
    assert len(lost) <= BATCH
    if retries:
        assert load.failed == {}
        assert all(len(began[item]) == 2 for item in lost)
    else:
        # A batch may have been on its way there.
        assert lost <= load.failed.keys()
        assert len(load.failed) <= BATCH
        assert set(load.failed.values()) <= {"urn:shoal:problem:replica-died"}


def test_nothing_is_lost_with_a_node_that_is_drained(tmp_path: Path) -> None:
    node = {"num_cpus": 1}
    with cluster_of(node, node, node) as cluster:
        load = anyio.run(_drained_under_load, cluster, tmp_path, backend="trio")
    assert load.failed == {}
    assert load.answered.keys() == set(range(1, load.sent + 1))
    began = [line.split()[1] for line in Folder(str(tmp_path)).notes()]
    assert len(began) == len({*began})  # each ran once


@pytest.mark.timeout(300)
def test_a_node_that_is_frozen_delays_calls_by_less_than_a_minute_by_default(tmp_path):
    node = {"num_cpus": 1}
    with cluster_of(node, node, config={}) as cluster:
        longest_s = anyio.run(_frozen_under_load, cluster, tmp_path, backend="trio")
    assert longest_s < 60


async def _frozen_under_load(cluster: Any, folder: Path) -> float:
    """Freezes all processes of a node; returns how long the longest call took."""
    async with _under_load(folder, 2, 1) as (app, load):
        own = ray.get_runtime_context().get_node_id()
        [node] = [one for one in cluster.list_all_nodes() if one.node_id != own]
        raylet = node.all_processes["raylet"][0].process.pid
        frozen = [raylet, *children_of(raylet)]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            noting = app.controller.backends["noting"]
            await load.until(lambda: noting.supervisor.failures.deaths > 0)
            await load.more(ENOUGH)
            assert load.failed == {}
            assert {*[*load.answered.values()][-ENOUGH:]} == {own}
            return load.longest_s
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGKILL)


async def _killed_under_load(cluster: Any, folder: Path, retries: int) -> tuple[Load, str]:
    """Kills one of the nodes under load; returns the load, and the node's id."""
    node = cluster.list_all_nodes()[-1]
    async with _under_load(folder, NODES, retries) as (app, load):
        killing = partial(cluster.remove_node, node, allow_graceful=False)
        await anyio.to_thread.run_sync(killing)
        noting = app.controller.backends["noting"]
        await load.until(lambda: noting.supervisor.failures.deaths > 0)
        await load.more(ENOUGH)
        status = app.controller.status_now().backends["noting"]
        # The new actor has no place, and waits for one.
        assert (status.state, status.deaths) == ("degraded", 1)
        assert sorted(one.state for one in status.replicas) == ["ready", "ready", "starting"]
    return load, node.node_id


async def _drained_under_load(cluster: Any, folder: Path) -> Load:
    """Drains one of two nodes with a replica, and then kills it; a third node is free."""
    async with _under_load(folder, NODES - 1, 0) as (app, load):
        own = ray.get_runtime_context().get_node_id()
        leaving = min({*load.answered.values()} - {own})
        drain = f"drain-node --address {cluster.address} --node-id {leaving}".split()
        drain += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"]
        drain += ["--deadline-remaining-seconds", "60"]
        await anyio.run_process([sys.executable, "-m", "ray.scripts.scripts", *drain])

        def has_moved() -> bool:
            latest = [*load.answered.values()][-ENOUGH:]
            return leaving not in latest and len({*latest}) == NODES - 1

        await load.until(has_moved)
        [node] = [one for one in cluster.list_all_nodes() if one.node_id == leaving]
        await anyio.to_thread.run_sync(partial(cluster.remove_node, node, allow_graceful=False))
        await load.more(ENOUGH)
        status = app.controller.status_now().backends["noting"]
        assert (status.state, status.deaths, status.starts) == ("ready", 0, NODES)
    return load


@asynccontextmanager
async def _under_load(
    folder: Path, replicas: int, retries: int
) -> AsyncGenerator[tuple[shoal.App, Load]]:
    """Serves replicas, each on a node of its own, and sends requests during the block."""
    app = shoal.App()
    app.backend(
        "noting",
        Noting,
        str(folder),
        placement="ray",
        ray_options={"num_cpus": 1},  # so that each node has one
        num_replicas=replicas,
        max_batch_size=BATCH,
        retries=retries,
    )
    app.route("noting", backend="noting", path="/noting")
    async with live(app, hang_s=300) as server:
        load = Load(f"http://127.0.0.1:{server.port}/noting")
        async with httpx.AsyncClient() as client, anyio.create_task_group() as clients:
            for _ in range(CLIENTS):
                clients.start_soon(load.send, client)
            await load.until(lambda: len({*load.answered.values()}) == replicas)
            await load.more(ENOUGH)
            yield app, load
            load.is_over = True
