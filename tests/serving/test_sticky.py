"""Requests with equal shard keys go to one replica, as long as the loads stay balanced."""

import math
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import outcomes, read
from batching.scenes import Held, settle
from serving.scenes import Stage, echo, serving, serving_tasks, slowly, under_way
from shoal.errors import ReplicaDied
from shoal.serving.controller.endpoints import EndpointHandle
from shoal.testing.asgi import ask

STICKY: Any = {"sticky_load_factor": 1000, "num_replicas": 3, "max_batch_size": 4}


async def keys_of(handle: EndpointHandle, stage: Stage) -> list[list[str]]:
    """Finds three keys of each replica, by calls."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for number in range(60):
        key = f"user-{number}"
        await handle.options(shard_key=key).call(0)
        found[stage.calls[-1][0]].append(key)
    stage.calls.clear()
    return [found[number][:3] for number in range(3)]


@asynccontextmanager
async def holding(held: Held, **config: Any) -> AsyncGenerator[Any]:
    """Serves code that is held from now on; yields the keys of the replicas as well."""
    async with serving_tasks(held, **{**STICKY, **config}) as (controller, handle, stage, tasks):
        held.gate.set()
        keys = await keys_of(handle, stage)
        held.gate = anyio.Event()
        yield controller, handle, stage, tasks, keys


def keyed(handle: EndpointHandle, key: str, item: Any) -> Any:
    return handle.options(shard_key=key).call(item)


async def test_calls_with_equal_keys_go_to_the_same_replica() -> None:
    async with serving(echo, **STICKY) as (_, handle, stage):
        await outcomes(*[keyed(handle, f"k{item % 10}", item) for item in range(100)])
        by_key: defaultdict[int, set[int]] = defaultdict(set)
        for number, items in stage.calls:
            for item in items:
                by_key[item % 10].add(number)
        assert all(len(numbers) == 1 for numbers in by_key.values())
        assert set.union(*by_key.values()) == {0, 1, 2}


async def test_keys_of_one_replica_share_a_batch_and_others_do_not() -> None:
    async with serving(echo, **{**STICKY, "batch_wait_timeout_s": 1}) as (_, handle, stage):
        of_first, of_second, _ = await keys_of(handle, stage)
        keys = [of_first[0], of_second[0], of_first[1], of_second[1], of_first[2]]
        await outcomes(*[keyed(handle, key, item) for item, key in enumerate(keys)])
        batches = [(number, {*items}) for number, items in sorted(stage.calls)]
        assert batches == [(0, {0, 2, 4}), (1, {1, 3})]


async def test_a_batch_waits_for_its_replica_and_the_others_go_first(held: Held) -> None:
    async with holding(held) as (_, handle, stage, tasks, keys):
        (first, *_), (second, *_), _ = keys
        await under_way(tasks, keyed(handle, first, 1))
        await under_way(tasks, keyed(handle, first, 2), keyed(handle, second, 3))
        assert stage.calls == [(0, [1]), (1, [3])]
        await held.release()
        assert stage.calls == [(0, [1]), (1, [3]), (0, [2])]


async def test_another_replica_takes_what_is_beyond_the_load_factor(held: Held) -> None:
    async with holding(held, sticky_load_factor=2) as (_, handle, stage, tasks, keys):
        first = keys[0][0]
        await under_way(tasks, keyed(handle, first, 0))
        await under_way(tasks, keyed(handle, first, 1))
        assert stage.calls == [(0, [0])]
        # With one more its load is 3, of 3 in all, where 2 times the average are 2.
        await under_way(tasks, keyed(handle, first, 2))
        assert [items for _, items in stage.calls] == [[0], [1, 2]]
        held.gate.set()


async def test_calls_without_a_key_take_any_replica(held: Held) -> None:
    async with serving_tasks(held, **STICKY) as (_, handle, stage, tasks):
        for item in range(3):
            await under_way(tasks, handle.call(item))
        assert sorted(stage.calls) == [(0, [0]), (1, [1]), (2, [2])]
        held.gate.set()


async def test_waiting_requests_find_a_new_replica_when_theirs_dies(held: Held) -> None:
    async with holding(held, health_check_period_s=1e6) as (_, handle, stage, tasks, keys):
        first = keys[0][0]
        callers = await under_way(tasks, keyed(handle, first, 1))
        callers += await under_way(tasks, keyed(handle, first, 2), keyed(handle, first, 3))
        assert stage.calls == [(0, [1])]
        await stage.lose()
        await held.release()
        assert isinstance(callers[0].outcome, ReplicaDied)
        assert [caller.outcome for caller in callers[1:]] == [2, 3]
        (_, _), (number, items) = stage.calls
        assert number != 0
        assert items == [2, 3]


async def test_a_new_replica_takes_its_share_of_what_waits(held: Held) -> None:
    config = {**STICKY, "num_replicas": 1, "max_batch_size": 20}
    async with serving_tasks(held, **config) as (controller, handle, stage, tasks):
        await under_way(tasks, handle.call(-1))
        await under_way(tasks, *[keyed(handle, f"user-{item}", item) for item in range(20)])
        assert stage.calls == [(0, [-1])]
        await controller.scale_backend("b", 2)
        await settle()
        (_, _), (number, items) = stage.calls
        assert number == 1
        assert 3 < len(items) < 17
        held.gate.set()


async def test_the_option_changes_while_requests_wait(held: Held) -> None:
    async with holding(held) as (controller, handle, stage, tasks, keys):
        first = keys[0][0]
        await under_way(tasks, keyed(handle, first, 1))
        await under_way(tasks, keyed(handle, first, 2), keyed(handle, first, 3))
        assert stage.calls == [(0, [1])]
        await controller.update_backend_config("b", {"sticky_load_factor": None})
        await settle()
        assert [items for _, items in stage.calls] == [[1], [2, 3]]
        held.gate.set()
        await controller.update_backend_config("b", {"sticky_load_factor": 1.5})
        assert await keyed(handle, first, 4) == 4


async def test_a_flush_does_not_wait_for_a_replica(held: Held) -> None:
    async with holding(held) as (controller, handle, stage, tasks, keys):
        first = keys[0][0]
        await under_way(tasks, keyed(handle, first, 1))
        await under_way(tasks, keyed(handle, first, 2))
        backend = controller.backends["b"]
        backend.method_batchers["__call__"].batcher.flush()
        await settle()
        assert len(stage.calls) == 2
        held.gate.set()


async def test_callers_that_leave_are_not_counted_as_load() -> None:
    async with serving_tasks(slowly, **{**STICKY, "sticky_load_factor": 2}) as scene:
        _, handle, stage, tasks = scene
        (first, *_), *_ = await keys_of(handle, stage)
        await under_way(tasks, keyed(handle, first, 5.0))
        waiting = await under_way(tasks, keyed(handle, first, 1.0))
        for _ in range(5):
            waiting[-1].leave()
            await settle()
            waiting += await under_way(tasks, keyed(handle, first, 1.0))
        assert stage.calls == [(0, [5.0])]


@pytest.mark.parametrize("factor", [None, 2])
async def test_equal_calls_share_a_request(factor: float | None) -> None:
    config = {**STICKY, "sticky_load_factor": factor, "dedupe": lambda item: item}
    async with serving(echo, **config) as (_, handle, stage):
        calls = [keyed(handle, "user-1", 7) for _ in range(3)]
        assert await outcomes(*calls) == [7, 7, 7]
        assert [items for _, items in stage.calls] == [[7]]


async def test_streams_are_sticky_as_well() -> None:
    async def steps(items: list[int]) -> Any:
        yield items

    async with serving(steps, **STICKY) as (_, handle, stage):
        for item in range(12):
            assert await read(handle.options(shard_key="user-1").stream(item)) == [item]
        assert len({number for number, _ in stage.calls}) == 1


async def test_code_of_one_item_is_sticky_as_well() -> None:
    async def one(item: int) -> int:
        return item

    config = {"sticky_load_factor": 2, "num_replicas": 3}
    async with serving(one, **config) as (_, handle, stage):
        await outcomes(*[keyed(handle, "user-1", item) for item in range(3)])
        assert [await keyed(handle, "user-1", item) for item in range(9)] == [*range(9)]
        assert len({number for number, _ in stage.calls[-9:]}) == 1


async def test_the_header_is_the_key_over_http() -> None:
    async def tag(items: list[int]) -> list[str]:
        return [shoal.current_replica_tag()] * len(items)

    app = shoal.App()
    app.backend("b", tag, **STICKY)
    app.route("e", backend="b", path="/e")
    async with app.lifespan():
        tags = set()
        for number in range(20):
            header = ("X-Serve-Shard-Key", f"user-\xe9{number % 4}")
            answer = await ask(app, "/e", 1, headers=[header])
            tags.add((number % 4, answer.json()))
        assert len(tags) == 4
        assert len({tag for _, tag in tags}) > 1


def test_a_batcher_without_replicas_refuses_it() -> None:
    with pytest.raises(ValueError, match=r"sticky_load_factor=2\.0 is for backends"):
        shoal.Batcher(echo, sticky_load_factor=2)
    batcher = shoal.Batcher(echo)
    with pytest.raises(ValueError, match="is for backends"):
        batcher.configure(sticky_load_factor=2)


@pytest.mark.parametrize(
    ("value", "error"),
    [("2", TypeError), (0.5, ValueError), (math.inf, ValueError), (math.nan, ValueError)],
)
def test_a_factor_is_a_number_from_1_on(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="sticky_load_factor must be"):
        shoal.BackendConfig(sticky_load_factor=value)


async def test_a_batch_comes_back_after_a_change_while_it_ran() -> None:
    tries = 0

    async def refusing(items: list[int]) -> list[int]:
        nonlocal tries
        tries += 1
        await anyio.sleep(1)
        if tries == 1:
            raise shoal.RetryLater(1)
        return items

    async with serving_tasks(refusing, **STICKY) as (controller, handle, _, tasks):
        (caller,) = await under_way(tasks, keyed(handle, "k", 7))
        await controller.update_backend_config("b", {"max_batch_size": 3})
        await anyio.sleep(10)
        assert caller.outcome == 7
