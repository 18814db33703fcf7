"""Admission: a bound on the queue, and what a call meets when the queue is full."""

from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import (
    LEFT,
    PENDING,
    Held,
    Recorder,
    Steps,
    launch,
    line_up,
    outcomes,
    plugged,
    read_all,
    settle,
    using,
)


def bounded(handler: Any, bound: int | None, overload: Any, **options: Any) -> Any:
    options = {"max_batch_size": 1, **options}
    return shoal.Batcher(handler, max_queued_requests=bound, overload=overload, **options)


async def busy(tasks: Any, call: Any) -> None:
    await launch(tasks, call("busy"))


async def test_by_default_the_queue_has_no_bound() -> None:
    held = Held()
    batcher = shoal.Batcher(held, max_batch_size=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, *map(call, range(200)))
        assert batcher.statistics().queued == 199
        tasks.cancel_scope.cancel()


async def test_reject_refuses_at_once_what_does_not_fit() -> None:
    held = Held()
    batcher = bounded(held, 2, "reject")
    async with plugged(held, batcher, "busy") as (call, tasks):
        callers = await launch(tasks, *map(call, range(5)))
        assert [type(caller.outcome) for caller in callers[2:]] == [shoal.errors.Overloaded] * 3
        assert "max_queued_requests=2" in str(callers[2].outcome)
        statistics = batcher.statistics()
        assert (statistics.rejected, statistics.queued) == (3, 2)
    assert [caller.outcome for caller in callers[:2]] == [0, 1]


async def test_wait_parks_the_callers_in_order() -> None:
    held = Held()
    batcher = bounded(held, 2, "wait")
    async with plugged(held, batcher, "busy") as (call, tasks):
        callers = await line_up(tasks, *map(call, range(6)))
        statistics = batcher.statistics()
        assert (statistics.queued, statistics.parked, statistics.rejected) == (2, 4, 0)
        assert [caller.outcome for caller in callers] == [PENDING] * 6
    assert [caller.outcome for caller in callers] == list(range(6))
    assert held.batches == [["busy"], *([item] for item in range(6))]


async def test_a_new_call_does_not_overtake_those_that_are_parked() -> None:
    held = Held()
    async with bounded(held, 1, "wait") as call, anyio.create_task_group() as tasks:
        await busy(tasks, call)
        callers = await line_up(tasks, *map(call, range(3)))
        callers[0].leave()
        callers += await launch(tasks, call(3))
        held.gate.set()
    assert callers[0].outcome == LEFT
    assert held.batches == [["busy"], [1], [2], [3]]


async def test_parked_requests_make_full_batches_when_the_slot_is_free() -> None:
    held = Held()
    batcher = bounded(held, 4, "wait", max_batch_size=4, batch_wait_timeout_s=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        await launch(tasks, *map(call, range(12)))
        held.gate.set()
    assert held.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize("overload", ["reject", "wait"])
async def test_a_bound_of_0_admits_only_what_can_start_now(overload: str) -> None:
    held = Held()
    batcher = bounded(
        held, 0, overload, max_concurrent_batches=2, max_batch_size=2, batch_wait_timeout_s=1
    )
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await launch(tasks, *map(call, range(4)))
        callers += await launch(tasks, call(4))
        if overload == "reject":
            assert isinstance(callers[4].outcome, shoal.errors.Overloaded)
        else:
            assert callers[4].outcome == PENDING
            assert batcher.statistics().parked == 1
        held.gate.set()
    assert [caller.outcome for caller in callers[:4]] == [0, 1, 2, 3]
    assert overload == "reject" or callers[4].outcome == 4


async def test_with_a_bound_of_0_one_call_after_the_other_is_admitted() -> None:
    batcher = bounded(Recorder(), 0, "reject")
    async with batcher as call:
        for number in range(5):
            assert await call(number) == number
    assert batcher.statistics().rejected == 0


@pytest.mark.parametrize("bound", [0, 3])
async def test_a_burst_into_an_idle_batcher_is_admitted_up_to_what_starts_at_once(bound):
    batcher = bounded(Recorder(), bound, "reject", max_batch_size=5)
    async with batcher as call:
        for _ in range(2):
            await settle()
            got = await outcomes(*map(call, range(12)))
            rejected = [one for one in got if isinstance(one, shoal.errors.Overloaded)]
            assert len(rejected) == 12 - 5 - bound
            assert str(rejected[0]).endswith(
                f"{5 + bound} requests are waiting: max_queued_requests={bound}, and free slots "
                "take 5"
            )


async def test_a_stream_is_rejected_when_it_is_entered() -> None:
    with Steps() as steps:
        async with using(bounded(steps.handler, 0, "reject")) as (call, tasks):
            (reader,) = await read_all(tasks, call("a"))
            await settle()
            late = call("b")
            with pytest.raises(shoal.errors.Overloaded):
                async with late:
                    pass
            assert late.request is None
            steps.end()
    assert reader.outcome == "end"


async def test_a_stream_is_parked_where_overload_is_wait() -> None:
    with Steps() as steps:
        batcher = bounded(steps.handler, 0, "wait")
        async with batcher as call, anyio.create_task_group() as tasks:
            readers = await read_all(tasks, call("a"), call("b"), call("c"))
            await settle()
            readers[1].leave()
            await settle()
            assert batcher.statistics().parked == 1
            steps.end()
            steps.end()
    assert [reader.outcome for reader in readers] == ["end", LEFT, "end"]


async def test_lowering_the_bound_throws_nobody_out() -> None:
    held = Held()
    batcher = bounded(held, 3, "reject")
    async with plugged(held, batcher, "busy") as (call, tasks):
        callers = await line_up(tasks, *map(call, range(3)))
        batcher.configure(max_queued_requests=1)
        with pytest.raises(shoal.errors.Overloaded, match=r"waiting, and max_queued_requests=1$"):
            await call(9)
    assert [caller.outcome for caller in callers] == [0, 1, 2]


async def test_raising_the_number_of_slots_lets_a_parked_caller_start() -> None:
    held = Held()
    batcher = bounded(held, 0, "wait")
    async with batcher as call, anyio.create_task_group() as tasks:
        await launch(tasks, *map(call, range(2)))
        assert held.batches == [[0]]
        batcher.configure(max_concurrent_batches=2)
        await settle()
        assert held.batches == [[0], [1]]
        held.gate.set()
