"""Autoscaling: more replicas while much is under way, fewer when little is."""

from typing import Any

import anyio
import pytest

from batching.callers import PENDING, line_up, outcome
from batching.scenes import settle
from serving.scenes import Stage, echo, failing, in_turn, serving, serving_tasks, slowly, under_way
from shoal.serving.controller.controller import Controller

QUICK: Any = {
    "min_replicas": 1,
    "max_replicas": 4,
    "target_ongoing_requests": 2,
    "upscale_delay_s": 5,
    "downscale_delay_s": 20,
    "metrics_interval_s": 1,
    "look_back_period_s": 2,
}


def wanted(controller: Controller) -> int:
    return controller.status_now().backends["b"].wanted


async def test_it_grows_with_what_waits_and_shrinks_when_that_is_done() -> None:
    async with serving_tasks(slowly, autoscaling=QUICK, max_batch_size=1) as scene:
        controller, handle, stage, tasks = scene
        assert wanted(controller) == 1
        callers = await line_up(tasks, *[handle.call(15.0) for _ in range(8)])
        await anyio.sleep(4)
        assert wanted(controller) == 1
        await anyio.sleep(6)
        assert wanted(controller) == 4
        assert len(stage.alive) == 4
        await anyio.sleep(40)
        assert all(caller.outcome == 15 for caller in callers)
        await anyio.sleep(100)
        assert wanted(controller) == 1
        assert len(stage.alive) == 1
        assert controller.status_now().backends["b"].deaths == 0


async def test_it_stays_within_its_limits() -> None:
    limits = {**QUICK, "min_replicas": 2, "max_replicas": 3}
    async with serving_tasks(slowly, autoscaling=limits, max_batch_size=1) as scene:
        controller, handle, stage, tasks = scene
        await settle()
        assert len(stage.alive) == 2
        await line_up(tasks, *[handle.call(30.0) for _ in range(50)])
        await anyio.sleep(20)
        assert wanted(controller) == 3
        tasks.cancel_scope.cancel()


async def test_it_begins_and_ends_with_an_update() -> None:
    async with serving_tasks(slowly, max_batch_size=1) as (controller, handle, _, tasks):
        await line_up(tasks, *[handle.call(1000.0) for _ in range(8)])
        await anyio.sleep(20)
        assert wanted(controller) == 1
        await controller.update_backend_config("b", {"autoscaling": QUICK})
        await anyio.sleep(20)
        assert wanted(controller) == 4
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await controller.update_backend_config("b", {"autoscaling": None, "num_replicas": 3})
            assert wanted(controller) == 3
            await anyio.sleep(1000)
            assert wanted(controller) == 3


async def test_it_goes_on_when_a_replica_can_not_be_started(stage: Stage) -> None:
    async with serving_tasks(slowly, stage, autoscaling=QUICK, max_batch_size=1) as scene:
        controller, handle, _, tasks = scene
        callers = await line_up(tasks, *[handle.call(10.0) for _ in range(8)])
        stage.start = failing()
        await anyio.sleep(15)
        assert wanted(controller) == 4
        assert len(stage.alive) == 1
        assert controller.status_now().backends["b"].state == "degraded"
        stage.start = in_turn
        await anyio.sleep(100)
        assert all(caller.outcome == 10 for caller in callers)


async def test_a_backend_that_ends_is_scaled_no_more(stage: Stage) -> None:
    stage.stop_gate = anyio.Event()
    async with serving_tasks(echo, stage, autoscaling=QUICK) as (controller, _, _, tasks):
        await controller.delete_endpoint("e")
        [deleting] = await line_up(tasks, controller.delete_backend("b"))
        await anyio.sleep(3)
        assert deleting.outcome is PENDING
        stage.stop_gate.set()
        await settle()
        assert deleting.outcome is None
        assert len(stage.replicas) == 1


async def test_replicas_are_replaced_while_their_number_changes() -> None:
    async with serving_tasks(slowly, autoscaling=QUICK, max_batch_size=1) as scene:
        controller, handle, stage, tasks = scene
        callers = await line_up(tasks, *[handle.call(3.0) for _ in range(12)])
        await anyio.sleep(6.5)
        with anyio.fail_after(200):
            await controller.restart_backend("b")
        await anyio.sleep(100)
        assert all(caller.outcome == 3 for caller in callers)
        assert {r.number for r in stage.alive}.isdisjoint({0, 1})


FROM_ZERO: Any = {**QUICK, "min_replicas": 0, "downscale_delay_s": 1, "metrics_interval_s": 60}


async def asleep(controller: Controller) -> None:
    while controller.status_now().backends["b"].replicas:  # noqa: ASYNC110 - nothing tells
        await anyio.sleep(1)


async def test_a_backend_that_has_no_replica_by_intention_is_ready() -> None:
    async with serving(echo, autoscaling=FROM_ZERO) as (controller, _, _):
        await asleep(controller)
        assert controller.status_now().backends["b"].state == "ready"


async def test_the_first_request_wakes_it_at_once() -> None:
    async with serving(echo, autoscaling=FROM_ZERO) as (controller, handle, _):
        await asleep(controller)
        begun = anyio.current_time()
        assert await handle.call(1) == 1
        assert anyio.current_time() - begun < 1


async def test_the_last_replica_stays_while_it_has_work() -> None:
    code = serving_tasks(slowly, autoscaling=FROM_ZERO, num_replicas=2)
    async with code as (controller, handle, _, tasks):
        await anyio.sleep(59)
        [long] = await under_way(tasks, handle.call(200.0))
        await anyio.sleep(2)
        assert wanted(controller) == 1
    assert long.outcome == 200.0


async def test_a_backend_that_went_down_to_none_while_it_failed_comes_back() -> None:
    quick = {**FROM_ZERO, "upscale_delay_s": 0, "downscale_delay_s": 5, "metrics_interval_s": 1}
    async with serving(echo, autoscaling=quick) as (_, handle, stage):
        stage.start = failing()
        stage.replicas[0].die()
        for _ in range(300):
            assert await outcome(handle.call(1)) != 1
            await anyio.sleep(1)
        stage.start = in_turn
        with anyio.fail_after(300):
            while await outcome(handle.call(1)) != 1:  # noqa: ASYNC110 - it is to try on and on
                await anyio.sleep(1)


@pytest.mark.parametrize(("delay_s", "start_s"), [(0, 0), (0, 1), (30, 120)])
async def test_the_first_replica_starts_even_if_none_is_wanted(delay_s, start_s, stage):
    async def start(_replica: Any) -> None:
        await anyio.sleep(start_s)

    stage.start = start
    with anyio.fail_after(1000):
        autoscaling = {"min_replicas": 0, "downscale_delay_s": delay_s}
        async with serving(echo, stage, autoscaling=autoscaling) as (controller, handle, _):
            await asleep(controller)
            assert await handle.call(1) == 1
