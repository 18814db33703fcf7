"""Another config for a backend that serves: taken in whole, or not at all."""

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import anyio
import pytest

from batching.callers import PENDING, line_up, outcome, outcomes, read
from batching.scenes import Held, settle
from serving.scenes import (
    Gated,
    ScriptedReplica,
    Stage,
    deployed,
    echo,
    failing,
    serving,
    serving_tasks,
    slowly,
    under_way,
)
from shoal.errors import NoSuchName, ReplicaDied, ReplicaNotStarted
from shoal.serving.controller.controller import Controller
from time_limits import HANG_S


class Configured:
    def __init__(self) -> None:
        self.config: Any = None

    def reconfigure(self, config: Any) -> None:
        if config == "bad":
            raise ZeroDivisionError("a bad config")
        self.config = config

    async def __call__(self, items: list[int]) -> list[Any]:
        return [self.config] * len(items)


async def one(item: int) -> int:
    await anyio.sleep(1)
    return item


async def many(items: list[int]) -> list[int]:
    await anyio.sleep(1)
    return items


async def change(controller: Controller, **config: Any) -> None:
    await controller.update_backend_config("b", config)


async def test_batch_options_hold_from_the_next_batch_on(held: Held) -> None:
    async with serving_tasks(held, max_batch_size=2) as (controller, handle, stage, tasks):
        await under_way(tasks, *[handle.call(item) for item in range(9)])
        first = len(held.batches[0])
        await change(controller, max_batch_size=4)
        await held.release()
        sizes = [len(batch) for batch in held.batches]
        assert sizes[0] == first
        assert sizes[1] == 4
        assert len(stage.replicas) == 1


async def test_a_window_changes_for_the_batch_after_the_one_that_gathers() -> None:
    async with serving_tasks(echo, batch_wait_timeout_s=20, max_batch_size=4) as scene:
        controller, handle, _, tasks = scene
        first = await line_up(tasks, handle.call(1))
        await anyio.sleep(5)
        await change(controller, batch_wait_timeout_s=6)
        await anyio.sleep(9)
        assert first[0].outcome is PENDING
        await anyio.sleep(7)
        assert first[0].outcome == 1
        assert first[0].ended_at == pytest.approx(20)
        second = await line_up(tasks, handle.call(2))
        await anyio.sleep(7)
        assert second[0].ended_at == pytest.approx(27)


async def test_more_batches_at_once_need_no_new_replica(held: Held) -> None:
    async with serving_tasks(held, max_batch_size=1) as (controller, handle, stage, tasks):
        await under_way(tasks, *[handle.call(item) for item in range(3)])
        assert len(held.batches) == 1
        await change(controller, max_concurrent_batches=3)
        await settle()
        assert len(held.batches) == 3
        assert len(stage.replicas) == 1
        held.gate.set()


async def test_a_bound_that_is_lifted_bounds_batches_no_more() -> None:
    async with serving(slowly, max_ongoing_requests=2) as (controller, handle, stage):
        await change(controller, max_ongoing_requests=100)
        await outcomes(*[handle.call(1.0) for _ in range(8)])
        assert [len(items) for _, items in stage.calls] == [8]


async def test_an_option_that_is_not_one_changes_nothing() -> None:
    async with serving(echo) as (controller, handle, stage):
        before = await controller.get_backend_config("b")
        with pytest.raises(TypeError, match="did you mean 'max_batch_size'"):
            await change(controller, retries=1, max_batchsize=5)
        with pytest.raises(ValueError, match="max_batch_size"):
            await change(controller, retries=1, max_batch_size=0)
        with pytest.raises(TypeError):
            await change(controller, num_replicas="3")
        with pytest.raises(ZeroDivisionError):
            await change(controller, shared_memory_bytes=7, policy=lambda _: 1 / 0)
        with pytest.raises(NoSuchName, match="there are: b"):
            await controller.update_backend_config("x", {})
        assert await controller.get_backend_config("b") == before
        assert await handle.call(1) == 1
        assert len(stage.replicas) == 1


async def test_an_option_that_does_not_fit_the_code_changes_nothing() -> None:
    async with serving(one) as (controller, handle, _):
        before = await controller.get_backend_config("b")
        with pytest.raises(ValueError, match="takes one item at a time"):
            await change(controller, max_batch_size=4, num_replicas=3)
        assert await controller.get_backend_config("b") == before
        assert await handle.call(1) == 1


async def test_an_option_that_one_method_refuses_changes_no_other() -> None:
    class Code:
        async def __call__(self, items: list[int]) -> list[int]:
            return [len(items)] * len(items)

        async def steps(self, items: list[int]) -> AsyncGenerator[list[int], None]:
            yield items

    async with serving(Code) as (controller, handle, _):
        assert await read(handle.options(method_name="steps").stream(1)) == [1]
        before = await controller.get_backend_config("b")
        with pytest.raises(ValueError, match="split"):
            await change(
                controller,
                batch_size_fn=float,
                split=lambda item, room: [1.0, item - 1.0],
                join=lambda parts: "joined",
            )
        assert await controller.get_backend_config("b") == before
        assert await handle.call(100) == 1


async def test_user_config_is_told_to_all_replicas_and_replaces_none() -> None:
    async with serving(Configured, num_replicas=3, user_config=1) as (controller, handle, stage):
        await settle()
        await change(controller, user_config=2)
        assert [replica.told for replica in stage.replicas] == [[1, 2]] * 3
        assert await handle.call(0) == 2
        assert (await controller.get_backend_config("b")).user_config == 2


async def test_replicas_that_start_later_are_told_the_user_config_of_then() -> None:
    async with serving(Configured, user_config=1) as (controller, handle, stage):
        await change(controller, user_config=2)
        await stage.lose(wait_s=1)
        assert await handle.call(0) == 2
        await controller.scale_backend("b", 2)
        assert [replica.told for replica in stage.replicas[1:]] == [[2], [2]]


async def test_a_user_config_that_one_refuses_is_taken_back_from_all() -> None:
    told: list[tuple[int, Any]] = []

    async def reconfigure(replica: ScriptedReplica, config: Any) -> None:
        told.append((replica.number, config))
        if config == 2 and replica.number == 1:
            raise ZeroDivisionError("not this one")

    async with serving(Configured, num_replicas=3, user_config=1) as (controller, _, stage):
        await settle()
        stage.reconfigure = reconfigure
        with pytest.raises(ZeroDivisionError, match="not this one"):
            await change(controller, user_config=2, max_batch_size=3)
        assert (told[:2], sorted(told[2:])) == ([(0, 2), (1, 2)], [(0, 1), (1, 1)])
        assert {replica.told[-1] for replica in stage.alive} == {1}
        assert len(stage.alive) == 3
        config = await controller.get_backend_config("b")
        assert (config.user_config, "max_batch_size" in config.batching) == (1, False)


async def test_replicas_that_hang_when_it_is_taken_back_do_so_side_by_side() -> None:
    async def reconfigure(replica: ScriptedReplica, config: Any) -> None:
        if config == 1 and replica.number < 4:  # and not those that take their places
            await anyio.sleep_forever()
        if replica.number == 3:
            raise ZeroDivisionError

    async with serving(Configured, num_replicas=4, user_config=1) as (controller, _, stage):
        await settle()
        stage.reconfigure = reconfigure
        began_at = anyio.current_time()
        with pytest.raises(ZeroDivisionError):
            await change(controller, user_config=2)
        assert anyio.current_time() - began_at < 60  # each has 30 s


async def test_a_replica_that_does_not_take_its_old_user_config_back_is_replaced() -> None:
    async def reconfigure(replica: ScriptedReplica, _: Any) -> None:
        if replica.number == 0:
            raise ZeroDivisionError

    async with serving(Configured, user_config=1) as (controller, handle, stage):
        stage.reconfigure = reconfigure
        with pytest.raises(ZeroDivisionError):
            await change(controller, user_config=2)
        await anyio.sleep(1)
        assert [replica.told for replica in stage.alive] == [[1]]
        assert await handle.call(0) == 1


@pytest.mark.parametrize("dying", [0, 1])
async def test_a_replica_that_dies_while_it_is_told_fails_the_change(dying: int) -> None:
    async def reconfigure(replica: ScriptedReplica, config: Any) -> None:
        if config == 2 and replica.number == dying:
            replica.die()
            await anyio.sleep_forever()

    async with serving(Configured, num_replicas=2, user_config=1) as (controller, handle, stage):
        await settle()
        before = await controller.get_backend_config("b")
        stage.reconfigure = reconfigure
        with pytest.raises(ReplicaDied, match="exploded"):
            await change(controller, user_config=2, max_batch_size=3)
        assert await controller.get_backend_config("b") == before
        assert [replica.told[-1] for replica in stage.alive] == [1, 1]
        status = (await controller.status()).backends["b"]
        assert (status.state, status.failure, len(status.replicas)) == ("ready", None, 2)
        assert await handle.call(0) == 1
        assert [replica.number for replica in stage.alive] == [1 - dying, 2]


async def test_a_user_config_that_kills_is_set_right_without_a_wait(stage: Stage) -> None:
    async def reconfigure(replica: ScriptedReplica, config: Any) -> None:
        if config == "deadly":
            replica.die()
            await anyio.sleep_forever()

    stage.reconfigure = reconfigure
    async with serving(Configured, stage, user_config=1) as (controller, handle, _):
        for config in range(2, 12):
            with pytest.raises(ReplicaDied):
                await change(controller, user_config="deadly")
            assert await handle.call(0) == config - 1
            await change(controller, user_config=config)
            assert await handle.call(0) == config
        assert anyio.current_time() < 1.5


class Healthy(Configured):
    def health(self) -> None: ...


@pytest.mark.parametrize("dies", [True, False])
async def test_a_new_user_config_that_makes_a_replica_ill_is_taken_back(dies, stage):
    async def health(replica: ScriptedReplica) -> None:
        if replica.told[-1] == 2:
            if dies:
                replica.die()
            raise ZeroDivisionError("ill")

    stage.health = health
    async with serving(Healthy, stage, num_replicas=2, user_config=1) as (controller, handle, _):
        await settle()
        with pytest.raises(ReplicaDied, match="ill"):
            await change(controller, user_config=2)
        assert [replica.told[-1] for replica in stage.alive] == [1, 1]
        assert (await controller.get_backend_config("b")).user_config == 1
        assert await handle.call(0) == 1


@pytest.mark.parametrize("dies", [True, False])
async def test_a_new_replica_that_fails_its_first_health_check_fails_the_change(dies, stage):
    async def health(replica: ScriptedReplica) -> None:
        if replica.blueprint.placement_options:
            if dies:
                replica.die()
            raise ZeroDivisionError("ill")

    stage.health = health
    async with serving(Healthy, stage, num_replicas=2) as (controller, handle, _):
        await settle()
        with pytest.raises(ReplicaNotStarted):
            await change(controller, shared_memory_bytes=7)
        assert [replica.number for replica in stage.alive] == [0, 1]
        assert await handle.call(0) is None
        config = {"placement": stage, "shared_memory_bytes": 7}
        with pytest.raises(ReplicaNotStarted):
            await controller.create_backend("other", Healthy, config=config)


async def test_old_replicas_serve_while_a_new_one_is_checked_for_the_first_time(stage):
    checked = anyio.Event()

    async def health(replica: ScriptedReplica) -> None:
        if replica.number == 1:
            await checked.wait()

    stage.health = health
    async with serving_tasks(Healthy, stage) as (controller, handle, _, tasks):
        [changing] = await line_up(tasks, change(controller, shared_memory_bytes=7))
        await anyio.sleep(5)
        await outcomes(*[handle.call(0) for _ in range(20)])
        assert {number for number, _ in stage.calls} == {0}
        assert changing.outcome is PENDING
        checked.set()
        await settle()
        assert changing.outcome is None
        assert [replica.number for replica in stage.alive] == [1]


async def test_a_bad_user_config_of_a_backend_that_never_started_is_set_right() -> None:
    async def reconfigure(replica: ScriptedReplica, config: Any) -> None:
        if config == "deadly":
            replica.die()

    async with serving(Configured, user_config=1) as (controller, handle, stage):
        stage.reconfigure = reconfigure
        backend = controller.backends["b"]
        backend.config = backend.supervisor.config = backend.config.changed(
            {"user_config": "deadly"}
        )
        await stage.lose(wait_s=100)
        assert controller.status_now().backends["b"].state == "unavailable"
        await change(controller, user_config=3)
        assert await handle.call(0) == 3
        assert anyio.current_time() < 101


@asynccontextmanager
async def unavailable() -> AsyncGenerator[tuple[Controller, Any, Stage]]:
    """Serves a backend whose replica has died, and that can't be started again as yet."""
    async with serving(echo) as (controller, handle, stage):
        stage.start = failing("no luck", lambda _: True)
        await stage.lose(wait_s=1000)
        assert (await controller.status()).backends["b"].state == "unavailable"
        yield controller, handle, stage


async def verb_of(controller: Controller, name: str) -> None:
    if name == "restart":
        await controller.restart_backend("b")
    elif name == "update":
        await change(controller, max_batch_size=3)
    else:
        await controller.scale_backend("b", int(name))


VERBS = pytest.mark.parametrize("name", ["restart", "update", "1", "2"])


@VERBS
async def test_a_verb_that_succeeds_has_mended_a_backend_without_a_replica(name: str) -> None:
    async with unavailable() as (controller, handle, stage):
        stage.start = Stage().start
        now = anyio.current_time()
        await verb_of(controller, name)
        assert anyio.current_time() == now
        assert await handle.call(1) == 1
        assert (await controller.status()).backends["b"].state == "ready"


@VERBS
async def test_a_verb_that_mends_nothing_says_so_and_changes_nothing(name: str) -> None:
    async with unavailable() as (controller, handle, stage):
        before = await controller.get_backend_config("b")
        with pytest.raises(ReplicaNotStarted, match="no luck"):
            await verb_of(controller, name)
        assert await controller.get_backend_config("b") == before
        assert (await controller.status()).backends["b"].wanted == 1
        stage.start = Stage().start
        await anyio.sleep(100)
        assert await handle.call(1) == 1


async def test_a_change_that_fails_waits_for_no_replica_that_can_not_be_started(stage):
    async def start(replica: ScriptedReplica) -> str | None:
        if replica.number > 0:
            stage.replicas[0].die()
            return "no luck"
        return None

    stage.start = start
    async with serving(echo, stage) as (controller, _, _):
        now = anyio.current_time()
        with pytest.raises(ReplicaNotStarted, match="no luck"):
            await change(controller, shared_memory_bytes=7)
        assert anyio.current_time() - now < 5
        now = anyio.current_time()
        with pytest.raises(ReplicaNotStarted, match="no luck"):
            await controller.restart_backend("b")
        assert anyio.current_time() - now < 5


async def test_a_user_config_that_is_not_taken_in_time_is_taken_back(stage: Stage) -> None:
    async def reconfigure(_: ScriptedReplica, config: Any) -> None:
        if config == 2:
            await anyio.sleep_forever()

    stage.reconfigure = reconfigure
    async with serving(Configured, stage, user_config=1, start_timeout_s=7) as (controller, _, _):
        with pytest.raises(TimeoutError, match=r"reconfigure\(\) of b#0 .* start_timeout_s=7"):
            await change(controller, user_config=2)
        assert anyio.current_time() == 7
        assert stage.replicas[0].told == [1, 2, 1]
        assert (await controller.get_backend_config("b")).user_config == 1
        with pytest.raises(TimeoutError):
            await change(controller, user_config=2, start_timeout_s=3)
        assert anyio.current_time() == 10


@pytest.mark.real_time
@pytest.mark.parametrize("placement", ["task", "thread"])
async def test_plain_code_that_hangs_in_reconfigure_loses_its_replica_and_holds_up_nobody(
    placement: str,
) -> None:
    gate = threading.Event()

    class Hangs:
        def __call__(self, items: list[Any]) -> list[Any]:
            return items

        def reconfigure(self, config: Any) -> None:
            if config == "hangs":
                gate.wait()

    config = {"placement": placement, "user_config": 1, "cancel_grace_s": 0.01}
    hangs = {"user_config": "hangs", "start_timeout_s": 0.1}
    async with Controller() as controller:
        await deployed(controller, "b", Hangs, config=config, endpoint="e")
        try:
            with (
                mock.patch("shoal.serving.backends.managed._MARGIN_S", 0.5),
                anyio.fail_after(HANG_S),
            ):
                with anyio.move_on_after(0.05) as leaving:
                    await change(controller, **hangs)
                assert leaving.cancelled_caught
                await change(controller, user_config=2)
                assert await (await controller.get_handle("e")).call(1) == 1
                with pytest.raises(TimeoutError, match=r"reconfigure\(\)"):
                    await change(controller, **hangs)
                assert await (await controller.get_handle("e")).call(1) == 1
                assert (await controller.get_backend_config("b")).user_config == 2
        finally:
            gate.set()


@pytest.mark.parametrize("more", [{"shared_memory_bytes": 7}, {"num_replicas": 3}, {}])
async def test_a_change_that_can_not_be_written_down_leaves_the_old_replicas(more):
    async def put(*_):
        await anyio.lowlevel.checkpoint()
        raise OSError("the disk is full")

    async with serving(Configured, num_replicas=2, user_config=1) as (controller, handle, stage):
        await settle()
        with (
            mock.patch.object(controller._journal, "put", put),
            pytest.raises(OSError, match="the disk is full"),
        ):
            await change(controller, user_config=2, **more)
        await anyio.sleep(100)
        assert [replica.number for replica in stage.alive] == [0, 1]
        assert [replica.told[-1] for replica in stage.alive] == [1, 1]
        assert await handle.call(0) == 1


async def test_a_replica_that_gets_ready_meanwhile_has_the_new_user_config(stage: Stage) -> None:
    stage.start = gated = Gated(first=1)
    told = anyio.Event()

    async def reconfigure(replica: ScriptedReplica, config: Any) -> None:
        if config == 2 and replica.number == 0:
            await told.wait()

    stage.reconfigure = reconfigure
    async with serving(Configured, stage, num_replicas=2, user_config=1) as (controller, _, _):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(controller.update_backend_config, "b", {"user_config": 2})
            await settle()
            await gated.go(1)
            told.set()
            await anyio.sleep(1)
            gated.let(2)
        assert {replica.told[-1] for replica in stage.alive} == {2}
        assert len(stage.alive) == 2


async def test_a_replica_that_was_starting_never_answers_with_the_old_user_config(stage):
    stage.start = gated = Gated(first=1)
    config = {"num_replicas": 2, "user_config": 1, "max_batch_size": 1}
    async with serving(Configured, stage, **config) as (controller, handle, _):
        await change(controller, user_config=2)
        await gated.go(1)
        assert await outcomes(*[handle.call(0) for _ in range(4)]) == [2] * 4
        await gated.go(2)
        assert [replica.told for replica in stage.alive] == [[1, 2], [2]]


async def test_a_user_config_for_code_that_takes_none_is_refused() -> None:
    async with serving(echo) as (controller, handle, _):
        with pytest.raises(ValueError, match="reconfigure"):
            await change(controller, user_config=1)
        assert (await controller.get_backend_config("b")).user_config is None
        assert await handle.call(1) == 1


async def test_what_only_a_new_replica_can_take_in_replaces_them() -> None:
    async with serving(echo, num_replicas=2) as (controller, handle, stage):
        await change(controller, shared_memory_bytes=7)
        assert [replica.number for replica in stage.alive] == [2, 3]
        options = [replica.blueprint.placement_options for replica in stage.alive]
        assert options == [{"shared_memory_bytes": 7}] * 2
        assert await handle.call(1) == 1


async def test_a_change_to_another_placement_moves_the_backend() -> None:
    other = Stage()
    async with serving(echo) as (controller, handle, stage):
        await change(controller, placement=other)
        assert stage.alive == []
        assert len(other.alive) == 1
        assert await handle.call(1) == 1
        assert len(other.calls) == 1


async def test_a_placement_that_is_not_there_is_refused() -> None:
    async with serving(echo) as (controller, handle, stage):
        with pytest.raises(ValueError, match=r"no\.such:thing"):
            await change(controller, placement="no.such:thing")
        await stage.lose(wait_s=10)
        assert await handle.call(1) == 1


@pytest.mark.parametrize(
    ("change_of", "told"), [({"shared_memory_bytes": 7}, [1]), ({"num_replicas": 2}, [1, 2, 1])]
)
async def test_what_replicas_were_told_is_taken_back_when_a_later_step_fails(change_of, told):
    stage = Stage()
    stage.start = failing("no room", lambda number: number > 0)
    async with serving(Configured, stage, user_config=1) as (controller, handle, _):
        with pytest.raises(ReplicaNotStarted):
            await change(controller, user_config=2, **change_of)
        assert stage.replicas[0].told == told
        assert [replica.number for replica in stage.alive] == [0]
        assert await handle.call(0) == 1


async def test_batching_changes_at_once_while_a_replica_is_started_again(stage: Stage) -> None:
    stage.start = Gated(first=2)
    async with serving(echo, stage, num_replicas=2) as (controller, _, _):
        await settle()
        await stage.lose(wait_s=1)
        with anyio.fail_after(1):
            await change(controller, max_batch_size=3)


async def test_changes_of_one_backend_come_one_after_the_other() -> None:
    async with serving(Configured, user_config=0) as (controller, handle, stage):
        gate = anyio.Event()

        async def reconfigure(_: ScriptedReplica, config: Any) -> None:
            if config == 1:
                await gate.wait()

        stage.reconfigure = reconfigure
        async with anyio.create_task_group() as tasks:
            first, second = await line_up(
                tasks,
                controller.update_backend_config("b", {"user_config": 1}),
                controller.update_backend_config("b", {"user_config": 2}),
            )
            await anyio.sleep(5)
            assert (first.outcome, second.outcome) == (PENDING, PENDING)
            assert stage.replicas[0].told[-1] == 1
            gate.set()
        assert await handle.call(0) == 2


async def test_changes_of_two_backends_do_not_wait_for_each_other() -> None:
    slow, stage = Stage(), Stage()
    async with serving(echo, slow) as (controller, _, _):
        await controller.create_backend("other", echo, config={"placement": stage})
        slow.start = Gated()
        async with anyio.create_task_group() as tasks:
            await under_way(tasks, controller.scale_backend("b", 2))
            await controller.scale_backend("other", 2)
            assert len(stage.alive) == 2
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("most", [1, 3, 8])
async def test_a_replica_never_has_more_requests_than_it_may(batched: bool, most: int) -> None:
    code = many if batched else one
    config: Any = {"max_ongoing_requests": most, "num_replicas": 2}
    if batched:
        config |= {"max_concurrent_batches": 4, "max_batch_size": 2}
    async with serving(code, **config) as (_, handle, stage):
        await settle()
        assert await outcomes(*[handle.call(item) for item in range(40)]) == [*range(40)]
        assert max(replica.most_running for replica in stage.replicas) <= most
        if not batched:
            assert max(replica.most_running for replica in stage.replicas) == most


async def test_the_bound_holds_for_methods_of_lists_beside_a_call_of_one() -> None:
    class Code:
        async def __call__(self, item: int) -> int:
            return await one(item)

        async def many(self, items: list[int]) -> list[int]:
            return await many(items)

    async with serving(Code, max_ongoing_requests=4) as (_, handle, stage):
        both = (handle, handle.options(method_name="many"))
        calls = [each.call(item) for item in range(32) for each in both]
        await outcomes(*calls)
        assert stage.replicas[0].most_running <= 4


async def test_a_bound_that_is_lowered_holds_from_the_next_batch_on() -> None:
    async with serving_tasks(many, max_batch_size=8) as (controller, handle, stage, tasks):
        await under_way(tasks, *[handle.call(item) for item in range(30)])
        await change(controller, max_ongoing_requests=3)
        await anyio.sleep(100)
        assert max(len(items) for _, items in stage.calls[1:]) == 3


@pytest.mark.parametrize("old_name", [False, True])
async def test_it_warns_once_of_a_bound_below_what_batches_need(old_name, caplog):
    name = "max_concurrent_queries" if old_name else "max_ongoing_requests"
    async with serving(echo, max_batch_size=8, **{name: 4}) as (controller, _, _):
        await change(controller, retries=1)
        await change(controller, batch_wait_timeout_s=0.5)
        said = [r for r in caplog.records if "max_ongoing_requests=4" in r.getMessage()]
        assert len(said) == 1
        assert "max_batch_size * max_concurrent_batches = 8" in said[0].getMessage()


async def test_changes_of_a_backend_that_was_made_again_come_one_after_the_other(stage):
    now = most = 0

    async def reconfigure(replica: ScriptedReplica, _: Any) -> None:
        nonlocal now, most
        if replica.is_ready:
            now += 1
            most = max(now, most)
            await anyio.sleep(5)
            now -= 1

    stage.reconfigure = reconfigure
    config = {"placement": stage, "user_config": 0}
    async with Controller() as controller, anyio.create_task_group() as tasks:
        stage.stop_gate = gate = anyio.Event()
        await controller.create_backend("b", Configured, config=config)
        tasks.start_soon(controller.delete_backend, "b")
        for number in range(1, 200):
            tasks.start_soon(
                outcome, controller.update_backend_config("b", {"user_config": number})
            )
        await settle()
        gate.set()
        stage.stop_gate = None
        while await outcome(controller.create_backend("b", Configured, config=config)) is not None:
            await anyio.lowlevel.checkpoint()
        for number in range(1, 4):
            tasks.start_soon(
                outcome, controller.update_backend_config("b", {"user_config": -number})
            )
    assert most == 1
