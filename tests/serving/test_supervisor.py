"""So many replicas as there should be: started, restarted, replaced, scaled and recycled."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import anyio
import pytest

from batching.callers import PENDING, line_up, outcome, outcomes
from batching.scenes import Held, settle
from serving.scenes import (
    Gated,
    Stage,
    at_once,
    echo,
    failing,
    in_turn,
    never,
    serving,
    serving_tasks,
    slowly,
    under_way,
)
from shoal.errors import BackendUnavailable, ReplicaNotStarted
from shoal.serving.controller.controller import Controller

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from serving.scenes import ScriptedReplica
    from shoal.status import BackendStatus


def status_of(controller: Controller) -> BackendStatus:
    return controller.status_now().backends["b"]


def numbers(replicas: list[Any]) -> list[int]:
    return [replica.number for replica in replicas]


async def test_a_backend_is_there_when_its_first_replica_is_ready(stage: Stage) -> None:
    stage.start = gated = Gated()
    async with Controller() as controller, anyio.create_task_group() as tasks:
        config = {"placement": stage, "num_replicas": 3}
        [creating] = await under_way(tasks, controller.create_backend("b", echo, config=config))
        assert creating.outcome is PENDING
        assert await controller.list_backends() == {}
        await gated.go(1)
        assert creating.outcome is None
        assert status_of(controller).state == "degraded"
        gated.let(0)
        await gated.go(2)
        assert status_of(controller).state == "ready"


async def test_each_replica_has_a_tag_of_its_own_and_the_place_of_the_one_before() -> None:
    async with serving(echo, num_replicas=2) as (controller, _, stage):
        await settle()
        await stage.lose(wait_s=1)
        await controller.scale_backend("b", 3)
        assert [replica.tag for replica in stage.replicas] == ["b#0", "b#1", "b#2", "b#3"]
        assert [replica.blueprint.number for replica in stage.replicas] == [0, 1, 0, 2]


async def test_one_that_dies_is_replaced() -> None:
    async with serving(echo, num_replicas=2) as (controller, handle, stage):
        await settle()
        stage.replicas[0].die("ran out of luck")
        await settle()
        status = status_of(controller)
        assert status.state == "degraded"
        assert "ran out of luck" in str(status.failure)
        await anyio.sleep(1)
        status = status_of(controller)
        assert numbers(stage.alive) == [1, 2]
        assert (status.starts, status.deaths, status.restarts) == (3, 1, 1)
        assert (status.state, status.failure) == ("ready", None)
        assert await handle.call(1) == 1


async def test_one_that_ends_by_itself_counts_as_dead() -> None:
    async with serving(echo) as (controller, handle, stage):
        stage.replicas[0].stop()
        await anyio.sleep(1)
        assert status_of(controller).deaths == 1
        assert await handle.call(1) == 1


async def test_one_that_is_dying_may_leave_the_list_of_model_servers(stage: Stage) -> None:
    stage.kill_gate = anyio.Event()
    stage.health = unhealthy = AsyncMock(side_effect=RuntimeError("ill"))
    async with serving(echo, stage, health_check_period_s=1) as (controller, handle, _):
        await anyio.sleep(3.5)
        assert unhealthy.await_count >= 3
        stage.health = at_once
        controller.backends["b"].supervisor.follow(["unix:/another"])
        stage.kill_gate.set()
        await anyio.sleep(1)
        status = status_of(controller)
        assert (status.state, status.deaths, status.restarts) == ("ready", 1, 0)
        assert await handle.call(1) == 1


async def test_one_whose_task_fails_with_any_error_is_replaced() -> None:
    async with serving(echo) as (controller, handle, stage):

        async def start(_: Any) -> None:
            raise ZeroDivisionError

        stage.start = start
        await stage.lose(wait_s=0.2)
        stage.start = in_turn
        await anyio.sleep(30)
        assert await handle.call(1) == 1
        assert status_of(controller).deaths == 1


async def test_the_waits_between_starts_grow_and_differ() -> None:
    began: list[float] = []

    async def start(_: Any) -> str:
        began.append(anyio.current_time())
        return "no luck"

    async with serving(echo) as (_, _, stage):
        stage.start = start
        await stage.lose(wait_s=1000)
    waits = [after - before for before, after in itertools.pairwise(began)]
    assert 10 < len(waits) < 500
    assert max(waits[:3]) <= 0.8
    assert max(waits) <= 30
    assert max(waits) > 5
    assert len({*waits}) == len(waits)


async def test_callers_wait_while_a_replica_is_started_again() -> None:
    async with serving_tasks(echo) as (controller, handle, stage, tasks):
        stage.start = gated = Gated()
        await stage.lose()
        callers = await line_up(tasks, handle.call(1), handle.call(2))
        await anyio.sleep(50)
        assert [caller.outcome for caller in callers] == [PENDING, PENDING]
        assert status_of(controller).queued == 2
        await gated.go(1)
        assert [caller.outcome for caller in callers] == [1, 2]


async def test_the_circuit_opens_when_starts_go_on_failing_and_closes_when_one_succeeds() -> None:
    async with serving_tasks(echo) as (controller, handle, stage, tasks):
        stage.start = failing("the driver is gone")
        await stage.lose()
        callers = await line_up(tasks, handle.call(1), handle.call(2))
        await anyio.sleep(30)
        assert len(stage.replicas) >= 4
        for caller in callers:
            assert isinstance(caller.outcome, BackendUnavailable)
            assert isinstance(caller.outcome.__cause__, BackendUnavailable | ReplicaNotStarted)
        assert status_of(controller).state == "unavailable"
        assert isinstance(await outcome(handle.call(3)), BackendUnavailable)
        stage.start = in_turn
        await anyio.sleep(60)
        assert status_of(controller).state == "ready"
        assert await handle.call(4) == 4


async def test_callers_that_wait_for_room_fail_with_those_that_are_queued() -> None:
    bound: Any = {"max_queued_requests": 0, "max_batch_size": 1, "overload": "wait"}
    async with serving(echo, **bound) as (_, handle, stage):
        stage.start = failing("the driver is gone")
        await stage.lose(wait_s=30)
        with anyio.fail_after(0.1):
            failed = await outcomes(*[handle.call(item) for item in range(20)])
        assert {type(one) for one in failed} == {BackendUnavailable}


async def test_callers_are_served_while_one_replica_is_left_though_no_other_starts() -> None:
    async with serving(echo, num_replicas=2) as (controller, handle, stage):
        await settle()
        stage.start = failing()
        await stage.lose(wait_s=100)
        assert await handle.call(1) == 1
        assert status_of(controller).state == "degraded"
        await stage.lose(1)
        assert isinstance(await outcome(handle.call(2)), BackendUnavailable)


async def test_a_backend_that_can_not_start_is_none(stage: Stage) -> None:
    stage.start = failing("no such model")
    async with Controller() as controller:
        with pytest.raises(ReplicaNotStarted, match="no such model"):
            await controller.create_backend("b", echo, config={"placement": stage})
        assert await controller.list_backends() == {}
        assert len(stage.starting) == len(stage.ended) == 1
        await anyio.sleep(100)
        assert len(stage.starting) == 1
        stage.start = in_turn
        await controller.create_backend("b", echo, config={"placement": stage})


async def test_a_backend_one_of_whose_replicas_can_start_is_there(stage: Stage) -> None:
    stage.start = gated = Gated()
    async with Controller() as controller, anyio.create_task_group() as tasks:
        config = {"placement": stage, "num_replicas": 2}
        [creating] = await under_way(tasks, controller.create_backend("b", echo, config=config))
        await gated.go(0, "no luck")
        await gated.go(1)
        assert creating.outcome is None
        tasks.cancel_scope.cancel()


async def test_a_create_that_is_cancelled_leaves_nothing(stage: Stage) -> None:
    stage.start = never
    async with Controller() as controller:
        config = {"placement": stage, "num_replicas": 3, "start_timeout_s": None}
        with anyio.move_on_after(1000):
            await controller.create_backend("b", echo, config=config)
        assert len(stage.replicas) == len(stage.ended) == 3
        assert await controller.list_backends() == {}
        stage.start = in_turn
        await controller.create_backend("b", echo, config=config)


class Odd(Stage):
    """A placement that can't make some of its replicas."""

    def __init__(self, *bad: int) -> None:
        super().__init__()
        self.bad = {*bad}

    def __call__(self, blueprint: Any) -> Any:
        if int(blueprint.identity.replica.rpartition("#")[2]) in self.bad:
            raise OSError("no such machine")
        return super().__call__(blueprint)


async def test_a_placement_that_raises_later_is_tried_again() -> None:
    async with serving(echo, Odd(1, 2)) as (controller, handle, stage):
        await stage.lose(wait_s=30)
        assert await handle.call(1) == 1
        assert status_of(controller).deaths == 1


async def test_a_placement_that_raises_fails_no_batch() -> None:
    async with serving(echo, Odd(1), max_batches_per_replica=1) as (_, handle, _):
        for item in range(3):
            assert await handle.call(item) == item
            await anyio.sleep(30)


async def test_all_replicas_are_replaced_one_by_one_and_none_is_missed() -> None:
    least: list[int] = []
    most: list[int] = []
    places: list[int] = []

    async def start(replica: ScriptedReplica) -> None:
        places.append(replica.blueprint.number)
        for _ in range(10):
            await anyio.sleep(0.1)
            least.append(len(stage.alive))
            most.append(len(stage.replicas) - len(stage.ended) - len(stage.alive))

    async with serving(echo, num_replicas=3) as (controller, _, stage):
        await settle()
        stage.start = start
        await controller.restart_backend("b")
        assert numbers(stage.alive) == [3, 4, 5]
        assert min(least) == 3
        assert max(most) == 1
        assert places == [0, 1, 2]
        assert all(replica.stopped for replica in stage.replicas[:3])
        assert status_of(controller).deaths == 0


async def test_a_new_replica_works_while_an_old_one_finishes() -> None:
    async with serving_tasks(slowly) as (controller, handle, stage, tasks):
        [caller] = await under_way(tasks, handle.call(15.0))
        tasks.start_soon(controller.restart_backend, "b")
        await anyio.sleep(1)
        assert len(stage.alive) == 2
        await handle.call(1.0)
        assert anyio.current_time() == pytest.approx(2)
        await anyio.sleep(20)
        assert caller.outcome == 15
        assert numbers(stage.alive) == [1]


@pytest.mark.parametrize("failing_one", [3, 4, 5])
@pytest.mark.parametrize("verb", ["restart", "update", "scale"])
async def test_a_change_that_fails_half_way_leaves_exactly_the_old_replicas(verb, failing_one):
    async with serving(echo, num_replicas=3) as (controller, handle, stage):
        await settle()
        before = await controller.get_backend_config("b")
        stage.start = failing(numbers=lambda number: number >= failing_one)
        verbs: dict[str, Callable[[], Awaitable[None]]] = {
            "restart": lambda: controller.restart_backend("b"),
            "update": lambda: controller.update_backend_config("b", {"shared_memory_bytes": 5}),
            "scale": lambda: controller.scale_backend("b", 6),
        }
        with pytest.raises(ReplicaNotStarted):
            await verbs[verb]()
        for _ in range(2):
            assert numbers(stage.alive) == [0, 1, 2]
            status = status_of(controller)
            assert [replica.tag for replica in status.replicas] == ["b#0", "b#1", "b#2"]
            assert (status.state, status.wanted) == ("ready", 3)
            assert await controller.get_backend_config("b") == before
            assert await handle.call(1) == 1
            await anyio.sleep(100)
        stage.start = in_turn
        await stage.lose(wait_s=60)
        assert [replica.blueprint.placement_options for replica in stage.alive] == [{}] * 3


async def test_a_new_replica_that_dies_before_all_are_there_fails_the_change(stage: Stage) -> None:
    stage.start = gated = Gated(first=2)
    async with serving_tasks(echo, stage, num_replicas=2) as (controller, _, _, tasks):
        await settle()
        [restarting] = await line_up(tasks, controller.restart_backend("b"))
        gated.let(2)
        await anyio.sleep(1)
        await stage.lose(2, wait_s=1)
        assert isinstance(restarting.outcome, ReplicaNotStarted)
        assert "exploded" in str(restarting.outcome)
        assert numbers(stage.alive) == [0, 1]


async def test_a_change_whose_caller_leaves_while_the_old_replicas_drain_stays() -> None:
    async with serving_tasks(slowly, num_replicas=2) as (controller, handle, stage, tasks):
        callers = await under_way(tasks, handle.call(15.0))
        callers += await under_way(tasks, handle.call(15.0))
        with anyio.move_on_after(5) as leaving:
            await controller.update_backend_config("b", {"shared_memory_bytes": 5})
        assert leaving.cancelled_caught
        await anyio.sleep(20)
        assert [caller.outcome for caller in callers] == [15, 15]
        changed = {"shared_memory_bytes": 5}
        assert [r.blueprint.placement_options for r in stage.alive] == [changed] * len(stage.alive)
        assert (await controller.get_backend_config("b")).placed == changed


async def test_scaling_up_starts_all_that_are_missing_side_by_side() -> None:
    async def start(_: Any) -> None:
        await anyio.sleep(10)

    async with serving(echo) as (controller, _, stage):
        stage.start = start
        await controller.scale_backend("b", 4)
        assert anyio.current_time() == pytest.approx(10)
        assert len(stage.alive) == 4
        assert (await controller.get_backend_config("b")).num_replicas == 4


async def test_scaling_down_waits_for_work(held: Held) -> None:
    async with serving_tasks(held, num_replicas=3, max_batch_size=1) as scene:
        controller, handle, stage, tasks = scene
        await settle()
        callers = await under_way(tasks, *[handle.call(item) for item in range(3)])
        [scaling] = await line_up(tasks, controller.scale_backend("b", 1))
        await anyio.sleep(5)
        assert scaling.outcome is PENDING
        assert status_of(controller).state == "ready"
        states = [replica.state for replica in status_of(controller).replicas]
        assert sorted(states) == ["draining", "draining", "ready"]
        await held.release()
        assert scaling.outcome is None
        assert [caller.outcome for caller in callers] == [0, 1, 2]
        assert len(stage.alive) == 1
        assert all(r.killed is None for r in stage.replicas)
        assert status_of(controller).deaths == 0


async def test_idle_replicas_go_first() -> None:
    async with serving_tasks(slowly, num_replicas=3) as (controller, handle, stage, tasks):
        await settle()
        await under_way(tasks, handle.call(50.0))
        await controller.scale_backend("b", 1)
        assert anyio.current_time() == 0
        assert numbers(stage.alive) == [0]
        tasks.cancel_scope.cancel()


async def test_the_replica_that_stays_works_while_the_others_drain() -> None:
    async with serving_tasks(slowly, num_replicas=2, max_batch_size=1) as scene:
        controller, handle, _, tasks = scene
        await under_way(tasks, handle.call(15.0), handle.call(2.0))
        tasks.start_soon(controller.scale_backend, "b", 1)
        await anyio.sleep(3)
        await handle.call(1.0)
        assert anyio.current_time() == pytest.approx(4)


async def test_work_that_does_not_end_in_its_grace_is_killed() -> None:
    async with serving_tasks(slowly, num_replicas=2, graceful_shutdown_timeout_s=7) as scene:
        controller, handle, _, tasks = scene
        callers = await under_way(tasks, handle.call(100.0))
        callers += await under_way(tasks, handle.call(100.0))
        await controller.scale_backend("b", 1)
        assert anyio.current_time() == pytest.approx(7)
        ends = [type(caller.outcome).__name__ for caller in callers]
        assert sorted(ends) == ["ReplicaDied", "str"]  # the other one is pending
        tasks.cancel_scope.cancel()


async def test_a_replica_is_replaced_after_so_many_batches_and_none_is_missed() -> None:
    async with serving(echo, max_batches_per_replica=3) as (controller, handle, stage):
        for item in range(3):
            await handle.call(item)
        stage.start = gated = Gated()
        for item in range(3):
            await handle.call(item)  # the old one works on until the new one is ready
        assert {number for number, _ in stage.calls} == {0}
        await gated.go(1)
        assert numbers(stage.alive) == [1]
        await handle.call(7)
        assert stage.calls[-1] == (1, [7])
        status = status_of(controller)
        assert (status.deaths, status.restarts, len(status.replicas)) == (0, 0, 1)


async def test_a_replica_whose_machine_leaves_works_until_another_one_is_ready() -> None:
    async with serving(echo) as (controller, handle, stage):
        await handle.call(1)
        stage.start = gated = Gated()
        leaving = stage.replicas[0].on_leaving
        for _ in range(2):
            leaving("its node is drained")
        await handle.call(2)
        assert stage.calls[-1] == (0, [2])
        await gated.go(1)
        assert numbers(stage.alive) == [1]
        await handle.call(3)
        assert stage.calls[-1] == (1, [3])
        status = status_of(controller)
        assert (status.deaths, status.restarts, status.starts) == (0, 0, 2)


async def test_a_replica_that_has_grown_too_large_is_replaced() -> None:
    async with serving(echo, max_memory_bytes=1000) as (_, handle, stage):
        await handle.call(1)
        stage.replicas[0].memory = 1000
        await handle.call(1)
        await settle()
        assert numbers(stage.alive) == [0]
        stage.replicas[0].memory = 1001
        await handle.call(1)
        await settle()
        assert numbers(stage.alive) == [1]


async def test_a_config_that_does_not_fit_the_code_is_refused(stage: Stage) -> None:
    async def one(item: int) -> int:
        return item

    async with Controller() as controller:
        config = {"placement": stage, "max_batch_size": 4}
        with pytest.raises(ValueError, match="takes one item at a time"):
            await controller.create_backend("b", one, config=config)
        assert await controller.list_backends() == {}
        await anyio.sleep(100)
        assert stage.alive == []
        await controller.create_backend("b", one, config={"placement": stage})


async def test_it_says_in_the_log_why_a_replica_died(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(echo) as (_, _, stage):
        stage.replicas[0].die("ran out of luck")
        await anyio.sleep(1)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.name for record in errors] == ["shoal.serving"]
    assert "ran out of luck" in errors[0].getMessage()


async def test_an_end_that_was_asked_for_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(echo, num_replicas=2) as (controller, _, _):
        await settle()
        await controller.restart_backend("b")
        await controller.scale_backend("b", 1)
        await controller.delete_endpoint("e")
        await controller.delete_backend("b", force=True)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_replicas_that_are_cancelled_are_not_told_as_dead(caplog):
    with anyio.CancelScope() as scope:
        async with serving(echo, num_replicas=2):
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
