"""A task is cancelled wherever it waits, under each rule by which batches form and admit.

The tools are those of `test_injected_cancellation`.
"""

from typing import Any

import anyio
import pytest

import shoal
from batching.test_injected_cancellation import (
    CancelledAtWait,
    Neighbours,
    add_up,
    at_every_wait,
    beside_neighbours,
    doubled,
    nothing_is_left,
)
from shoal.testing import settle

pytestmark = [
    pytest.mark.parametrize("how", ["before it parks", "while it is parked"]),
]


def parity(item: int) -> int:
    return item % 2


def cost_of_2(_: int) -> float:
    return 2


FORMING: dict[str, dict[str, Any]] = {
    "plain": {},
    "costs": {"batch_size_fn": cost_of_2, "max_batch_size": 6},
    "buckets": {"bucket_by": parity},
    "levels": {"priority_levels": 3, "default_priority": 2},
    "one level a batch": {"priority_levels": 3, "priority_mixing": "isolate"},
    "deadlines": {"order": "deadline", "use_scope_deadline": True},
    "sizes": {"allowed_batch_sizes": (1, 3), "padding": "down", "max_batch_size": 3},
    "preferred sizes": {"preferred_batch_sizes": (2,)},
    "idle": {"idle_timeout_s": 0.5, "batch_wait_timeout_s": None},
    "a target": {"adaptive": shoal.LatencyTarget(p99_s=1.0), "batch_wait_timeout_s": 0},
}
PLAIN_AGAIN: dict[str, Any] = {
    "max_batch_size": 4,
    "batch_wait_timeout_s": 1.0,
    "padding": "up",
    "priority_levels": 1,
    "priority_mixing": "merge",
    "order": "arrival",
}
NONE = {
    *("adaptive", "allowed_batch_sizes", "batch_size_fn", "bucket_by", "default_priority"),
    *("idle_timeout_s", "preferred_batch_sizes"),
}


@pytest.mark.parametrize("rule", FORMING)
async def test_a_call_of_each_rule(how: str, rule: str) -> None:
    async def subject(call: Any) -> None:
        priority = 1 if "level" in rule else None
        asking = call.options(timeout_s=9, queue_timeout_s=5, priority=priority)
        assert await asking(1) == 2
        assert await asking.map(range(20, 27)) == [2 * item for item in range(20, 27)]

    async def scene(nth: int) -> bool:
        options = {"max_batch_size": 3, "batch_wait_timeout_s": 1.0} | FORMING[rule]
        return await beside_neighbours(subject, nth, how, shoal.Batcher(doubled, **options))

    await at_every_wait(scene, waits=2)


async def doubled_after_a_second(items: list[int]) -> list[int]:
    await anyio.sleep(1)
    return [2 * item for item in items]


@pytest.mark.parametrize("overload", ["wait", "shed_oldest", "shed_lowest"])
async def test_a_caller_who_finds_the_queue_full(how: str, overload: str) -> None:
    """It leaves while it is parked, or when another has been shed for it; others are served."""

    async def scene(nth: int) -> bool:
        options: Any = {"max_queued_requests": 2, "overload": overload, "priority_levels": 3}
        batcher = shoal.Batcher(doubled_after_a_second, max_batch_size=1, **options)
        ends: dict[int, Any] = {}

        async def neighbour(level: int, item: int) -> None:
            try:
                ends[item] = await batcher.call.options(priority=level)(item)
            except shoal.errors.Overloaded:
                ends[item] = "shed"

        async def subject() -> None:
            assert await batcher.call.options(priority=1)(1) == 2

        async with batcher, anyio.create_task_group() as tasks:
            for level, item in ((1, 10), (2, 11), (3, 12)):
                tasks.start_soon(neighbour, level, item)
                await settle()
            was_cancelled = await CancelledAtWait(subject(), nth, how).run()
        sheds = overload != "wait"
        assert ends == {10: 20, 11: 22, 12: "shed" if sheds else 24}
        assert batcher.statistics().shed == sheds
        assert nothing_is_left(batcher)
        assert add_up(batcher, 4 - sheds)
        return was_cancelled

    await at_every_wait(scene, waits=1)


def halves(item: list[int], room: float) -> list[list[int]]:
    return [item[: int(room)], *(item[at : at + 4] for at in range(int(room), len(item), 4))]


def joined(results: list[list[int]]) -> list[int]:
    return [number for result in results for number in result]


async def doubled_lists(items: list[list[int]]) -> list[list[int]]:
    await anyio.lowlevel.checkpoint()
    return [[2 * number for number in item] for item in items]


@pytest.mark.parametrize("as_map", [False, True])
@pytest.mark.parametrize("slots", [1, 2])
async def test_a_call_of_several_parts(how: str, slots: int, as_map: bool) -> None:
    large, small = list(range(10)), [1, 2, 3]

    async def scene(nth: int) -> bool:
        split: Any = {"batch_size_fn": len, "split": halves, "join": joined}
        options: Any = {"max_concurrent_batches": slots, "batch_wait_timeout_s": 1.0}
        batcher = shoal.Batcher(doubled_lists, max_batch_size=4, **options, **split)
        results: list[list[int]] = []

        async def neighbour() -> None:
            results.append(await batcher.call(small))

        async def subject() -> None:
            if as_map:
                assert await batcher.call.map([large, small]) == [
                    [2 * number for number in item] for item in (large, small)
                ]
            else:
                assert await batcher.call(large) == [2 * number for number in large]

        async with batcher:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(neighbour)
                await settle()
                was_cancelled = await CancelledAtWait(subject(), nth, how).run()
                tasks.start_soon(neighbour)
            assert results == [[2, 4, 6]] * 2
            await settle()
            assert nothing_is_left(batcher)
        return was_cancelled

    await at_every_wait(scene, waits=1)


async def test_a_caller_beside_an_item_that_makes_the_handler_fail(how: str) -> None:
    """It leaves at any of the runs by which the poisoned item is found; all others are answered."""

    async def picky(items: list[int]) -> list[int]:
        await anyio.sleep(0.25)
        if 13 in items:
            raise ValueError("unlucky")
        return [2 * item for item in items]

    async def scene(nth: int) -> bool:
        options: Any = {"batch_wait_timeout_s": 1.0, "isolate_errors": True}
        batcher = shoal.Batcher(picky, max_batch_size=6, **options)

        async def poisoned() -> None:
            with pytest.raises(ValueError, match="unlucky"):
                await batcher.call(13)

        async def subject() -> None:
            assert await batcher.call.map([1, 2]) == [2, 4]
            assert await batcher.call(3) == 6

        async with batcher as call:
            async with anyio.create_task_group() as tasks:
                neighbours = Neighbours(tasks)
                neighbours.call(call, 10)
                tasks.start_soon(poisoned)
                neighbours.call(call, 11)
                was_cancelled = await CancelledAtWait(subject(), nth, how).run()
            assert neighbours.results == neighbours.expected
            await settle()
            assert nothing_is_left(batcher)
        return was_cancelled

    await at_every_wait(scene, waits=2)


async def test_configuring_while_calls_wait_and_run(how: str) -> None:
    """Whoever changes the options is cancelled between the changes; nobody's call is lost."""

    async def scene(nth: int) -> bool:
        batcher = shoal.Batcher(doubled, max_batch_size=4, batch_wait_timeout_s=1.0)

        async def subject() -> None:
            for options in FORMING.values():
                batcher.configure(**options)
                await anyio.sleep(0.25)
                batcher.configure(**dict.fromkeys(NONE), **PLAIN_AGAIN)
                await anyio.sleep(0.25)

        async with batcher as call:
            async with anyio.create_task_group() as tasks:
                neighbours = Neighbours(tasks)
                for item in range(10, 15):
                    neighbours.call(call, item)
                tasks.start_soon(late_neighbours, neighbours, call)
                was_cancelled = await CancelledAtWait(subject(), nth, how).run()
                batcher.drain()
            assert neighbours.results == neighbours.expected
            assert nothing_is_left(batcher)
            assert add_up(batcher, 15)
        return was_cancelled

    await at_every_wait(scene, waits=10)


async def late_neighbours(neighbours: Neighbours, call: Any) -> None:
    for item in range(20, 30):
        await anyio.sleep(0.375)
        neighbours.call(call, item)
