"""A backend's parts: devices, the pool, managed replicas, and requests whose replica dies."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.callers import PENDING, line_up, outcomes
from batching.scenes import Held, Records, settle
from serving.scenes import (
    Gated,
    ScriptedReplica,
    Stage,
    echo,
    never,
    serving,
    serving_tasks,
    slowly,
    under_way,
)
from shoal import QueuePolicy
from shoal.core.events import Observers
from shoal.errors import ReplicaDied, ShoalError
from shoal.policies import WholeQueuePolicy
from shoal.replicas.code.definition import Definition
from shoal.serving.backend_config import BackendConfig
from shoal.serving.backends.backend import Backend
from shoal.serving.backends.pool import Pool, PoolCapacity, PoolMember
from shoal.serving.devices import DeviceLedger, Devices, exact_part


def test_a_part_goes_where_the_least_is_left():
    ledger = DeviceLedger(["0", "1"])
    ledger.take("a", 0.5)
    assert ledger.take("b", 0.75) == ("1",)
    assert ledger.take("c", 0.25) == ("1",)
    assert ledger.take("d", 1) is None


@pytest.mark.parametrize(("part", "fit"), [(1 / 3, 3), (0.333333, 3), (0.1, 10), (0.34, 2), (1, 1)])
def test_parts_are_exact(part, fit):
    ledger = DeviceLedger(["0"])
    assert ledger.places(part) == fit
    for number in range(fit):
        assert ledger.take(f"r{number}", part) == ("0",)
    assert ledger.take("more", part) is None


def test_who_has_what_is_shown():
    ledger = DeviceLedger([str(number) for number in range(40)])
    assert ledger.shown() == ""
    ledger.take("a#0", 1)
    ledger.take("b#0", 0.5)
    ledger.take("b#1", 0.25)
    assert ledger.shown() == "0 has a#0; 1 has b#0 (0.5) and b#1 (0.25)"
    assert ledger.parts()["1"] == {"b#0": 0.5, "b#1": 0.25}


@given(
    st.integers(0, 4),
    st.lists(st.tuples(st.sampled_from("tttr"), st.sampled_from([1, 2, 3, 0.5, 0.25, 1 / 3, 0.7]))),
)
def test_no_device_is_given_out_twice_and_places_are_kept(count, steps):
    ledger = DeviceLedger(map(str, range(count)))
    held = {}
    for number, (step, wanted) in enumerate(steps):
        if step == "r":
            if held:
                ledger.release(held.popitem()[0])
            continue
        places = ledger.places(wanted)
        found = ledger.take(str(number), wanted)
        assert (found is not None) == (places > 0)
        if found is not None:
            assert len(found) == max(1, int(wanted))
            held[str(number)] = wanted
            assert ledger.places(wanted) <= places - 1
        for parts in ledger.parts().values():
            assert sum(map(exact_part, parts.values())) <= 1
    assert {name for name in held if ledger.held_by(name)} == set(held)
    assert ledger.places(1, list(held)) == count


class Named:
    """Stands in for a replica, which the pool gives no work by itself."""

    takes_work = True

    def __init__(self, tag: str) -> None:
        self.tag = tag


def filled(*tags: str, slots: int = 1, most: int | None = None) -> tuple[Pool, list[PoolMember]]:
    pool = Pool("b")
    named: list[Any] = [Named(tag) for tag in tags]
    return pool, [pool.add(one, slots, most) for one in named]


def room_in(pool: Pool, size: int) -> PoolCapacity:
    room = PoolCapacity(pool, size)
    room.subscribe(lambda: None)
    return room


@contextmanager
def at_work(pool: Pool, member: PoolMember, size: int) -> Generator[None]:
    pool.begin(member, size)
    try:
        yield
    finally:
        pool.end(member, size)


def taken(pool: Pool, size: int = 1) -> str | None:
    member = pool.choose(size)
    return None if member is None else member.replica.tag


async def test_the_least_busy_replica_is_taken() -> None:
    pool, (first, second) = filled("a", "b", slots=3)
    with at_work(pool, first, 1), at_work(pool, first, 1), at_work(pool, second, 1):
        assert taken(pool) == "b"


async def test_a_batch_does_not_bring_back_a_replica_that_was_withdrawn() -> None:
    pool, (first, second) = filled("a", "b")
    pool.withdraw(first)
    with at_work(pool, first, 1), at_work(pool, second, 1):
        pass
    assert [taken(pool) for _ in range(2)] == ["b", "b"]


async def test_a_small_batch_does_not_take_the_place_that_a_large_one_waits_for() -> None:
    pool, (only,) = filled("a", slots=4, most=4)
    large, small = room_in(pool, 4), room_in(pool, 1)
    with at_work(pool, only, 1):
        assert small.free == 3
        assert large.is_full()
        assert small.free == 0
        assert small.is_full()
    assert not large.is_full()
    assert small.free == 4


async def test_one_that_is_known_to_be_dead_gets_no_work() -> None:
    pool, (first, _) = filled("a", "b", slots=4)
    room = room_in(pool, 1)
    first.replica.takes_work = False  # type: ignore[misc]
    assert [taken(pool) for _ in range(3)] == ["b"] * 3
    assert room.free == 4


async def test_no_batch_is_formed_for_one_that_is_known_to_be_dead() -> None:
    pool, (only,) = filled("a", slots=4)
    room = room_in(pool, 1)
    only.replica.takes_work = False  # type: ignore[misc]
    assert room.is_full()
    assert room.free == 0


@asynccontextmanager
async def running(code: Any, stage: Stage, **config: Any) -> AsyncGenerator[Backend]:
    backend = Backend(
        "b",
        Definition(code),
        BackendConfig(placement=stage, **config),
        prepare=lambda _: None,
        enter=lambda: None,
        observers=Observers(),
        devices=Devices(),
    )

    async with anyio.create_task_group() as tasks:
        await tasks.start(backend.run)
        yield backend
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("closes", [True, False])
async def test_who_waits_for_the_first_replica_is_told_that_the_backend_has_ended(closes):
    stage = Stage()
    stage.start = never
    async with anyio.create_task_group() as tasks:
        async with running(echo, stage) as backend:
            [caller] = await under_way(tasks, backend.method_batcher("__call__"))
            if closes:
                with anyio.fail_after(100):
                    backend.end_at_once()
                    await backend.close()
        await settle()
        assert isinstance(caller.outcome, ShoalError)
        tasks.cancel_scope.cancel()


class Empty(Exception):
    def __len__(self) -> int:
        return 0


class Breaking(WholeQueuePolicy):
    def __init__(self, _options: Any) -> None:
        super().__init__()

    def choose(self, *_: Any) -> Any:
        raise Empty("no")


async def test_an_error_that_is_false_shows_that_its_batcher_is_broken() -> None:
    async with running(echo, Stage(), policy=Breaking) as backend:
        method_batcher = await backend.method_batcher("__call__")
        with pytest.raises(ShoalError):
            await method_batcher.batcher.call(1)
        assert (backend.state, backend.status().failure) == ("unavailable", "no")


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
        states = [each.state for each in controller.status_now().backends["b"].replicas]
        draining = states.index("draining")
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


@pytest.mark.parametrize("death_at", [1, 2.5])
async def test_requests_left_the_queue_in_time_although_their_replica_dies(death_at: float) -> None:
    config: Any = {"retries": 1, "default_queue_policy": QueuePolicy(timeout_s=2)}
    async with serving_tasks(slowly, **config) as (_, handle, stage, tasks):
        [caller] = await under_way(tasks, handle.call(3.0))
        await anyio.sleep(death_at)

        async def start_late(_: Any) -> None:
            await anyio.sleep(2)

        stage.start = start_late
        await stage.lose(wait_s=10)
        assert caller.outcome == 3


async def test_a_death_in_a_backend_that_drops_its_queue_fails_its_requests(caplog):
    held = Held()
    config: Any = {"retries": 1, "num_replicas": 2, "drop_queued_on_shutdown": True}
    async with serving_tasks(held, **config) as (controller, handle, stage, tasks):
        [caller] = await under_way(tasks, handle.call(0))
        tasks.start_soon(controller.shutdown)
        await settle()
        await stage.lose()
        assert isinstance(caller.outcome, ReplicaDied)
        assert "run again" not in caplog.text


async def test_the_record_of_a_batch_has_the_death_that_put_its_requests_back(held: Held) -> None:
    config: Any = {"retries": 1, "num_replicas": 2}
    async with serving_tasks(held, **config) as (controller, handle, stage, tasks):
        controller.observers.add(told := Records())
        await under_way(tasks, handle.call(0))
        stage.replicas[0].die()
        await held.release()
    ends = [(type(one.error), one.retried) for one in told.records]
    assert ends == [(ReplicaDied, 1), (type(None), 0)]
