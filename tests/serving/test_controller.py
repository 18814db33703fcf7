"""The controller: what there is, how it begins and ends, and what does not reach its neighbours."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from batching.callers import LEFT, PENDING, line_up, outcome
from batching.scenes import Held, Records, settle
from serving.scenes import (
    Gated,
    Stage,
    at_once,
    deployed,
    echo,
    never,
    serving,
    serving_tasks,
    slowly,
    under_way,
)
from shoal.core.policies.rule import SizeOrWait
from shoal.errors import BatcherClosed, NameTaken, NoSuchName, ReplicaDied, ShutDown
from shoal.serving.controller.controller import Controller


async def add_backend(controller: Controller, tag: str, code: Any = echo, **config: Any) -> Stage:
    stage = Stage()
    await controller.create_backend(tag, code, config={"placement": stage, **config})
    return stage


def verbs(controller: Controller) -> list[Awaitable[Any]]:
    return [
        controller.create_backend("x", echo),
        controller.update_backend_config("b", {}),
        controller.scale_backend("b", 1),
        controller.restart_backend("b"),
        controller.get_backend_config("b"),
        controller.list_backends(),
        controller.delete_backend("b"),
        controller.create_endpoint("x", backend=None),
        controller.list_endpoints(),
        controller.delete_endpoint("e"),
        controller.set_traffic("e", {"b": 1}),
        controller.shadow_traffic("e", "b", 1),
        controller.get_handle("e"),
        controller.status(),
    ]


async def test_it_says_how_things_are(held: Held) -> None:
    async with serving_tasks(held, max_batch_size=2, num_replicas=2) as scene:
        controller, handle, _, tasks = scene
        await under_way(tasks, *[handle.call(item) for item in range(6)])
        status = (await controller.status()).backends["b"]
        assert (status.tag, status.code, status.placement) == ("b", "Held", "Stage")
        assert (status.state, status.wanted, status.starts) == ("ready", 2, 2)
        assert status.ongoing == sum(replica.ongoing for replica in status.replicas) > 0
        assert status.ongoing + status.queued == 6
        assert [replica.batches for replica in status.replicas] == [1, 1]
        await held.release()
        status = (await controller.status()).backends["b"]
        assert (status.ongoing, status.queued, status.requests, status.errors) == (0, 0, 6, 0)


async def test_a_tag_that_is_taken_is_refused_with_what_to_do() -> None:
    async with serving(echo) as (controller, handle, _):
        with pytest.raises(NameTaken, match="change its config"):
            await controller.create_backend("b", slowly)
        assert await handle.call(1) == 1


async def test_of_two_creations_of_one_tag_one_is_refused(stage: Stage) -> None:
    stage.start = gated = Gated()
    async with Controller() as controller, anyio.create_task_group() as tasks:
        config = {"placement": stage}
        first, second = await line_up(
            tasks,
            controller.create_backend("b", echo, config=config),
            controller.create_backend("b", echo, config=config),
        )
        await settle()
        assert isinstance(second.outcome, NameTaken)
        await gated.go(0)
        assert first.outcome is None


async def test_a_tag_is_free_when_its_backend_has_gone_and_not_before(held: Held) -> None:
    async with serving(held) as (controller, handle, _), anyio.create_task_group() as tasks:
        [caller] = await under_way(tasks, handle.call(1))
        await add_backend(controller, "c")
        await controller.set_traffic("e", {"c": 1})
        [deleting] = await under_way(tasks, controller.delete_backend("b"))
        with pytest.raises(NameTaken):
            await add_backend(controller, "b")
        with pytest.raises(NoSuchName):
            await controller.set_traffic("e", {"b": 1})
        await held.release()
        assert (caller.outcome, deleting.outcome) == (1, None)
        await add_backend(controller, "b")


@pytest.mark.parametrize(
    ("tag", "code", "arguments", "error"),
    [
        ("x" * 65, echo, {}, ValueError),
        ("x", object, {}, TypeError),
        ("x", echo, {"init_kwargs": {"a": 1}}, TypeError),
        ("x", echo, {"config": {"placement": "no.such:thing"}}, ValueError),
        ("x", echo, {"config": 5}, TypeError),
    ],
)
async def test_a_backend_that_makes_no_sense_is_refused(tag, code, arguments, error):
    async with Controller() as controller:
        with pytest.raises(error):
            await controller.create_backend(tag, code, **arguments)
        assert await controller.list_backends() == {}
        await add_backend(controller, "x")


async def test_after_shutdown_each_verb_is_refused_and_shutdown_is_not() -> None:
    async with serving(echo) as (controller, _, _):
        await controller.shutdown()
        await controller.shutdown()
        for verb in verbs(controller):
            error = await outcome(verb)
            assert isinstance(error, ShutDown)
            assert "shut down already" in str(error)


async def test_a_shutdown_goes_on_when_its_caller_leaves_and_a_second_one_waits_for_it() -> None:
    async with serving(slowly) as (controller, handle, stage):
        async with anyio.create_task_group() as tasks:
            [caller] = await under_way(tasks, handle.call(5.0))
            with anyio.move_on_after(2) as leaving:
                await controller.shutdown()
            assert leaving.cancelled_caught
            await settle()
            assert caller.outcome is PENDING
            await controller.shutdown()
            assert anyio.current_time() == 5
            await settle()
            assert caller.outcome == 5
        assert stage.alive == []
        assert len(stage.ended) == len(stage.replicas)
        assert stage.replicas[0].stopped


async def test_a_shutdown_that_code_asks_for_goes_on_when_its_batch_is_cancelled() -> None:
    controller = Controller()

    async def end(items: list[int]) -> list[int]:
        await controller.shutdown()
        return items

    async with controller:
        config: Any = {"placement": Stage(), "graceful_shutdown_timeout_s": 1}
        slow = await deployed(controller, "slow", slowly, config={"placement": Stage()})
        ending = await deployed(controller, "ending", end, config=config)
        async with anyio.create_task_group() as tasks:
            [caller] = await under_way(tasks, slow.call(5.0))
            await outcome(ending.call(1))
            await controller.shutdown()
        assert caller.outcome == 5


async def test_the_end_of_the_block_waits_for_a_shutdown_whose_caller_has_left() -> None:
    async with anyio.create_task_group() as tasks:
        async with serving(slowly) as (controller, handle, _):
            [caller] = await under_way(tasks, handle.call(5.0))
            with anyio.move_on_after(1):
                await controller.shutdown()
        assert anyio.current_time() == 5
        await settle()
        assert caller.outcome == 5


async def test_a_delete_goes_on_when_its_caller_leaves() -> None:
    async with serving(slowly) as (controller, handle, stage):
        async with anyio.create_task_group() as tasks:
            [caller] = await under_way(tasks, handle.call(5.0))
            await controller.delete_endpoint("e")
            with anyio.move_on_after(2):
                await controller.delete_backend("b")
            assert "b" not in await controller.list_backends()
            with pytest.raises(NameTaken):
                await add_backend(controller, "b")
            await controller.delete_backend("b")
            assert anyio.current_time() == 5
            await settle()
            assert caller.outcome == 5
        assert stage.alive == []
        await add_backend(controller, "b")
        with pytest.raises(NoSuchName):
            await controller.delete_backend("c")


async def test_a_delete_that_takes_too_long_is_ended_by_force() -> None:
    async with serving(slowly) as (controller, handle, stage):
        async with anyio.create_task_group() as tasks:
            [caller] = await under_way(tasks, handle.call(1000.0))
            await controller.delete_endpoint("e")
            [deleting] = await line_up(tasks, controller.delete_backend("b"))
            await anyio.sleep(3)
            await controller.delete_backend("b", force=True)
            assert anyio.current_time() < 4
            await settle()
            assert isinstance(caller.outcome, BatcherClosed | ReplicaDied)
            assert deleting.outcome is None
        assert stage.alive == []


@pytest.mark.parametrize("force", [False, True])
async def test_a_delete_that_is_made_beside_another_one_waits_for_the_same(force: bool) -> None:
    async with serving(slowly) as (controller, handle, _), anyio.create_task_group() as tasks:
        [caller] = await under_way(tasks, handle.call(1000.0))
        await controller.delete_endpoint("e")
        deleting = [controller.delete_backend("b"), controller.delete_backend("b", force=force)]
        callers = await line_up(tasks, *deleting)
        await anyio.sleep(1001)
        assert [one.outcome for one in callers] == [None, None]
        assert caller.ended_at == (0 if force else 20)


async def test_shutdown_waits_for_a_delete_whose_caller_has_left() -> None:
    async with serving(slowly) as (controller, handle, _), anyio.create_task_group() as tasks:
        [caller] = await under_way(tasks, handle.call(5.0))
        await controller.delete_endpoint("e")
        with anyio.move_on_after(1):
            await controller.delete_backend("b")
        await controller.shutdown()
        assert anyio.current_time() == 5
        await settle()
        assert caller.outcome == 5


async def test_a_create_that_shutdown_overtakes_is_told_so(stage: Stage) -> None:
    stage.start = never
    async with Controller() as controller, anyio.create_task_group() as tasks:
        config = {"placement": stage}
        [creating] = await under_way(tasks, controller.create_backend("b", echo, config=config))
        with anyio.fail_after(100):
            await controller.shutdown()
        await settle()
        assert isinstance(creating.outcome, ShutDown)
        assert len(stage.starting) == len(stage.ended) == 1


@pytest.mark.parametrize(
    "change", [{"num_replicas": 3}, {"shared_memory_bytes": 5}, {"user_config": 2}]
)
async def test_shutdown_ends_though_an_update_is_under_way(change: dict[str, Any]) -> None:
    class Code:
        def reconfigure(self, config: Any) -> None: ...

        async def __call__(self, items: list[int]) -> list[int]:
            return items

    async with serving(Code) as (controller, _, stage), anyio.create_task_group() as tasks:
        stage.start = never
        stage.reconfigure = never
        [updating] = await under_way(tasks, controller.update_backend_config("b", change))
        with anyio.fail_after(1000):
            await controller.shutdown()
        await settle()
        assert updating.outcome is not PENDING
        assert stage.alive == []


@pytest.mark.parametrize("change", [{"num_replicas": 3}, {"shared_memory_bytes": 5}])
async def test_an_update_that_is_cancelled_during_shutdown_starts_nothing(change):
    stage = Stage()
    stage.stop_gate = anyio.Event()
    async with serving(echo, stage) as (controller, _, _), anyio.create_task_group() as tasks:
        stage.start = never
        [updating] = await under_way(tasks, controller.update_backend_config("b", change))
        [ending] = await under_way(tasks, controller.shutdown())
        count = len(stage.replicas)
        await updating.gone()
        stage.stop_gate.set()
        await anyio.sleep(100)
        assert ending.outcome is None
        assert len(stage.replicas) == count


async def test_a_block_that_is_cancelled_ends_at_once(stage: Stage) -> None:
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with serving(slowly, stage, num_replicas=2) as (_, handle, _):
                [caller] = await under_way(tasks, handle.call(1000.0))
                scope.cancel()
                await anyio.sleep(1)
        assert anyio.current_time() == 0
        await settle()
        assert isinstance(caller.outcome, BatcherClosed | ReplicaDied)
    assert len(stage.replicas) == len(stage.ended) == 2


async def test_who_cleans_up_while_the_block_is_cancelled_gets_answers() -> None:
    answers: list[Any] = []
    with anyio.CancelScope() as scope:
        async with serving(slowly) as (_, handle, _):
            try:
                scope.cancel()
                await anyio.sleep(1)
            finally:
                with anyio.CancelScope(shield=True):
                    answers.append(await handle.call(2.0))
    assert answers == [2.0]


async def test_a_block_that_raises_raises_just_that() -> None:
    async def block() -> None:
        async with serving(echo) as (_, handle, _):
            await handle.call(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await block()


async def test_a_controller_is_opened_once() -> None:
    controller = Controller()
    for verb in verbs(controller):
        assert isinstance(await outcome(verb), ShutDown)
    with pytest.raises(ShutDown, match="has not been opened"):
        _ = controller.sync
    async with controller:
        await add_backend(controller, "b")
        with pytest.raises(RuntimeError, match="opened only once"):
            async with controller:
                pass
        assert [*await controller.list_backends()] == ["b"]
    with pytest.raises(RuntimeError, match="opened only once"):
        async with controller:
            pass


async def test_two_controllers_do_not_see_each_other() -> None:
    async with serving(echo) as (first, one, _), serving(slowly) as (second, two, _):
        await first.delete_endpoint("e")
        assert await two.call(1.0) == 1.0
        await second.shutdown()
        await first.create_endpoint("e", backend="b")
        assert await one.call(2) == 2


@pytest.mark.parametrize("force", [False, True])
async def test_a_backend_whose_batcher_broke_can_be_changed_and_deleted(force: bool) -> None:
    class Breaking(SizeOrWait):
        def decide(self, now: float, pressure: Any) -> Any:
            raise ZeroDivisionError("a broken rule")

    async with serving(echo) as (controller, handle, _):
        config = {"placement": Stage(), "policy": lambda options: Breaking(options)}
        broken = await deployed(controller, "p", echo, config=config)
        error = await outcome(broken.call(1))
        assert isinstance(error, BatcherClosed)
        assert "a broken rule" in repr(error.__cause__)
        await controller.scale_backend("p", 2)
        await controller.update_backend_config("p", {"max_batch_size": 3})
        await controller.delete_endpoint("p")
        await controller.delete_backend("p", force=force)
        assert [*await controller.list_backends()] == ["b"]
        assert await handle.call(1) == 1


async def test_a_delete_ends_though_a_dead_replica_does_not(stage: Stage) -> None:
    stage.kill_gate = anyio.Event()

    async def health(_: Any) -> None:
        raise RuntimeError("ill")

    stage.health = health
    async with serving(echo, stage, health_check_period_s=1) as (controller, _, _):
        await anyio.sleep(3.5)
        stage.health = at_once
        await controller.delete_endpoint("e")
        with anyio.fail_after(60):
            await controller.delete_backend("b")


async def test_a_delete_by_force_ends_though_a_replica_does_not(stage: Stage) -> None:
    stage.kill_gate = anyio.Event()
    async with serving(echo, stage) as (controller, _, _):
        await controller.delete_endpoint("e")
        with anyio.fail_after(60):
            await controller.delete_backend("b", force=True)


@pytest.mark.slow
@pytest.mark.parametrize("passes", range(12))
@pytest.mark.parametrize("verb", ["delete", "force", "create"])
async def test_a_backend_whose_verb_is_cancelled_at_any_moment_is_there_or_not(verb, passes):
    async with serving(echo) as (controller, handle, stage):
        place = {"placement": stage}
        await controller.create_backend("x", echo, config=place)
        kinds: dict[str, Callable[[], Any]] = {
            "delete": lambda: controller.delete_backend("x"),
            "force": lambda: controller.delete_backend("x", force=True),
            "create": lambda: controller.create_backend("y", echo, config=place),
        }
        async with anyio.create_task_group() as tasks:
            [caller] = await line_up(tasks, kinds[verb]())
            for _ in range(passes):
                await anyio.lowlevel.checkpoint()
            caller.leave()
        assert caller.outcome in (None, LEFT)
        await anyio.sleep(100)
        backends = (await controller.status()).backends
        tags = [replica.tag for status in backends.values() for replica in status.replicas]
        assert sorted(replica.tag for replica in stage.alive) == sorted(tags)
        assert {status.state for status in backends.values()} == {"ready"}
        assert await handle.call(1) == 1
        for tag in {"x", "y"} - {*backends}:
            await controller.create_backend(tag, echo, config=place)


async def test_updates_end_while_replicas_are_recycled_all_the_time(stage: Stage) -> None:
    async def start(_: Any) -> None:
        await anyio.sleep(0.05)

    async def code(items: list[int]) -> list[int]:
        await anyio.sleep(0.1)
        return items

    async def call_on(handle: Any) -> None:
        while True:
            await handle.call(1)

    stage.start = start
    config: Any = {"max_batches_per_replica": 1, "max_batch_size": 1, "num_replicas": 2}
    async with serving_tasks(code, stage, **config) as (controller, handle, _, tasks):
        for _ in range(6):
            tasks.start_soon(call_on, handle)
        await anyio.sleep(1)
        with anyio.fail_after(60):
            await controller.scale_backend("b", 3)
        with anyio.fail_after(60):
            await controller.restart_backend("b")
        tasks.cancel_scope.cancel()


async def test_a_scaling_ends_when_the_block_is_cancelled() -> None:
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            config: Any = {"num_replicas": 2, "max_batch_size": 1}
            async with serving(slowly, **config) as (controller, handle, _):
                await under_way(tasks, *[outcome(handle.call(50.0)) for _ in range(2)])
                [scaling] = await line_up(tasks, controller.scale_backend("b", 1))
                await anyio.sleep(1)
                assert scaling.outcome is PENDING
                scope.cancel()
        await anyio.sleep(1000)
        assert scaling.outcome is None  # there is one replica less, however the other one ended
        tasks.cancel_scope.cancel()


async def test_its_observers_are_told_of_the_batches_of_all_backends() -> None:
    async with Controller() as controller:
        controller.observers.add(told := Records())
        for tag in ("a", "b"):
            await (await deployed(controller, tag, echo, config={"placement": Stage()})).remote(1)
    seen = [(record.batcher, record.size, record.finished) for record in told.records]
    assert seen == [("a", 1, 1), ("b", 1, 1)]
