"""Replicas of several Ray actors: they start together or not at all, and end together."""

import logging
import os
import signal
import time
from collections.abc import Generator
from functools import partial
from typing import Any

import anyio
import pytest

import shoal
from replicas.ray_backends import Model, Sharded, ShardedSteps
from replicas.ray_cluster import MARKS, ON_TRIO, cluster_of
from serving.scenes import deployed
from shoal.serving.controller.controller import Controller
from worker_processes import until

ray = pytest.importorskip("ray")

from shoal.replicas.ray.placing import ReplicaGroup  # noqa: E402 - it needs Ray

pytestmark = [*MARKS, pytest.mark.slow, ON_TRIO]

CONFIG: Any = {
    "placement": "ray",
    "ray_options": {"num_cpus": 0, "placement_group_bundles": [{"CPU": 1}, {"CPU": 1}]},
    "max_batch_size": 4,
}


@pytest.fixture(scope="module", autouse=True)
def _on_three_cpus() -> Generator[None]:
    """The cluster has room for one whole replica, and for one shard of another."""
    with cluster_of(*[{"num_cpus": 1}] * 3):
        yield


def groups() -> list[str]:
    """The states of the placement groups that there are."""
    table: dict[str, Any] = ray.util.placement_group_table()
    return sorted(one["state"] for one in table.values() if one["state"] != "REMOVED")


async def until_groups(count: int) -> None:
    """Waits until there are so many, since Ray removes them in the background."""
    with anyio.fail_after(30):
        while len(await anyio.to_thread.run_sync(groups)) != count:  # noqa: ASYNC110
            await anyio.sleep(0.1)


async def test_one_replica_starts_wholly_and_the_other_waits_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr("shoal.replicas.ray.replica._PATIENCE_S", 0.5)
    caplog.set_level(logging.WARNING, "shoal")
    async with Controller() as controller, anyio.create_task_group() as tasks:
        config = {**CONFIG, "num_replicas": 2}
        create = partial(controller.create_backend, "b", Sharded, config=config)

        def said() -> list[str]:
            return [r.getMessage() for r in caplog.records if " waits: " in r.getMessage()]

        def states() -> list[str]:
            return sorted(one.state for one in controller.status_now().backends["b"].replicas)

        tasks.start_soon(create)
        await until(lambda: "b" in controller.backends and said())
        waits = said()[-1]
        assert waits.startswith("b#")
        assert "has not placed its actor" in waits
        assert "'placement_group_bundles': [{'CPU': 1}, {'CPU': 1}]" in waits
        assert "1 of 3 CPU" in waits
        assert await anyio.to_thread.run_sync(groups) == ["CREATED", "PENDING"]
        assert states() == ["ready", "starting"]
        await controller.create_endpoint("e", backend="b")
        handle = await controller.get_handle("e")
        assert await handle.call(1) == 3
        # Nothing of the other replica keeps the CPUs.
        await controller.scale_backend("b", 1)
        await until(lambda: states() == ["ready"])
        assert await anyio.to_thread.run_sync(groups) == ["CREATED"]
        assert await handle.call(2) == 4
    assert await anyio.to_thread.run_sync(groups) == []


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "in a batch"])
async def test_the_death_of_a_shard_ends_its_replica(is_idle):
    async with Controller() as controller:
        handle = await deployed(controller, "b", Sharded, config=CONFIG)
        [first, second] = await handle.options(method_name="where").call(0)
        os.kill(second, signal.SIGKILL)
        status = controller.status_now
        if not is_idle:
            with pytest.raises(shoal.errors.ReplicaDied, match=r"its actor Actor\(Shard, .* died"):
                await handle.call(1)
        await until(lambda: status().backends["b"].deaths == 1)
        assert "its actor Actor(Shard, " in str(status().backends["b"].failure)
        answer: int | None = None
        while answer is None:
            try:
                answer = await handle.call(5)
            except shoal.errors.ReplicaDied:
                await anyio.sleep(0.1)
        assert answer == 7
        assert not {first, second} & {*await handle.options(method_name="where").call(0)}
    assert await anyio.to_thread.run_sync(groups) == []


async def test_the_death_of_a_shard_fails_the_requests_of_an_open_batch():
    config = {**CONFIG, "fill": "continuous", "streams": True}
    async with Controller() as controller:
        handle = await deployed(controller, "b", ShardedSteps, config=config)
        replica: Any = controller.backends["b"].supervisor.managed[0].replica
        [[_, second]] = await replica.run("where", [0])
        found: list[Any] = []
        errors: list[str] = []

        async def read(item: int) -> None:
            try:
                async with handle.stream(item) as stream:
                    async for step in stream:
                        found.append((item, step))  # noqa: PERF401
            except shoal.errors.ReplicaDied as error:
                errors.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, 1)
            tasks.start_soon(read, 5)
            await until(lambda: {(1, 3), (5, 7)} <= {*found})
            os.kill(second, signal.SIGKILL)
        assert {*found} == {(1, 3), (5, 7)}
        assert len(errors) == 2
        assert all("its actor Actor(Shard, " in error for error in errors)


async def test_a_group_whose_replica_did_not_start_is_removed():
    async with Controller() as controller:
        config = {
            **CONFIG,
            "ray_options": {"placement_group_bundles": [{"CPU": 1}] * 4},
            "place_timeout_s": 0.5,
        }
        with pytest.raises(shoal.errors.ReplicaNotStarted, match="has not placed its actor"):
            await controller.create_backend("b", Sharded, config=config)
    assert await anyio.to_thread.run_sync(groups) == []


SMALL_GROUP: Any = {
    **CONFIG,
    "ray_options": {"num_cpus": 0, "placement_group_bundles": [{"CPU": 0.1}]},
}


async def test_the_groups_of_replicas_that_end_together_are_removed(monkeypatch, folder):
    remove = ray.util.remove_placement_group

    def slowly(group: Any) -> None:
        time.sleep(0.5)
        remove(group)

    async with Controller() as controller:
        await controller.create_backend(
            "b", Model, folder.path, config={**SMALL_GROUP, "num_replicas": 3}
        )
        await until(lambda: controller.status_now().backends["b"].state == "ready")
        monkeypatch.setattr(ray.util, "remove_placement_group", slowly)
    await until_groups(0)


async def test_a_group_that_cannot_be_removed_is_removed_by_the_next_start(monkeypatch, folder):
    asked = list[Any]()

    def fails(group: Any) -> None:
        asked.append(group)
        raise RuntimeError("not now")

    async with Controller() as controller:
        with monkeypatch.context() as patch:
            await controller.create_backend("b", Model, folder.path, config=SMALL_GROUP)
            patch.setattr(ray.util, "remove_placement_group", fails)
            await controller.delete_backend("b")
            assert asked
            await controller.create_backend("other", Model, folder.path, config=SMALL_GROUP)
        await until_groups(2)
        await controller.create_backend("third", Model, folder.path, config=SMALL_GROUP)
        await until_groups(2)


async def test_a_replica_stays_though_ray_does_not_know_the_nodes_of_its_group(monkeypatch, folder):
    monkeypatch.setattr("shoal.replicas.ray.replica._LOOK_PERIOD_S", 0.05)
    asked = list[Any]()

    def table(group: Any) -> Any:
        asked.append(group)
        if len(asked) < 3:
            raise RuntimeError("no table")
        return {}

    monkeypatch.setattr(ray.util, "placement_group_table", table)
    async with Controller() as controller:
        handle = await deployed(controller, "b", Model, folder.path, config=SMALL_GROUP)
        await until(lambda: len(asked) == 3)
        assert await handle.call(1) == 1
        assert controller.status_now().backends["b"].deaths == 0


async def test_a_program_that_has_left_ray_does_not_join_it_again_to_remove_a_group():
    group = ReplicaGroup()
    await anyio.to_thread.run_sync(group.make, [{"CPU": 0.1}], None, "x")
    await anyio.to_thread.run_sync(ray.shutdown)
    await anyio.to_thread.run_sync(group.remove)
    assert not ray.is_initialized()
