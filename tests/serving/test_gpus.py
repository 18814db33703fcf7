"""GPUs of a server: each replica is given its own, and gives them back."""

from typing import Any

import anyio
import pytest

from batching.callers import PENDING, line_up
from batching.scenes import settle
from serving.scenes import Gated, Stage, echo, serving, serving_tasks, slowly, under_way
from shoal.errors import NotEnoughGpus, ReplicaNotStarted
from shoal.serving.controller.controller import Controller
from shoal.serving.devices import Devices


@pytest.fixture(autouse=True)
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")


def devices_of(replicas: list[Any]) -> list[tuple[str, ...]]:
    return [replica.blueprint.devices for replica in replicas]


def holders(controller: Controller) -> dict[str, list[str]]:
    return {name: list(one.replicas) for name, one in controller.status_now().gpus.items()}


async def test_each_replica_has_its_own():
    async with serving(echo, num_replicas=2, gpus=2) as (controller, _, stage):
        await settle()
        assert devices_of(stage.replicas) == [("0", "1"), ("2", "3")]
        status = controller.status_now()
        assert [one.gpus for one in status.backends["b"].replicas] == [("0", "1"), ("2", "3")]
        assert status.gpus["3"].replicas == {"b#1": 1.0}
        assert status.gpus["3"].memory_used_bytes is None


async def test_replicas_share_one_by_parts():
    async with serving(echo, num_replicas=3, gpus=0.5) as (_, _, stage):
        await settle()
        assert devices_of(stage.replicas) == [("0",), ("0",), ("1",)]


async def test_uuids_are_handed_on_as_they_are(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f2c, GPU-11aa,-1,GPU-77")
    async with serving(echo, num_replicas=2, gpus=1) as (_, _, stage):
        await settle()
        assert devices_of(stage.replicas) == [("GPU-8f2c",), ("GPU-11aa",)]


async def test_without_the_option_none_is_given():
    async with serving(echo) as (controller, _, stage):
        assert devices_of(stage.replicas) == [()]
        assert controller.status_now().gpus == {}


async def test_more_than_there_are_is_refused_with_who_has_them():
    async with serving(echo, num_replicas=3, gpus=1) as (controller, _, _):
        await settle()
        config = {"placement": Stage(), "num_replicas": 2, "gpus": 1}
        with pytest.raises(NotEnoughGpus) as refused:
            await controller.create_backend("c", echo, config=config)
        assert str(refused.value) == (
            "c asks for gpus=1 for each of 2 replicas, and CUDA_VISIBLE_DEVICES of this server "
            "leaves it 4: 0, 1, 2, 3; 0 has b#0; 1 has b#1; 2 has b#2"
        )
        await controller.create_backend("c", echo, config={"placement": Stage(), "gpus": 0.5})
        assert holders(controller)["3"] == ["c#0"]
        with pytest.raises(NotEnoughGpus, match=r"b asks for gpus=1 for each of 4 replicas"):
            await controller.scale_backend("b", 4)
        assert (await controller.get_backend_config("b")).num_replicas == 3


async def test_a_server_without_any_says_so(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    async with Controller() as controller:
        with pytest.raises(NotEnoughGpus, match=r"b asks for gpus=1, and .* leaves it none"):
            await controller.create_backend("b", echo, config={"placement": Stage(), "gpus": 1})


async def test_a_deleted_backend_gives_them_back():
    async with serving(echo) as (controller, _, _):
        for _ in range(2):
            config = {"placement": Stage(), "gpus": 4}
            await controller.create_backend("c", echo, config=config)
            await controller.delete_backend("c")
        assert holders(controller) == {key: [] for key in "0123"}


async def test_a_replica_that_dies_gives_its_own_to_the_next_one():
    async with serving(echo, num_replicas=2, gpus=2) as (controller, handle, stage):
        await settle()
        await stage.lose(wait_s=1)
        assert devices_of(stage.alive) == [("2", "3"), ("0", "1")]
        assert await handle.call(1) == 1
        status = controller.status_now().backends["b"]
        assert (status.starts, status.deaths, status.failure) == (3, 1, None)


async def test_one_that_is_unhealthy_is_replaced_when_its_own_are_free(stage):
    stage.kill_gate = anyio.Event()
    async with serving(echo, stage, gpus=4, health_check_period_s=1.0) as (controller, _, _):

        async def health(replica: Any) -> None:
            if replica.number == 0:
                raise RuntimeError("sick")

        stage.health = health
        await anyio.sleep(5)
        assert stage.replicas[0].killed is not None
        assert holders(controller)["0"] == ["b#0"]
        assert controller.status_now().backends["b"].starts == 1
        stage.kill_gate.set()
        await anyio.sleep(1)
        assert holders(controller)["0"] == ["b#1"]
        assert controller.status_now().backends["b"].starts == 2


async def test_an_update_starts_new_ones_beside_the_old_ones_where_some_are_free():
    async with serving(echo, num_replicas=2, gpus=1) as (controller, _, stage):
        await settle()
        stage.start = gated = Gated()
        async with anyio.create_task_group() as tasks:
            [updating] = await line_up(
                tasks, controller.update_backend_config("b", {"cancel_grace_s": 3.0})
            )
            await settle()
            assert len(stage.alive) == 2
            await gated.go(2)
            assert len(stage.alive) == 3
            await gated.go(3)
            assert updating.outcome is None
        assert devices_of(stage.alive) == [("2",), ("3",)]


async def test_an_update_without_free_ones_replaces_one_at_a_time():
    async with serving(echo, num_replicas=4, gpus=1) as (controller, handle, stage):
        await settle()
        fewest = len(stage.alive)

        async def start(_: Any) -> None:
            nonlocal fewest
            await anyio.sleep(1)
            fewest = min(fewest, len(stage.alive))
            assert await handle.call(1) == 1

        stage.start = start
        await controller.update_backend_config("b", {"cancel_grace_s": 3.0})
        assert fewest == 3
        assert [replica.number for replica in stage.alive] == [4, 5, 6, 7]
        assert sorted(devices_of(stage.alive)) == [("0",), ("1",), ("2",), ("3",)]
        assert controller.status_now().backends["b"].deaths == 0


async def test_the_only_replica_is_replaced_and_its_requests_wait():
    async with serving(echo, gpus=4) as (controller, handle, stage):
        stage.start = gated = Gated()
        async with anyio.create_task_group() as tasks:
            [restarting] = await under_way(tasks, controller.restart_backend("b"))
            [call] = await line_up(tasks, handle.call(5))
            assert len(stage.alive) == 0
            assert (restarting.outcome, call.outcome) == (PENDING, PENDING)
            await gated.go(1)
            assert (restarting.outcome, call.outcome) == (None, 5)


async def test_an_update_that_fails_late_brings_the_old_ones_back():
    async with serving(echo, num_replicas=4, gpus=1) as (controller, handle, stage):
        await settle()
        made = []

        async def start(replica: Any) -> str | None:
            if replica.blueprint.options.cancel_grace_s != 3.0:
                return None
            made.append(replica)
            return "no luck" if len(made) == 3 else None

        stage.start = start
        with pytest.raises(ReplicaNotStarted, match="no luck"):
            await controller.update_backend_config("b", {"cancel_grace_s": 3.0})
        await anyio.sleep(60)
        assert {one.blueprint.options.cancel_grace_s for one in stage.alive} == {1.0}
        assert sorted(devices_of(stage.alive)) == [("0",), ("1",), ("2",), ("3",)]
        assert await handle.call(1) == 1


async def test_an_update_to_more_ends_as_many_old_ones_as_it_needs():
    async with serving(echo, num_replicas=2, gpus=0.5) as (controller, _, stage):
        await settle()
        with pytest.raises(NotEnoughGpus, match="gpus=3 for each of 2 replicas"):
            await controller.update_backend_config("b", {"gpus": 3})
        await controller.update_backend_config("b", {"gpus": 2})
        one, other = devices_of(stage.alive)
        assert (len(one), len(other), {*one, *other}) == (2, 2, set("0123"))
        await controller.update_backend_config("b", {"gpus": 1, "num_replicas": 4})
        assert sorted(devices_of(stage.alive)) == [("0",), ("1",), ("2",), ("3",)]
        await controller.update_backend_config("b", {"gpus": None})
        assert devices_of(stage.alive) == [()] * 4
        assert holders(controller) == {key: [] for key in "0123"}


async def test_a_worn_out_replica_ends_before_the_next_one_starts():
    async with serving(echo, gpus=4, max_batches_per_replica=2) as (_, handle, stage):
        for number in range(7):
            assert await handle.call(number) == number
        assert [len(replica.calls) for replica in stage.replicas][:3] == [2, 2, 2]
        assert {*devices_of(stage.replicas)} == {("0", "1", "2", "3")}


async def test_autoscaling_goes_no_further_than_there_are_free_ones():
    autoscaling = {"max_replicas": 8, "upscale_delay_s": 1.0, "metrics_interval_s": 1.0}
    config: Any = {"gpus": 2, "autoscaling": autoscaling, "max_ongoing_requests": 1}
    async with serving_tasks(slowly, **config) as (controller, handle, stage, tasks):
        await line_up(tasks, *[handle.call(1000.0) for _ in range(40)])
        await anyio.sleep(100)
        status = controller.status_now().backends["b"]
        assert (status.wanted, status.starts, status.failure) == (2, 2, None)
        tasks.cancel_scope.cancel()
    assert len(stage.replicas) == 2


async def test_of_two_that_are_created_at_once_one_is_refused_whole():
    stages = Stage(), Stage()
    refused: list[str] = []
    async with Controller() as controller:

        async def create(tag: str, stage: Stage) -> None:
            config = {"placement": stage, "num_replicas": 3, "gpus": 1}
            try:
                await controller.create_backend(tag, echo, config=config)
            except NotEnoughGpus:
                refused.append(tag)

        async with anyio.create_task_group() as tasks:
            for tag, stage in zip("ab", stages, strict=True):
                tasks.start_soon(create, tag, stage)
        await settle()
        assert sorted(len(stage.replicas) for stage in stages) == [0, 3]
        assert len(refused) == 1


async def test_a_replica_that_its_placement_can_not_make_takes_none():
    def broken(_: Any) -> Any:
        raise LookupError("no such place")

    async with Controller() as controller:
        with pytest.raises(ReplicaNotStarted, match="no such place"):
            await controller.create_backend("b", echo, config={"placement": broken, "gpus": 4})
        assert holders(controller) == {key: [] for key in "0123"}


async def test_ray_assigns_gpus_by_itself():
    from shoal.serving.backend_config import BackendConfig

    devices = Devices()
    config = BackendConfig(placement="ray", gpus=8)
    await devices.find(config)
    assert devices.places(config) is None
    assert devices.take("b#0", config) == ()
    devices.check("b", config, 100)
    assert devices.status() == {}
