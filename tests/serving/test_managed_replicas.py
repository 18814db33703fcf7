"""A managed replica: its health checks, and its end."""

from typing import Any

import anyio

from batching.scenes import PENDING, Held, line_up, outcomes, settle
from serving.scenes import (
    Gated,
    ScriptedReplica,
    Stage,
    echo,
    never,
    serving,
    serving_tasks,
    under_way,
)
from shoal.errors import ReplicaDied


class Health:
    """A `Stage.health` that fails as often in a row as it is told to."""

    def __init__(self, failures: int, error: type[Exception] = RuntimeError) -> None:
        self.left = failures
        self.error = error
        self.checked_at: list[float] = []

    async def __call__(self, replica: ScriptedReplica) -> None:
        if replica.number:
            return
        self.checked_at.append(anyio.current_time())
        if self.left:
            self.left -= 1
            raise self.error("out of memory")


class Mute(TimeoutError):
    def __str__(self) -> str:
        raise SystemExit(3)


async def test_health_is_checked_each_period(stage: Stage) -> None:
    stage.health = health = Health(0)
    async with serving(echo, stage, health_check_period_s=4):
        await anyio.sleep(21)
    assert health.checked_at == [4, 8, 12, 16, 20]


async def test_two_failures_are_borne(stage: Stage) -> None:
    stage.health = Health(2)
    async with serving(echo, stage, health_check_period_s=1):
        await anyio.sleep(10)
        stage.health.left = 2
        await anyio.sleep(10)
        assert len(stage.replicas) == 1


async def test_three_failures_in_a_row_end_a_replica(stage: Stage) -> None:
    stage.health = Health(3)
    async with serving(echo, stage, health_check_period_s=1) as (controller, handle, _):
        await anyio.sleep(10)
        assert "3 health checks failed" in str(stage.replicas[0].killed)
        assert "out of memory" in str(stage.replicas[0].killed)
        assert len(stage.alive) == 1
        assert await handle.call(1) == 1
        status = controller.status_now().backends["b"]
        assert (status.starts, status.deaths, status.restarts) == (2, 1, 1)
        await controller.scale_backend("b", 2)
        assert controller.status_now().backends["b"].restarts == 1  # one more is no restart


async def test_a_failed_check_whose_error_has_no_text_ends_only_its_replica(stage: Stage) -> None:
    stage.health = Health(3, Mute)
    async with serving(echo, stage, health_check_period_s=1) as (_, handle, _):
        await anyio.sleep(10)
        assert "3 health checks failed" in str(stage.replicas[0].killed)
        assert await handle.call(1) == 1


async def test_a_check_that_does_not_come_back_has_failed(stage: Stage) -> None:
    stage.health = never
    config: Any = {"health_check_period_s": 1, "health_check_timeout_s": 2}
    async with serving(echo, stage, **config):
        await anyio.sleep(8.9)
        assert stage.replicas[0].killed is None
        await anyio.sleep(0.2)
        assert "no answer within 2 s" in str(stage.replicas[0].killed)


async def test_the_work_of_an_unhealthy_replica_fails(held: Held, stage: Stage) -> None:
    stage.health = Health(3)
    async with serving_tasks(held, stage, health_check_period_s=1) as (_, handle, _, tasks):
        [caller] = await line_up(tasks, handle.call(1))
        await anyio.sleep(2.5)
        assert caller.outcome is PENDING
        await anyio.sleep(1)
        assert isinstance(caller.outcome, ReplicaDied)


async def test_an_unhealthy_replica_that_takes_its_time_to_end_is_missed_by_nobody(stage):
    stage.kill_gate = anyio.Event()
    stage.health = Health(3)
    async with serving(echo, stage, num_replicas=2, health_check_period_s=1) as (_, handle, _):
        await anyio.sleep(4)
        assert stage.ended == []
        assert await outcomes(*[handle.call(item) for item in range(3)]) == [0, 1, 2]
        assert [replica.number for replica in stage.alive] == [1, 2]
        stage.kill_gate.set()
        await settle()
        assert len(stage.replicas) == 3


async def test_a_new_period_holds_from_the_next_check_on(stage: Stage) -> None:
    stage.health = health = Health(0)
    async with serving(echo, stage, health_check_period_s=5) as (controller, _, _):
        await anyio.sleep(7)
        await controller.update_backend_config("b", {"health_check_period_s": 1})
        await anyio.sleep(5.5)
    assert health.checked_at == [5, 10, 11, 12]


async def test_a_new_period_holds_for_a_replica_that_was_being_started(stage: Stage) -> None:
    stage.start = gated = Gated(first=1)
    checks: list[int] = []

    async def health(replica: ScriptedReplica) -> None:
        checks.append(replica.number)

    stage.health = health
    async with serving_tasks(echo, stage, num_replicas=2, health_check_period_s=1000) as scene:
        controller, _, _, tasks = scene
        await under_way(tasks, controller.update_backend_config("b", {"health_check_period_s": 1}))
        gated.let(1)
        await anyio.sleep(10)
        assert 1 in checks


async def test_health_is_not_checked_while_a_replica_drains(held: Held, stage: Stage) -> None:
    stage.health = health = Health(0)
    async with serving_tasks(held, stage, health_check_period_s=1) as scene:
        controller, handle, _, tasks = scene
        await under_way(tasks, handle.call(1))
        tasks.start_soon(controller.restart_backend, "b")
        await anyio.sleep(10)
        assert health.checked_at == []
        held.gate.set()


async def test_health_is_not_checked_while_a_replica_finishes_since_its_machine_stops(held, stage):
    async with serving_tasks(held, stage, health_check_period_s=1) as (_, handle, _, tasks):
        [caller] = await under_way(tasks, handle.call(1))
        await anyio.sleep(1.5)
        stage.health = Health(100)  # it takes no more calls
        stage.replicas[0].is_leaving = True
        await anyio.sleep(20)
        assert stage.replicas[0].killed is None
        await held.release()
        assert caller.outcome == 1


async def test_one_that_does_not_end_when_it_is_asked_to_is_given_up(stage: Stage) -> None:
    stage.stop_gate = anyio.Event()
    async with serving(echo, stage, num_replicas=2, cancel_grace_s=3) as (controller, _, _):
        await settle()
        with anyio.fail_after(60):
            await controller.scale_backend("b", 1)
        assert anyio.current_time() > 3
        [gone] = stage.ended
        assert gone.stopped
        assert gone.killed == "it did not end when it was asked to"


async def test_one_that_ends_while_it_drains_is_not_asked_to(held: Held) -> None:
    async with serving_tasks(held, num_replicas=2) as (controller, handle, stage, tasks):
        callers = await under_way(tasks, handle.call(1))
        callers += await under_way(tasks, handle.call(2))
        [scaling] = await under_way(tasks, controller.scale_backend("b", 1))
        draining = next(
            number
            for number, each in enumerate(controller.status_now().backends["b"].replicas)
            if each.state == "draining"
        )
        stage.replicas[draining].die()
        await settle()
        assert scaling.outcome is None
        assert isinstance(callers[draining].outcome, ReplicaDied)
        assert not stage.replicas[draining].stopped
        await held.release()
        assert callers[1 - draining].outcome == 2 - draining


async def test_a_scaling_does_not_wait_for_an_unhealthy_replica_to_end(stage: Stage) -> None:
    stage.kill_gate = anyio.Event()
    stage.health = Health(3)
    config: Any = {"num_replicas": 2, "health_check_period_s": 1, "cancel_grace_s": 100}
    async with serving(echo, stage, **config) as (controller, _, _):
        await anyio.sleep(10)
        with anyio.fail_after(4):
            await controller.scale_backend("b", 3)
        assert stage.ended == []
        stage.kill_gate.set()


async def test_a_placement_that_can_not_say_its_memory_fails_no_batch(monkeypatch: Any) -> None:
    def memory_bytes(_: ScriptedReplica) -> int:
        raise SystemExit("no such process")

    monkeypatch.setattr(ScriptedReplica, "memory_bytes", memory_bytes)
    async with serving(echo, max_memory_bytes=1000) as (controller, handle, _):
        assert sorted(await outcomes(*[handle.call(item) for item in range(3)])) == [0, 1, 2]
        [replica] = (await controller.status()).backends["b"].replicas
        assert replica.memory_bytes is None
